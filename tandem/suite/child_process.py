"""One service as a child process, in a session of its own: the terminal's Ctrl-C does not reach it.
Its parent stops it, or on Linux the kernel, should the parent be killed."""

import asyncio
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Self

from tandem.core.errors import TandemError

LOG_LINE_CHARACTERS = 400


class ChildDied(TandemError):
    """A child ended unasked; the message has its last log line."""


class ChildProcess:
    """`name` is what messages call it; its log goes to `log`, or to standard error."""

    def __init__(self, name: str, process: asyncio.subprocess.Process, log: Path | None) -> None:
        self.name, self.address = name, ""
        self._process, self._log = process, log

    @classmethod
    async def start(
        cls,
        service: str,
        arguments: Sequence[str],
        environment: dict[str, str],
        log: Path | None,
        name: str = "",
    ) -> Self:
        """Run tandem.services.SERVICE under `supervised`; `name` tells two of a service apart."""
        # -P: a folder called `tandem` in the working directory must not be taken for ours.
        module = f"tandem.services.{service}"
        command = ("-P", "-m", "tandem.suite.supervised", str(os.getpid()), module)
        appended = os.O_WRONLY | os.O_CREAT | os.O_APPEND
        stderr = None if log is None else os.open(log, appended, 0o600)
        try:
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                *command,
                *arguments,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=stderr,
                env=environment,
                start_new_session=True,
            )
        finally:
            if stderr is not None:
                os.close(stderr)
        return cls(name or service, process, log)

    @property
    def pid(self) -> int:
        return self._process.pid

    async def listening(self) -> None:
        """Wait until it serves and `address` is known. Raises ChildDied."""
        assert self._process.stdout is not None
        while line := await self._process.stdout.readline():
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
        if self._process.returncode is None:
            self._process.terminate()
        try:
            async with asyncio.timeout(grace_s):
                await self._process.wait()
        except TimeoutError:
            self.kill()
            await self._process.wait()

    def kill(self) -> None:
        if self._process.returncode is None:
            self._process.kill()

    def pin(self, core: int) -> None:
        """Run on this core only."""
        os.sched_setaffinity(self.pid, {core})

    def _last_words(self) -> str:
        if self._log is None:
            return "; its log is above"
        lines = self._log.read_text(errors="replace").split("\n")
        last = next((line for line in reversed(lines) if line.strip()), "nothing")
        return f"; last log line: {last[:LOG_LINE_CHARACTERS]}; log: {self._log}"
