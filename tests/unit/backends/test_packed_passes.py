"""Packed passes equal transformers' own eager attention, for every architecture and both paths."""

from collections.abc import Callable

import pytest

from tests.unit.backends.engine_checks import CHECKS
from tests.unit.backends.reference_models import CONFIGS, FAST_PATH, Pair, pair

WITHIN = 1e-5
Check = Callable[[Pair, float], None]


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("name", CONFIGS)
def test_generic_path_equals_reference(name: str, check: Check) -> None:
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
