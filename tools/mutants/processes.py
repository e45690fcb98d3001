"""Work in forked processes, a few at a time: each with what its parent has imported, and with
limits of its own."""

from __future__ import annotations

import os
import resource
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

Key = TypeVar("Key")

DATA_BYTES = 4 * 2**30
"""What a mutant may allocate before it fails."""


def outcomes(
    works: Iterable[tuple[Key, Callable[[], int]]], jobs: int
) -> Iterator[tuple[Key, str]]:
    """(key, what was written before an exit code that is not 0, or "") of each, as they end."""
    waiting, running = iter(works), dict[int, tuple[Key, int]]()
    while True:
        while len(running) < jobs and (following := next(waiting, None)) is not None:
            key, work = following
            process, output = _forked(work)
            running[process] = (key, output)
        if not running:
            return
        process, status = os.wait()
        key, output = running.pop(process)
        yield key, _words(output, os.waitstatus_to_exitcode(status))


def _words(output: int, exit_code: int) -> str:
    os.lseek(output, 0, os.SEEK_SET)
    with os.fdopen(output, encoding="utf-8", errors="replace") as written:
        words = written.read()
    return "" if exit_code == 0 else words or f"ended with {exit_code}"


def _forked(work: Callable[[], int]) -> tuple[int, int]:
    """A child that does it, and the file of what it writes."""
    output = os.memfd_create("output")
    process = os.fork()
    if process:
        return process, output
    code = 1
    try:
        os.dup2(output, 1)
        os.dup2(output, 2)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_DATA, (DATA_BYTES, DATA_BYTES))
        code = work()
    finally:
        os._exit(code)
