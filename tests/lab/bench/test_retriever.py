"""The parts of `bench retriever` that its figures rest on."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from lab.bench.documents.retriever import (
    large_folder,
    own_weight,
)
from tests.lab.killed_writer import kill_trial


def test_a_large_folder_is_searched_as_exactly_as_it_can_be(tmp_path: Path) -> None:
    source = np.random.default_rng(1)
    vectors = source.standard_normal((40, 16)).astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    row = large_folder(tmp_path / "index", vectors, ["w1 w2", "w7"], 300, seed=1)
    assert (row["index"], row["passages"]) == ("flat", 300)
    assert row["recall_at_10"] >= 0.95


def test_the_weight_of_one_s_own_is_its_share_of_the_exponentials() -> None:
    relevances = [1000.0 + np.log(weight) for weight in (5, 3, 2)]
    assert own_weight(relevances, [True, False, True]) == pytest.approx(0.7)
    assert own_weight(relevances, [False, True, False]) == pytest.approx(0.3)


@pytest.mark.parametrize(("seed", "after"), [(1, 1), (2, 9), (3, 60)])
def test_a_killed_writer_loses_nothing_that_it_acknowledged(
    tmp_path: Path, seed: int, after: int
) -> None:
    assert kill_trial(tmp_path, seed, after) >= after
