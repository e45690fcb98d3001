"""Another program's own generation as a worker process, asked line by line.

A worker is a module of `bench` that loads its models, says `ready`, and then answers each line of
JSON on standard input with one on standard output. Invariant: it ends with the context, or with
this process; with the context, so does whatever it has started.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from lab.bench.harness.models import ROOT
from lab.bench.harness.suite import SuiteFailed, clean_environment
from lab.machine import pin, usable_cores


class PeerProcess:
    """A worker that said it is ready."""

    def __init__(self, process: subprocess.Popen[str], module: str) -> None:
        self._process = process
        self._module = module

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        """Send a request to the worker, and return its answer. Raises SuiteFailed when the worker
        has died."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            pass  # the missing answer tells
        answer: dict[str, Any] = json.loads(self.line())
        return answer

    def line(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise SuiteFailed(f"{self._module} ended; its message is above")
        return line


@contextmanager
def running_worker(
    module: str, arguments: Sequence[str], threads: int, python: str = sys.executable
) -> Iterator[PeerProcess]:
    """Run a worker on all cores, with this many threads of arithmetic, while the context is open.
    `python`: the interpreter of the environment that has what the worker imports."""
    process = subprocess.Popen(
        [
            *(python, "-P", "-m", "tandem.suite.supervised", str(os.getpid())),
            *(module, *arguments, str(threads)),
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env=clean_environment(threads) | {"PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'gen'}"},
        # vLLM's engine is a process of the worker's, which would stay when the worker is stopped.
        start_new_session=True,
    )
    pin(process.pid, usable_cores())
    try:
        with process:
            try:
                peer = PeerProcess(process, module)
                peer.line()
                yield peer
            finally:
                _signal_all(process.pid, signal.SIGTERM)
    finally:
        _signal_all(process.pid, signal.SIGKILL)


def _signal_all(group: int, number: signal.Signals) -> None:
    """Send a signal to every process of a group that is still there."""
    with suppress(ProcessLookupError):
        os.killpg(group, number)
