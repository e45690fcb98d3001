"""The head of a distribution with a draw from the rest: what the shipped presets send, exactly."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest

from tandem.core.errors import InvalidArgument
from tandem.core.probs import Array
from tandem.core.randomness import Purpose, RandomSource, SeededRandom
from tandem.two_sided.protocol.draft_head import (
    DraftHead,
    aggregate_sent,
    head_and_rest,
)
from tandem.two_sided.protocol.local_drafting import local_draft
from tandem.two_sided.protocol.mixture import (
    Aggregated,
    Side,
    SideDraft,
    Weights,
    aggregate,
    mixture,
)
from tandem.two_sided.protocol.presets import (
    AGGREGATION_PRESETS,
    Draw,
    LocalProbs,
    ProbsPayload,
)
from tests.exact import ExactRandom, fractions, outcome_probs
from tests.virtual_time.exact_models import NumberPerDecision

HEADED = [
    *("dragon", "dragon-device", "drdg-tw", "drdg-sw"),
]
SHARES = Weights(Fraction(1, 4), Fraction(3, 4))
HALF = LocalProbs(payload=ProbsPayload.HEAD, head=2)


def drafted(choices: LocalProbs, device: Array, cloud: Array, rng: RandomSource) -> list[SideDraft]:
    drafts = []
    for side, probs in zip(Side, (device, cloud), strict=True):
        token_id, sent = local_draft(probs, choices, rng=rng, position=0, side=side)
        assert isinstance(sent, DraftHead)
        drafts.append(SideDraft(token_id, sent))
    return drafts


def decided(
    choices: LocalProbs, device: Array, cloud: Array, weights: Weights, rng: RandomSource
) -> tuple[list[SideDraft], Aggregated]:
    drafts = drafted(choices, device, cloud, rng)
    return drafts, aggregate_sent(*drafts, weights=weights, rng=rng, position=0)


def token_probs(choices: LocalProbs, device: Array, cloud: Array, weights: Weights) -> Array:
    """The exact distribution of the token, by enumerating all random choices."""

    def token(rng: ExactRandom) -> int:
        one_number = NumberPerDecision(rng)  # with Gumbel coupling, one for both drafts
        return decided(choices, device, cloud, weights, one_number)[1].token_id

    found = outcome_probs(token, once=False)
    return np.array([found.get(token, Fraction(0)) for token in range(len(device))], dtype=object)


@pytest.mark.parametrize("draw", [Draw.INDEPENDENT, Draw.GUMBEL])
def test_the_token_s_distribution_is_the_whole_mixture_whatever_the_wire_rounds(
    draw: Draw,
) -> None:
    """Thirds, fifths and sevenths: float16 holds none of them, so every token has a rest."""
    device, cloud = fractions([1, 4, 2]), fractions([1, 0, 2])
    assert head_and_rest(device, 64, "float16")[2].all()
    choices = replace(AGGREGATION_PRESETS["dragon"].probs, draw=draw)
    assert (token_probs(choices, device, cloud, SHARES) == mixture(device, cloud, SHARES)).all()


def test_so_it_is_with_more_tokens_than_the_shipped_head_has() -> None:
    """64 tokens in the head, and one beyond it, which is all that the other side likes. In binary
    fractions, with which floats reckon exactly; the drafts are enumerated once, since fractions of
    so many tokens take their time."""
    choices = AGGREGATION_PRESETS["dragon"].probs
    cloud = np.array([127] * 64 + [64]) / 8192
    device = np.eye(65)[64]
    assert np.flatnonzero(head_and_rest(cloud, choices.head, choices.precision)[2]).tolist() == [64]
    weights = Weights(0.25, 0.75)
    drafts: dict[tuple[int, int, bool], list[SideDraft]] = {}

    def draft(rng: RandomSource) -> tuple[int, int, bool]:
        both = drafted(choices, device, cloud, rng)
        sent = both[Side.CLOUD].probs
        assert isinstance(sent, DraftHead)
        assert sent.rest_id is not None
        kind = both[Side.CLOUD].token_id, sent.rest_id, sent.from_rest
        drafts[kind] = both
        return kind

    found: Counter[int] = Counter()
    for kind, share in outcome_probs(draft).items():

        def token(rng: RandomSource, both: list[SideDraft] = drafts[kind]) -> int:
            return aggregate_sent(*both, weights=weights, rng=rng, position=0).token_id

        for token_id, mass in outcome_probs(token).items():
            found[token_id] += share * mass  # type: ignore[assignment]
    assert len(drafts) == 65
    wanted = mixture(device, cloud, weights).tolist()
    assert [found[token_id] for token_id in range(65)] == [Fraction(share) for share in wanted]


def test_so_it_is_for_any_pair_any_head_and_any_weights() -> None:
    source = random.Random(3)
    for _ in range(12):
        device, cloud = (
            fractions([source.randint(0, 3) for _ in range(3)] + [1]) for _ in range(2)
        )
        weights = Weights(share := Fraction(source.randint(0, 4), 4), 1 - share)
        choices = LocalProbs(
            payload=ProbsPayload.HEAD, head=source.randint(1, 3), precision="float32"
        )
        device, cloud = dyadic(device), dyadic(cloud)
        found = token_probs(choices, device, cloud, weights)
        assert (found == mixture(device, cloud, weights)).all()


def dyadic(probs: Array) -> Array:
    """Nearby numbers that every precision holds, so that there are fewer choices to enumerate."""
    counts = [int(share * 16) for share in probs]
    counts[-1] += 16 - sum(counts)
    return fractions(counts)


def test_drafts_that_depend_on_each_other_give_the_same_mixture() -> None:
    """One number draws both: where a side's own draft stood for its rest, this would fail."""
    device, cloud = fractions([2, 1, 1]), fractions([3, 0, 1])
    choices = LocalProbs(Draw.GUMBEL, ProbsPayload.HEAD, "float32", head=1)
    found = token_probs(choices, device, cloud, SHARES)
    assert (found == mixture(device, cloud, SHARES)).all()


def test_head_and_rest_are_the_distribution_bit_for_bit() -> None:
    source = np.random.default_rng(4)
    for size in (3, 100, 5000):
        probs = source.dirichlet(np.full(size, 0.2)).astype(np.float32)
        ids, known, rest = head_and_rest(probs, 64, "float16")
        together = rest.copy()
        together[ids] += known
        assert together.tobytes() == probs.tobytes()
        assert (rest >= 0).all()
        assert np.array_equal(known.astype(np.float16), known)
        assert (known > (1 - 2**-9) * probs[ids])[known > 2**-13].all(), "rounding leaves little"


def test_where_nothing_is_left_no_token_of_the_rest_is_sent() -> None:
    sure = np.eye(4, dtype=np.float32)[2]
    token_id, head = local_draft(sure, HALF, rng=SeededRandom(1), position=0, side=Side.CLOUD)
    assert isinstance(head, DraftHead)
    assert (token_id, head.ids.tolist(), head.rest_id, head.rest_mass) == (2, [2], None, 0)


@pytest.mark.parametrize(
    ("head", "token_id"),
    [
        (DraftHead(np.array([1]), np.array([1.0])), 0),
        (DraftHead(np.array([1]), np.array([0.5])), 1),
        (DraftHead(np.array([1]), np.array([0.5]), from_rest=True), 1),
        (DraftHead(np.array([1, 2]), np.array([0.8, 0.8]), 3), 1),
        (DraftHead(np.array([1]), np.array([0.5]), 4), 1),
    ],
    ids=["draft", "mass is missing", "rest is missing", "mass above 1", "rest unknown"],
)
def test_what_no_honest_side_sends_is_refused(head: DraftHead, token_id: int) -> None:
    with pytest.raises(InvalidArgument, match=r"^probs"):
        head.validate(token_id, 4)


def test_what_the_wire_rounds_to_nothing_is_not_in_the_head() -> None:
    """Half precision begins at 2^-24: a likely token of less than that is left to the rest."""
    probs = np.array([1 - 2.0**-30, 2.0**-30, 0.0])
    ids, known, rest = head_and_rest(probs, 3, "float16")
    assert (ids.tolist(), known.tolist()) == ([0], [1 - 2.0**-11])
    assert rest.tolist() == [2.0**-11 - 2.0**-30, 2.0**-30, 0.0]


@pytest.mark.parametrize(
    ("head", "token_id"),
    [
        (DraftHead(np.array([1]), np.array([0.9995])), 1),
        (DraftHead(np.array([1]), np.array([1.0005])), 1),
        (DraftHead(np.array([1]), np.array([0.25]), 3), 1),
        (DraftHead(np.array([1]), np.array([0.25]), 3, from_rest=True), 2),
        (DraftHead(np.array([1]), np.array([0.25]), 0), 1),
    ],
    ids=["rounded down", "rounded up", "with a rest", "of the rest", "the first token left"],
)
def test_what_an_honest_side_sends_is_taken(head: DraftHead, token_id: int) -> None:
    head.validate(token_id, 4)
    assert head.rest_mass == (0 if head.rest_id is None else 0.75)


@pytest.mark.parametrize(
    ("head", "token_id"),
    [
        (DraftHead(np.array([1]), np.array([0.9985])), 1),
        (DraftHead(np.array([1]), np.array([1.0015])), 1),
        (DraftHead(np.array([1]), np.array([0.25]), -1), 1),
        (DraftHead(np.array([1]), np.array([0.25]), 3), 2),
    ],
    ids=["too little", "too much", "no token", "another draft"],
)
def test_a_little_more_or_less_is_refused(head: DraftHead, token_id: int) -> None:
    with pytest.raises(InvalidArgument, match=r"^probs"):
        head.validate(token_id, 4)


def test_whole_distributions_are_aggregated_as_they_are() -> None:
    """Where presets cut what is drawn from, all that is left is sent."""
    source = np.random.default_rng(8)
    weights = Weights(0.3, 0.7)
    for seed in range(20):
        device, cloud = source.dirichlet(np.full(5, 0.6), 2)
        rng = SeededRandom(seed)
        drafts = [
            rng.categorical(probs, 0, Purpose.DRAFT, side)
            for side, probs in zip(Side, (device, cloud), strict=True)
        ]
        found = aggregate_sent(
            SideDraft(drafts[0], device),
            SideDraft(drafts[1], cloud),
            weights=weights,
            rng=rng,
            position=0,
        )
        assert found == aggregate(
            SideDraft(drafts[0], device),
            SideDraft(drafts[1], cloud),
            weights=weights,
            rng=rng,
            position=0,
        )
