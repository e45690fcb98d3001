"""The kept inputs of the fuzzer, those that once made a decoder fail among them, without it."""

from __future__ import annotations

import pytest

from tests.fuzz.run import CORPUS
from tests.fuzz.targets import TARGETS


@pytest.mark.parametrize("name", TARGETS)
def test_kept_inputs_raise_nothing_but_what_is_declared(name: str) -> None:
    kept = sorted((CORPUS / name).iterdir())
    assert kept, "each target begins with something"
    for path in kept:
        TARGETS[name](path.read_bytes())


def test_the_corpus_is_of_targets_that_there_are_and_small() -> None:
    assert {folder.name for folder in CORPUS.iterdir()} == TARGETS.keys()
    sizes = {
        folder.name: sum(path.stat().st_size for path in folder.iterdir())
        for folder in CORPUS.iterdir()
    }
    assert max(sizes.values()) < 64 * 2**10, sizes
