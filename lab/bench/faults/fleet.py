"""Services as processes that are killed, and started again at the same address.

Invariant: no process outlives the fleet. A port is chosen once and below the range that the system
takes for outgoing connections: a caller that keeps dialling a dead port of that range can connect
to itself.
"""

from __future__ import annotations

import asyncio
import os
import random
import resource
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from lab.bench.faults.fail_points import Switches
from lab.bench.harness.models import ROOT
from lab.bench.harness.suite import SuiteFailed, clean_environment, cpu_s
from tandem.core.errors import TandemError
from tandem.suite.child_process import Spawned

HOST = "127.0.0.1"
START_S = 120.0
PORTS = range(10_000, 30_000)
LIMITS = {"descriptors": resource.RLIMIT_NOFILE, "file size": resource.RLIMIT_FSIZE}


class PromiseBroken(TandemError):
    """The suite did what it must not, in a way that no figure shows."""


@dataclass(frozen=True, slots=True)
class Member:
    """A service: `module` with `flags`, which name its port. With `switches` it runs under
    `lab.bench.faults.fail_points`, which they arm."""

    module: str
    flags: tuple[str, ...]
    switches: Switches | None = None


@dataclass(slots=True)
class _Running:
    process: Spawned
    logging: asyncio.Task[None]


@dataclass(slots=True)
class Fleet:
    """Use as an asynchronous context manager; `logs` is the folder of what services write."""

    members: Mapping[str, Member]
    logs: Path
    ports: Mapping[str, int] = field(default_factory=dict)
    _running: dict[str, _Running] = field(default_factory=dict)

    async def __aenter__(self) -> Self:
        try:
            await asyncio.gather(*(self.start(name) for name in self.members))
        except BaseException:
            await self._end()
            raise
        return self

    async def __aexit__(self, *reason: object) -> None:
        await self._end()

    def pid(self, name: str) -> int:
        return self._running[name].process.pid

    async def start(self, name: str) -> float:
        """Start a member, and return when it was listening, by time.monotonic. Raises SuiteFailed,
        with the last line of its log, if it ends before that."""
        member = self.members[name]
        before: tuple[str, ...] = (member.module,)
        if (switches := member.switches) is not None:
            failing = (str(switches.path), str(switches.folder))
            before = ("lab.bench.faults.fail_points", *failing, member.module)
        supervised = ("-P", "-m", "tandem.suite.supervised", str(os.getpid()))
        process = await Spawned.start(
            (sys.executable, *supervised, *before, *member.flags, "--log-level", "warning"),
            clean_environment() | {"GRPC_VERBOSITY": "NONE"},
            stderr=subprocess.PIPE,
            folder=ROOT,
        )
        running = _Running(process, asyncio.create_task(self._keep_log(name, process)))
        self._running[name] = running
        async with asyncio.timeout(START_S):
            line = await (await process.output()).readline()
        if not line.startswith(b"listening "):
            status = await process.wait()
            await running.logging
            raise SuiteFailed(f"{name} ended with {status}: {self.last_words(name)}")
        return time.monotonic()

    async def kill(self, name: str) -> None:
        """Kill a member with SIGKILL, and return once it is gone."""
        running = self._running.pop(name)
        running.process.send_signal(signal.SIGKILL)
        await running.process.wait()
        await running.logging

    async def stop(self, name: str) -> None:
        """Stop a member with SIGTERM, as an upgrade does, and return once it has drained and is
        gone."""
        running = self._running.pop(name)
        running.process.send_signal(signal.SIGTERM)
        await running.process.wait()
        await running.logging

    def limit(self, name: str, kind: str, most: int | None) -> None:
        """Set a soft limit of the running process: `most` descriptors, or bytes of a file that it
        writes. None raises it to the hard limit again."""
        _, hard = resource.prlimit(self.pid(name), LIMITS[kind])
        resource.prlimit(self.pid(name), LIMITS[kind], (hard if most is None else most, hard))

    def cpu_s(self) -> float:
        """Return the processor seconds that the running processes have used so far."""
        return sum(cpu_s(running.process.pid) for running in self._running.values())

    def check_alive(self) -> None:
        """Raise SuiteFailed for a process that ended by itself."""
        for name, running in self._running.items():
            if (status := running.process.returncode) is not None:
                raise SuiteFailed(f"{name} ended with {status}: {self.last_words(name)}")

    def last_words(self, name: str) -> str:
        lines = self._log(name).read_text(errors="replace").strip().splitlines()
        return (lines or ["no message"])[-1][:400]

    def logged(self, name: str, words: str) -> int:
        """Return how often the member's log has these words."""
        return self._log(name).read_text(errors="replace").count(words)

    async def _keep_log(self, name: str, process: Spawned) -> None:
        """Write what a service logs into its file. The service does not do so itself: a limit on
        the size of its files would be one on its log, too."""
        errors = await process.errors()
        with self._log(name).open("ab", buffering=0) as log:
            while part := await errors.read(1 << 16):
                log.write(part)

    def _log(self, name: str) -> Path:
        return self.logs / f"{name}.log"

    async def _end(self) -> None:
        running, self._running = list(self._running.values()), {}
        for member in running:
            member.process.send_signal(signal.SIGKILL)
        await asyncio.gather(*(member.process.wait() for member in running))
        await asyncio.gather(*(member.logging for member in running))


def dialled_ports(count: int, seed: int | None = None) -> list[int]:
    """Return `count` different ports of `PORTS` on which nothing listens."""
    source, ports = random.Random(seed), set[int]()
    while len(ports) < count:
        port = source.choice(PORTS)
        with suppress(OSError), socket.create_server((HOST, port)):
            ports.add(port)
    return sorted(ports)


def flags_of(settings: Mapping[str, object]) -> tuple[str, ...]:
    """Return settings as flags of a command line."""
    return tuple(f"--{name}={value}" for name, value in settings.items())
