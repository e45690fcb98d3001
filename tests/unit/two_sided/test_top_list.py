"""The certified argmax is the mixture's own, and is named as soon as nothing else is possible."""

import numpy as np
import pytest

from tandem.core.errors import InvalidArgument
from tandem.core.probs import Array
from tandem.two_sided.protocol.mixture import Weights, mixture
from tandem.two_sided.protocol.top_list import TopList, certified_argmax, received_list, top_list


def random_distributions(seed: int, vocabulary: int) -> tuple[Array, Array, Weights]:
    source = np.random.default_rng(seed)
    # Few levels: ties are common.
    distributions = source.integers(1, 5, size=(2, vocabulary)).astype(np.float32) ** 2
    distributions /= distributions.sum(axis=1, keepdims=True)
    share = float(source.choice([0.0, 0.25, 0.5, 0.61, 1.0]))
    return distributions[0], distributions[1], Weights(share, 1 - share)


def as_received(probs: Array, count: int) -> TopList:
    """Over the wire: without its bound."""
    sent = top_list(probs, count)
    return received_list(sent.ids, sent.probs, float(sent.tail_mass), len(probs))


@pytest.mark.parametrize("also", [False, True], ids=["lists", "own distribution at hand"])
def test_what_is_certified_is_the_argmax(also: bool) -> None:
    certified = 0
    for seed in range(400):
        device, cloud, weights = random_distributions(seed, 12)
        brute = int(mixture(device, cloud, weights).argmax())
        for count in (1, 2, 4, 8):
            theirs = as_received(cloud, count)
            own = top_list(device, count, theirs.ids if also else None)
            found = certified_argmax((own, theirs), weights)
            assert found in (None, brute), (seed, count)
            certified += found is not None
        assert certified_argmax((top_list(device, 12), as_received(cloud, 12)), weights) == brute
    assert certified > 200, "short lists should often be enough"


def test_no_token_is_certified_that_another_completion_of_the_lists_beats() -> None:
    """Token 2 is in neither list and would win: both sides have as much of it as they may."""
    device = np.array([0.4, 0.0, 0.3, 0.3], dtype=np.float32)
    cloud = np.array([0.0, 0.4, 0.3, 0.3], dtype=np.float32)
    assert certified_argmax((top_list(device, 1), top_list(cloud, 1)), Weights(0.5, 0.5)) is None
    assert certified_argmax((top_list(device, 3), top_list(cloud, 3)), Weights(0.5, 0.5)) == 2


def lists(ids: list[int], probs: list[float], rest: float) -> TopList:
    """As it came from a peer whose vocabulary has 4 tokens."""
    return received_list(np.array(ids, dtype=int), np.array(probs, dtype=np.float32), rest, 4)


@pytest.mark.parametrize(
    ("ids", "probs", "rest", "field"),
    [
        ([], [], 1.0, "ids"),
        ([1, 1], [0.5, 0.5], 0.0, "ids"),
        ([1, 4], [0.5, 0.5], 0.0, "ids"),
        ([1], [float("nan")], 0.0, "probabilities"),
        ([1], [0.5], float("nan"), "tail_mass"),
        ([-1, 2], [0.5, 0.5], 0.0, "ids"),
        ([2, 1], [0.5, 0.5], 0.0, "ids"),
        ([1], [0.5, 0.5], 0.0, "ids"),
        ([1], [1.5], -0.5, "probabilities"),
        ([1, 2], [-0.5, 1.0], 0.5, "probabilities"),
        ([1, 2], [0.5, 0.75], -0.25, "tail_mass"),
        ([1], [0.5], 0.498, "tail_mass"),
        ([1], [0.5], 0.502, "tail_mass"),
    ],
)
def test_just_outside_of_what_a_list_may_be(
    ids: list[int], probs: list[float], rest: float, field: str
) -> None:
    with pytest.raises(InvalidArgument) as caught:
        lists(ids, probs, rest)
    assert caught.value.field == field


@pytest.mark.parametrize(
    ("ids", "probs", "rest"),
    [
        ([0, 3], [1.0, 0.0], 0.0),
        ([1], [0.5], 0.4995),
        ([1], [0.5], 0.5005),
        ([0, 1, 2, 3], [0.25] * 4, 0.0),
    ],
)
def test_just_inside_of_it(ids: list[int], probs: list[float], rest: float) -> None:
    found = lists(ids, probs, rest)
    assert (found.ids.tolist(), found.probs.tolist()) == (ids, probs)
    assert found.tail_mass == pytest.approx(rest)
    assert found.tail_bound == pytest.approx(min(rest, *probs))


def test_a_list_has_the_largest_entries_what_else_was_asked_for_and_a_bound_of_the_rest() -> None:
    probs = np.array([0.0625, 0.5, 0.125, 0.25, 0.0625])
    alone = top_list(probs, 2)
    assert (alone.ids.tolist(), alone.probs.tolist()) == ([1, 3], [0.5, 0.25])
    assert (alone.tail_mass, alone.tail_bound) == (0.25, 0.25)
    more = top_list(probs, 2, np.array([0, 3]))
    assert (more.ids.tolist(), more.probs.tolist()) == ([0, 1, 3], [0.0625, 0.5, 0.25])
    assert (more.tail_mass, more.tail_bound) == (0.1875, 0.1875), "no more than is left"
    flat = top_list(np.full(4, 0.25), 1)
    assert (flat.tail_mass, flat.tail_bound) == (0.75, 0.25), "nor than the least that is listed"
    assert top_list(probs, 5).tail_mass == 0


def test_of_equal_tokens_the_lower_is_certain_and_a_rest_as_likely_is_not_ruled_out() -> None:
    half = np.array([0.5, 0.5, 0.0, 0.0])
    assert certified_argmax([top_list(half, 2), top_list(half, 2)], Weights(0.5, 0.5)) == 0
    short = top_list(half, 1)
    assert certified_argmax([short, short], Weights(0.5, 0.5)) is None
