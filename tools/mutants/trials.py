"""Tests under a mutant, each in a process of its own: forked before anything of Tandem is imported.

The mutant exists in that process's memory only, so several run at once over one checkout, and an
interrupted run leaves nothing behind.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import os
import resource
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, ModuleType

import numpy  # noqa: F401  # so are the next: imported once, before the forks
import pytest
import pytest_asyncio  # noqa: F401

CPU_S, DATA_BYTES = 40, 4 * 2**30
"""What tests may take under a mutant that never ends or fills the memory; both kill it."""

FLAGS = ("-x", "-q", "--no-header", "--tb=short", "-p", "no:cacheprovider", "-p", "no:xdist")


@dataclass(frozen=True, slots=True)
class Trial:
    """Tests, stage by stage, with one module (a dotted name) replaced by another source; with none
    replaced where there is no module."""

    tests: Sequence[Sequence[str]]
    module: str = ""
    source: Callable[[], str] = str


def tried(trials: Iterable[tuple[object, Trial]], jobs: int) -> Iterator[tuple[object, str]]:
    """(name, what a test said before it failed, or "" where all passed), as trials end."""
    waiting, running = iter(trials), dict[int, tuple[object, int]]()
    while True:
        while len(running) < jobs and (following := next(waiting, None)) is not None:
            name, trial = following
            process, output = _forked(trial)
            running[process] = (name, output)
        if not running:
            return
        process, status = os.wait()
        name, output = running.pop(process)
        yield name, _words(output, os.waitstatus_to_exitcode(status))


def _words(output: int, exit_code: int) -> str:
    os.lseek(output, 0, os.SEEK_SET)
    with os.fdopen(output, encoding="utf-8", errors="replace") as written:
        words = written.read()
    return "" if exit_code == 0 else words or f"ended with {exit_code}"


def _forked(trial: Trial) -> tuple[int, int]:
    """A child that runs it, and the file of what it writes."""
    output = os.memfd_create("trial")
    process = os.fork()
    if process:
        return process, output
    code = 1
    try:
        os.dup2(output, 1)
        os.dup2(output, 2)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_CPU, (CPU_S, CPU_S))
        resource.setrlimit(resource.RLIMIT_DATA, (DATA_BYTES, DATA_BYTES))
        code = _run(trial)
    finally:
        os._exit(code)


def _run(trial: Trial) -> int:
    if trial.module:
        assert not any(name.split(".")[0] == "tandem" for name in sys.modules)
        sys.meta_path.insert(0, _Replacing(trial.module, trial.source()))
    for files in trial.tests:
        if code := pytest.main([*FLAGS, *files]):
            return int(code)
    return 0


class _Replacing(importlib.abc.MetaPathFinder):
    """Finds one module: the mutant."""

    def __init__(self, module: str, source: str) -> None:
        self._module, self._source = module, source

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name != self._module:
            return None
        found = importlib.machinery.PathFinder.find_spec(name, path)
        assert found is not None
        assert found.origin is not None
        loader = _Loader(name, found.origin, self._source)
        return importlib.util.spec_from_file_location(name, found.origin, loader=loader)


class _Loader(importlib.machinery.SourceFileLoader):
    def __init__(self, name: str, path: str, source: str) -> None:
        super().__init__(name, path)
        self._source = source

    def get_code(self, fullname: str) -> CodeType:
        return compile(self._source, Path(self.path), "exec", dont_inherit=True)
