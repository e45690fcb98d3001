"""A mutant put into a running process: the code of one function becomes another.

Everything is imported once then, and all that refers to the function follows. What a module
computes while it is imported (constants, defaults, classes) cannot be changed so.
"""

from __future__ import annotations

import functools
import gc
import inspect
from collections import defaultdict
from pathlib import Path
from types import CodeType, FunctionType

Change = tuple[CodeType, CodeType]


def changed_function(before: str, after: str) -> Change | None:
    """The code of the only function in which two sources of a module differ, in both; None where
    they differ elsewhere."""
    old, new = (compile(source, "", "exec", dont_inherit=True) for source in (before, after))
    changes = _changes(old, new)
    if changes is None or len(changes) != 1:
        return None
    old, new = changes[0]
    return (old, new) if old.co_freevars == new.co_freevars else None


def _changes(before: CodeType, after: CodeType) -> list[Change] | None:
    if before.co_flags & inspect.CO_OPTIMIZED:  # a function, not the body of a module or class
        return [] if before == after else [(before, after)]
    if (before.co_code, before.co_names) != (after.co_code, after.co_names):
        return None
    found: list[Change] = []
    for old, new in zip(before.co_consts, after.co_consts, strict=True):
        if not isinstance(old, CodeType) or not isinstance(new, CodeType):
            below: list[Change] | None = [] if repr(old) == repr(new) else None
        else:
            below = _changes(old, new)
        if below is None:
            return None
        found += below
    return found


class LiveFunctions:
    """The functions of a folder's modules in this process, by their code."""

    def __init__(self, folder: Path) -> None:
        self._by_code = defaultdict[CodeType, list[FunctionType]](list)
        within = f"{folder}/"
        for thing in _all_objects():
            if type(thing) is FunctionType and thing.__code__.co_filename.startswith(within):
                self._by_code[thing.__code__].append(thing)

    def __contains__(self, code: CodeType) -> bool:
        return code in self._by_code

    def replace(self, before: CodeType, after: CodeType) -> None:
        for function in self._by_code[before]:
            function.__code__ = after


def forget_results() -> None:
    """Of all functions that keep them: a mutant's may be others."""
    for thing in _all_objects():
        if type(thing) is functools._lru_cache_wrapper:
            thing.cache_clear()


def _all_objects() -> list[object]:
    """All that the collector knows, also what `tests/conftest.py` has taken out of its sight: what
    was imported before the first test."""
    gc.unfreeze()
    return gc.get_objects()
