"""Grids of which `make test` runs a part, and `make test-long` the rest; and single tests that take
many seconds by themselves, which are marked `LONG` where a cheaper test meets the same code.

A part is enough for every run where each of its cases meets what all have in common, and another,
cheaper test meets what each has for itself; or where only a change of one room can break the rest,
after which `.ci/run` runs them all (.ci/stages.toml).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

import pytest

LONG = pytest.mark.long


def with_long_cases(cases: Iterable[Any], every_run: Collection[Any]) -> list[Any]:
    """Arguments of `parametrize`: all `cases`, but those that are not in `every_run` are for
    `make test-long` alone."""
    cases = list(cases)
    unknown = [case for case in every_run if case not in cases]
    if unknown:
        raise ValueError(f"no such cases: {unknown}")
    return [case if case in every_run else pytest.param(case, marks=LONG) for case in cases]
