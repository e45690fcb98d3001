"""Just inside and just outside of what is allowed or cut."""

from __future__ import annotations

import numpy as np
import pytest

from tandem.core.codecs import sparse_probs_from_bytes, sparse_probs_to_bytes
from tandem.core.errors import InvalidArgument
from tandem.core.probs import Truncation, keep_nucleus, truncate
from tandem.core.randomness import Purpose, SeededRandom
from tandem.core.sparse_payload import SparsePayload
from tandem.core.stopping import check_stops
from tandem.core.tree import check_parents


def test_nodes_that_come_after_others_may_have_those_as_parents() -> None:
    check_parents((2, 3), 2, first=3)
    for parents, first in (((3, 3), 3), ((2, 4), 3), ((0,), 0), ((-2,), 3)):
        with pytest.raises(InvalidArgument):
            check_parents(parents, len(parents), first=first)
    check_parents((-1, 0, 1), 3)


def test_a_nucleus_of_all_cuts_nothing() -> None:
    """Not even what rounding would lose at its border."""
    probs = np.array([1.0, 1e-20, 1e-20, 0.0], dtype=np.float32)
    assert np.count_nonzero(truncate(probs, Truncation(top_k=3, top_p=1.0))) == 3
    assert np.count_nonzero(truncate(probs, Truncation(top_k=2, top_p=1.0))) == 2
    assert np.count_nonzero(truncate(probs, Truncation(top_k=3, top_p=0.999))) == 1


def test_the_border_of_a_nucleus_is_found_in_double_precision() -> None:
    """Half of 65,536 equal weights, whose sums in single precision go astray."""
    weights = np.full(2**16, 0.1, dtype=np.float32)
    keep_nucleus(weights, 0.5)
    assert np.count_nonzero(weights) == 2**15
    assert weights[: 2**15].all()


def test_sixteen_stop_strings_of_256_characters_are_allowed() -> None:
    check_stops(["s" * 256] * 16)
    check_stops(["s"])
    check_stops([])
    for stops in (["s"] * 17, ["s" * 257], ["s", ""]):
        with pytest.raises(InvalidArgument):
            check_stops(stops)


class Highest(SeededRandom):
    """Draws what rounding could make of the highest number."""

    def uniform(self, position: int, purpose: Purpose, draw: int = 0) -> float:
        return 1.0


@pytest.mark.parametrize(
    ("weights", "drawn"), [((0.25, 0.75), 1), ((0.25, 0.75, 0.0), 1), ((1.0, 0.0, 0.0), 0)]
)
def test_past_the_end_lies_the_last_entry_of_any_weight(
    weights: tuple[float, ...], drawn: int
) -> None:
    assert Highest(1).categorical(np.array(weights), 5, Purpose.DRAFT) == drawn
    wide = np.zeros(200, dtype=np.float32)
    wide[:130] = 1.0
    assert Highest(1).categorical(wide, 5, Purpose.DRAFT) == 129


@pytest.mark.parametrize("ids", [(1, 3, 2), (2, 1, 3), (1, 1, 2), (1, 2, 2)])
def test_ids_ascend_from_the_first_to_the_last(ids: tuple[int, ...]) -> None:
    payload = SparsePayload(np.array(ids), np.full(3, 0.25), 0.25, np.array([0]), np.array([0.25]))
    with pytest.raises(InvalidArgument, match="ids: not in ascending order"):
        payload.validate(4)


def test_the_last_id_of_a_sparse_distribution_is_one_of_the_vocabulary() -> None:
    last = np.array([0.5, 0.0, 0.0, 0.0, 0.5], dtype=np.float32)
    raw = sparse_probs_to_bytes(last, "float32")
    np.testing.assert_array_equal(sparse_probs_from_bytes(raw, 5, "float32", "probs"), last)
    for size in (4, 3):
        with pytest.raises(InvalidArgument, match=r"probs: id 4 is not in \[0, "):
            sparse_probs_from_bytes(raw, size, "float32", "probs")
