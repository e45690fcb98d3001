"""One service as a child process, in a session of its own: the terminal's Ctrl-C does not reach it.
Its parent stops it, or on Linux the kernel, should the parent be killed."""

import asyncio
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Self

from tandem.core.errors import TandemError

LOG_LINE_CHARACTERS = 400


class ChildDied(TandemError):
    """A child ended unasked; the message has the last line of its log that may say why."""


class Spawned:
    """A process in a session of its own. uvloop's way to start one runs the handlers that gRPC has
    for forks in the child, which crashes there now and then; that of `subprocess` runs none."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process
        loop = asyncio.get_running_loop()
        self._ended: asyncio.Future[int] = loop.create_future()
        threading.Thread(target=self._wait, args=(loop,), daemon=True).start()

    @classmethod
    async def start(
        cls,
        command: Sequence[str],
        environment: Mapping[str, str],
        stderr: int | None = None,
        folder: Path | None = None,
    ) -> Self:
        """Start a process from this thread: the kernel signals the child (see `supervised`) when
        the thread that started it ends. `stderr`: a descriptor, or as for subprocess.Popen."""
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=stderr,
            cwd=folder,
            env=environment,
            start_new_session=True,
        )
        return cls(process)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def returncode(self) -> int | None:
        return self._ended.result() if self._ended.done() else None

    async def output(self) -> asyncio.StreamReader:
        """Return the process's output; call it once."""
        return await _read(self._process.stdout)

    async def errors(self) -> asyncio.StreamReader:
        """Return the process's standard error, if that is a pipe; call it once."""
        return await _read(self._process.stderr)

    def send_signal(self, number: int) -> None:
        """Send a signal; do nothing if the process has ended."""
        self._process.send_signal(number)

    async def wait(self) -> int:
        """Wait for the end, and return the exit code, or the negative number of a signal."""
        return await asyncio.shield(self._ended)

    def _wait(self, loop: asyncio.AbstractEventLoop) -> None:
        status = self._process.wait()
        with suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(self._ended.set_result, status)


async def _read(pipe: IO[bytes] | None) -> asyncio.StreamReader:
    reader = asyncio.StreamReader()
    protocol = asyncio.StreamReaderProtocol(reader)
    await asyncio.get_running_loop().connect_read_pipe(lambda: protocol, pipe)
    return reader


def module_of(service: str) -> str:
    """Return the module that is the service as a process."""
    return f"tandem.services.{service}"


class ChildProcess:
    """`name` is what messages call it; its log goes to `log`, or to standard error."""

    def __init__(self, name: str, process: Spawned, log: Path | None) -> None:
        self.name = name
        self.address = ""
        self._process = process
        self._log = log

    @classmethod
    async def start(
        cls,
        service: str,
        arguments: Sequence[str],
        environment: dict[str, str],
        log: Path | None,
        name: str = "",
    ) -> Self:
        """Run a service under `supervised`; `name` tells two of one service apart."""
        # -P: a folder called `tandem` in the working directory must not be taken for ours.
        supervised = (sys.executable, "-P", "-m", "tandem.suite.supervised", str(os.getpid()))
        command = (*supervised, module_of(service))
        appended = os.O_WRONLY | os.O_CREAT | os.O_APPEND
        stderr = None if log is None else os.open(log, appended, 0o600)
        try:
            process = await Spawned.start((*command, *arguments), environment, stderr)
        finally:
            if stderr is not None:
                os.close(stderr)
        return cls(name or service, process, log)

    @property
    def pid(self) -> int:
        return self._process.pid

    async def listening(self) -> None:
        """Wait until it serves and `address` is known. Raises ChildDied."""
        output = await self._process.output()
        while line := await output.readline():
            word, _, address = line.decode(errors="replace").strip().partition(" ")
            if word == "listening":
                self.address = address
                return
        await self.died()

    async def died(self) -> None:
        """Wait until it ends by itself; then raise ChildDied."""
        status = await self._process.wait()
        how = f"exit code {status}" if status >= 0 else f"killed by {signal.Signals(-status).name}"
        raise ChildDied(f"the {self.name} ended ({how}){self._last_words()}")

    async def stop(self, grace_s: float) -> None:
        """Ask it to drain; kill it when that takes longer than `grace_s`. Idempotent."""
        self._process.send_signal(signal.SIGTERM)
        try:
            async with asyncio.timeout(grace_s):
                await self._process.wait()
        except TimeoutError:
            self.kill()
            await self._process.wait()

    def kill(self) -> None:
        self._process.send_signal(signal.SIGKILL)

    def pin(self, core: int) -> None:
        """Run on this core only."""
        os.sched_setaffinity(self.pid, {core})

    def _last_words(self) -> str:
        if self._log is None:
            return "; its log is above"
        last = last_complaint(self._log.read_text(errors="replace"))
        shown = f"; last log line: {last[:LOG_LINE_CHARACTERS]}" if last else ""
        return f"{shown}; log: {self._log}"


def last_complaint(log: str) -> str:
    """Return the last line of a log that may say why a process ended; empty where all are about
    what is done every day."""
    lines = (line for line in reversed(log.split("\n")) if line.strip())
    return next((line for line in lines if not _EVERYDAY.search(line)), "")


_EVERYDAY = re.compile(r'"level": "(?:info|debug)"')
