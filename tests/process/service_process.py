"""A service as operators run it: a process with flags, an environment, signals and logs."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DEADLINE_S = 110.0
"""Generous: it is met on a machine that is many times busier than it should be."""


class ServiceProcess:
    """`python -m MODULE FLAGS` in a context, which leaves no process behind. Unless `secured`, it
    serves without TLS and keys."""

    def __init__(
        self,
        module: str,
        *flags: str,
        environment: Mapping[str, str] | None = None,
        secured: bool = False,
    ) -> None:
        self.words: list[str] = []
        self._log = tempfile.TemporaryFile(mode="w+", encoding="utf-8")  # noqa: SIM115
        kept = {name: text for name, text in os.environ.items() if not name.startswith("TANDEM_")}
        kept.pop("GRPC_VERBOSITY", None)
        self._process = subprocess.Popen(
            [sys.executable, "-m", module, *flags, *(() if secured else ("--insecure",))],
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            cwd=ROOT,
            env={**kept, "OMP_NUM_THREADS": "1", **(environment or {})},
        )

    def __enter__(self) -> ServiceProcess:
        return self

    def __exit__(self, *reason: object) -> None:
        self._process.kill()
        self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()
        self._log.close()

    def address(self) -> str:
        """Where it serves, once it does."""
        if not self.words:
            self._wait_until_listening()
        return self.words[1]

    def _wait_until_listening(self) -> None:
        assert self._process.stdout is not None
        deadline = threading.Timer(DEADLINE_S, self._process.kill)
        deadline.start()
        line = self._process.stdout.readline()
        deadline.cancel()
        assert line.startswith("listening "), self.log()
        self.words = line.split()

    @property
    def pid(self) -> int:
        return self._process.pid

    def signal(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def ended(self) -> int:
        """Wait for its exit code; minus the signal's number for one that was killed."""
        return self._process.wait(DEADLINE_S)

    def refusal(self, exit_code: int) -> str:
        """The one line with which it ends instead of serving."""
        assert self.ended() == exit_code, self.log()
        line = self.log()
        assert line.startswith("error: ")
        assert line.count("\n") == 1
        return line

    @property
    def running(self) -> bool:
        return self._process.poll() is None

    def log(self) -> str:
        """What it wrote to standard error so far."""
        return os.pread(self._log.fileno(), 2**24, 0).decode()


def free_port() -> int:
    """One that nobody listens on now."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port: int = free.getsockname()[1]
        return port
