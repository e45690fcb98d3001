"""Just inside and just outside of what is allowed or cut."""

from __future__ import annotations

import numpy as np
import pytest

from tandem.core.errors import InvalidArgument
from tandem.core.probs import keep_nucleus
from tandem.core.stopping import check_stops
from tandem.core.tree import check_parents
from tandem.core.truncation import Truncation, truncate


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
