"""How many threads this machine has for a model."""

import os
from contextlib import suppress
from pathlib import Path

_CPUS = Path("/sys/devices/system/cpu")
_CGROUP = Path("/sys/fs/cgroup")


def machine_threads(cpus: Path = _CPUS, cgroup: Path = _CGROUP) -> int:
    """Return the number of cores that this process may use: those of its affinity, where two
    threads of one core count once, and no more than its container's share of time."""
    allowed = _allowed_cpus()
    cores = {_text(cpus / f"cpu{cpu}/topology/thread_siblings_list") or str(cpu) for cpu in allowed}
    return max(1, min(len(cores), _quota(cgroup) or len(cores)))


def _allowed_cpus() -> set[int]:
    try:
        return os.sched_getaffinity(0)
    except AttributeError:  # macOS
        return set(range(os.cpu_count() or 1))


def _quota(cgroup: Path) -> int | None:
    """Return the whole processors of a container's limit, or None where there is none."""
    with suppress(ValueError):
        limit_us, period_us = (_text(cgroup / "cpu.max") or "max 1").split()
        return max(1, int(limit_us) // int(period_us))
    with suppress(ValueError):
        limit = int(_text(cgroup / "cpu/cpu.cfs_quota_us") or -1)
        period = int(_text(cgroup / "cpu/cpu.cfs_period_us") or 0)
        return max(1, limit // period) if limit > 0 and period > 0 else None
    return None


def _text(path: Path) -> str:
    try:
        return path.read_text("ascii").strip()
    except OSError:
        return ""
