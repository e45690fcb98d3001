"""The parts of `bench retriever` that its figures rest on."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from lab.bench.documents.retriever import (
    blended,
    exact_neighbours,
    large_folder,
    own_weight,
    recall,
)
from lab.bench.harness.texts import read_peps
from tandem.core.errors import TandemError
from tests.lab.killed_writer import change, expected, kill_trial


def test_blended_vectors_are_unit_and_near_what_they_are_made_of() -> None:
    real = np.linalg.qr(np.random.default_rng(1).standard_normal((64, 5)))[0].T.astype(np.float32)
    rows = blended(real, 200, seed=2)
    assert np.linalg.norm(rows, axis=1) == pytest.approx(1, abs=1e-5)
    assert ((rows @ real.T) ** 2).sum(axis=1).min() > 0.7
    assert np.array_equal(rows, blended(real, 200, seed=2))


def test_brute_force_lists_the_nearest_first() -> None:
    rows = np.eye(12, dtype=np.float32)
    query = np.arange(12, dtype=np.float32)
    assert exact_neighbours(rows, query[None], 10).tolist() == [list(range(11, 1, -1))]


def test_recall_is_the_share_of_the_true_ones() -> None:
    assert recall(np.array([[1, 2], [3, 4]]), np.array([[2, 9], [4, 3]])) == 0.75


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


def test_the_writer_s_changes_can_be_computed_without_it() -> None:
    texts: dict[str, str] = {}
    for number in range(40):
        documents, removed = change(3, number)
        texts.update({document.id: document.text for document in documents})
        for name in removed:
            texts.pop(name, None)
    assert texts == expected(3, 40) != expected(4, 40)


def test_a_missing_corpus_is_named(tmp_path: Path) -> None:
    with pytest.raises(TandemError, match=r"none\.jsonl: cannot be read"):
        read_peps(tmp_path / "none.jsonl")


@pytest.mark.parametrize(("seed", "after"), [(1, 1), (2, 9), (3, 60)])
def test_a_killed_writer_loses_nothing_that_it_acknowledged(
    tmp_path: Path, seed: int, after: int
) -> None:
    assert kill_trial(tmp_path, seed, after) >= after
