"""On what a measurement was made: processor, versions, load, commit."""

from __future__ import annotations

import os
import platform
import resource
import subprocess
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import cache
from hashlib import sha256
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

QUIET_LOAD = 0.5
"""Load average per machine above which figures of time say little."""

CHANGED = "-changed-"
"""What a commit's name has where the tree has changes."""
_SOURCES = (":(top)", *(f":(top,exclude){pages}" for pages in ("docs", "lab/docs", "lab/results")))


@dataclass(frozen=True, slots=True)
class Machine:
    """Facts at the start of a run; `load` is the one-minute average, of all cores together."""

    processor: str
    cores: int
    system: str
    python: str
    torch: str | None
    transformers: str | None
    grpcio: str | None
    load: float
    commit: str

    @property
    def busy(self) -> bool:
        return self.load > QUIET_LOAD

    def line(self) -> str:
        line = (
            f"{self.processor}, {self.cores} cores, Python {self.python}, torch {self.torch}, "
            f"load {self.load:.2f}, commit {self.commit[:12]}"
        )
        if self.busy:
            line += "\nWARNING: the machine is busy; times count only on a quiet one"
        return line

    def to_json(self) -> dict[str, Any]:
        return {name: fact for name, fact in asdict(self).items() if name != "commit"}


def this_machine() -> Machine:
    """Return the facts about this machine now."""
    return Machine(
        processor=_processor(),
        cores=len(usable_cores()),
        system=platform.platform(),
        python=platform.python_version(),
        torch=_version("torch"),
        transformers=_version("transformers"),
        grpcio=_version("grpcio"),
        load=os.getloadavg()[0],
        commit=commit_of(Path(__file__).resolve().parent),
    )


@cache
def usable_cores() -> tuple[int, ...]:
    """Return the numbers of the cores this process might run on when it started to measure; at
    least one."""
    if hasattr(os, "sched_getaffinity"):
        return tuple(sorted(os.sched_getaffinity(0)))
    return tuple(range(os.cpu_count() or 1))


def pin(process_id: int, cores: Iterable[int]) -> None:
    """Keep a process (0: this one) on these cores, where the system can."""
    usable_cores()  # before it changes
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(process_id, cores)


@contextmanager
def pinned(*cores: int) -> Iterator[None]:
    """Keep this process on these cores while the context is open."""
    pin(0, cores)
    try:
        yield
    finally:
        pin(0, usable_cores())


class OthersMeter:
    """How much of the usable cores other processes take from now on."""

    def __init__(self) -> None:
        self._started_s = time.perf_counter()
        self._busy_s, self._used_s = _busy_s(), _used_s()

    def share(self) -> float | None:
        """Return the share, from 0 to 1; None where the system does not tell. Own children count as
        own only once they have been waited for."""
        if self._busy_s is None or (busy_s := _busy_s()) is None:
            return None
        others_s = busy_s - self._busy_s - (_used_s() - self._used_s)
        wall_s = time.perf_counter() - self._started_s
        return max(0.0, others_s / (wall_s * len(usable_cores())))


def _busy_s() -> float | None:
    """Return the seconds that the usable cores were busy since boot, stolen time included; None
    where the system does not say."""
    try:
        lines = Path("/proc/stat").read_text(encoding="utf-8").splitlines()
    except OSError:
        return None
    names = {f"cpu{core}" for core in usable_cores()}
    ticks = 0
    for name, *counts in (line.split() for line in lines):
        if name in names:
            user, nice, system, _idle, _iowait, irq, softirq, steal = map(int, counts[:8])
            ticks += user + nice + system + irq + softirq + steal
    return ticks / os.sysconf("SC_CLK_TCK")


def _used_s() -> float:
    usage, children = (
        resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    )
    return usage.ru_utime + usage.ru_stime + children.ru_utime + children.ru_stime


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def commit_of(folder: Path) -> str:
    """Return the commit of the source tree around a folder. Where the tree differs from it, but for
    the documentation and kept rows, CHANGED and a mark are added that is the same for the same
    changes alone."""
    try:
        commit = _git(folder, "rev-parse", "HEAD")
        changes = _git(folder, "diff", "--binary", "HEAD", "--", *_SOURCES)
        changes += _git(folder, "ls-files", "--others", "--exclude-standard", "--", *_SOURCES)
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return f"{commit}{CHANGED}{sha256(changes.encode()).hexdigest()[:12]}" if changes else commit


def _git(folder: Path, *arguments: str) -> str:
    done = subprocess.run(
        ["git", *arguments],
        cwd=folder,
        capture_output=True,
        encoding="utf-8",
        errors="replace",
        check=True,
    )
    return done.stdout.strip()
