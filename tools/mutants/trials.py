"""Tests under a mutant that is imported, in a process forked before anything of Tandem is imported.

The mutant exists in that process's memory only, so several run at once over one checkout, and an
interrupted run leaves nothing behind.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import resource
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, ModuleType

import hypothesis  # noqa: F401
import numpy  # noqa: F401  # so are the next: imported once, before the forks
import pytest
import pytest_asyncio  # noqa: F401

CPU_S = 90
"""What tests may take under a mutant that never ends."""

FLAGS = ("-x", "-q", "--no-header", "--tb=line", "-o", "timeout=3600")
WITHOUT = ("-p", "no:cacheprovider", "-p", "no:xdist")


@dataclass(frozen=True, slots=True)
class Trial:
    """Tests, stage by stage, with one module (a dotted name) replaced by another source."""

    tests: Sequence[Sequence[str]]
    module: str
    source: Callable[[], str]

    def run(self) -> int:
        resource.setrlimit(resource.RLIMIT_CPU, (CPU_S, CPU_S))
        assert not any(name.split(".")[0] == "tandem" for name in sys.modules)
        sys.meta_path.insert(0, _Replacing(self.module, self.source()))
        for files in self.tests:
            if code := pytest.main([*FLAGS, *WITHOUT, *files]):
                return int(code)
        return 0


class _Replacing(importlib.abc.MetaPathFinder):
    """Finds one module: the mutant."""

    def __init__(self, module: str, source: str) -> None:
        self._module = module
        self._source = source

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
