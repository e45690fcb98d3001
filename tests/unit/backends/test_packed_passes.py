"""Packed passes equal transformers' own eager attention, for every architecture and both paths."""

from collections.abc import Callable

import pytest

from tests.long_runs import with_long_cases
from tests.unit.backends.engine_checks import CHECKS
from tests.unit.backends.reference_models import CONFIGS, FAST_PATH, Pair, pair

WITHIN = 1e-5
Check = Callable[[Pair, float], None]


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize(
    "name",
    with_long_cases(CONFIGS, ["llama", *(name for name in CONFIGS if name not in FAST_PATH)]),
)
def test_generic_path_equals_reference(name: str, check: Check) -> None:
    """`make test` has one of those that usually go the other path, and all that cannot."""
    found = pair(name, fast_path=False)
    assert not found.engine.fast_path
    check(found, WITHIN)
    assert (found.engine.kv_bytes_in_use, found.engine.sessions_open) == (0, 0)


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("name", FAST_PATH)
def test_llama_path_equals_reference(name: str, check: Check) -> None:
    found = pair(name)
    assert found.engine.fast_path
    check(found, WITHIN)
