"""Packed passes equal transformers' own eager attention, for every architecture and both paths."""

from collections.abc import Callable

import pytest

from tests.unit.engine.engine_checks import CHECKS
from tests.unit.engine.reference_models import CONFIGS, LEAN, Pair, pair

WITHIN = 1e-5
Check = Callable[[Pair, float], None]


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("name", CONFIGS)
def test_general_path_equals_reference(name: str, check: Check) -> None:
    found = pair(name, lean=False)
    assert not found.engine.lean
    check(found, WITHIN)
    assert (found.engine.kv_bytes_in_use, found.engine.sessions_open) == (0, 0)


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("name", LEAN)
def test_lean_path_equals_reference(name: str, check: Check) -> None:
    found = pair(name)
    assert found.engine.lean
    check(found, WITHIN)
