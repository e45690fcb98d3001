"""DRAGON's equations against the product's own acceptance, enumerated, and against the paper."""

from __future__ import annotations

from collections import Counter
from fractions import Fraction
from functools import partial

import pytest

from lab.analysis.dragon_equations import (
    expected_acceptance,
    expected_head_acceptance,
    speedup_over_synchronous,
)
from tandem.core.randomness import RandomSource
from tandem.two_sided.protocol.mixture import Side
from tandem.two_sided.protocol.placement import BothSides
from tandem.two_sided.protocol.presets import LocalProbs, ProbsPayload
from tests.exact import fractions, outcome_probs
from tests.unit.two_sided.test_draft_head import SHARES, decided
from tests.unit.two_sided.test_mixture import cases, draw_and_aggregate
from tests.unit.two_sided.test_side_scheduler import sides


def test_a_side_s_acceptance_is_as_expected() -> None:
    for case in cases(seed=3, count=30):
        device, cloud, weights = case
        probs = outcome_probs(partial(draw_and_aggregate, *case))
        accepted = sum(share for (_, one), share in probs.items() if one.accepted(Side.DEVICE))
        assert accepted == expected_acceptance(device, cloud, weights.device)


def test_equal_distributions_keep_their_drafts_as_often_as_they_agree() -> None:
    probs = fractions([1, 2, 0, 3])
    half = Fraction(1, 2)
    assert expected_acceptance(probs, probs, half) == (1 + (probs * probs).sum()) / 2


def test_the_acceptance_of_heads_is_as_expected() -> None:
    device, cloud = fractions([5, 1, 1, 1]), fractions([2, 3, 2, 1])
    for top in (1, 2, 3):
        choices = LocalProbs(payload=ProbsPayload.HEAD, head=top, precision="float32")
        counts: Counter[Side] = Counter()

        def accepted(rng: RandomSource) -> tuple[bool, bool]:
            _, one = decided(choices, device, cloud, SHARES, rng)  # noqa: B023
            return one.device_accepted, one.cloud_accepted

        for (of_device, of_cloud), share in outcome_probs(accepted).items():
            counts[Side.DEVICE] += share * of_device  # type: ignore[assignment]
            counts[Side.CLOUD] += share * of_cloud  # type: ignore[assignment]
        for own, other, weight, side in (
            (device, cloud, SHARES.device, Side.DEVICE),
            (cloud, device, SHARES.cloud, Side.CLOUD),
        ):
            expected = expected_head_acceptance(own, other, weight, top=top, precision="float32")
            assert counts[side] == expected
            assert expected <= expected_acceptance(own, other, weight)


@pytest.mark.parametrize(
    ("both", "wanted"),
    [
        (sides(0.06, 0.06, 0.3, 0.5, 0.5), 1 / (1 - 0.5 / (1 + 0.06 / 0.3))),
        (sides(0.11, 0.04, 0.3, 0.5, 0.8), 1 / (1 - (1 - 0.11 / 0.34) * 0.8)),
        (sides(0.5, 0.04, 0.3, 0.5, 0.8), 1.0),
    ],
)
def test_the_speedup_is_theorem_6_2(both: BothSides, wanted: float) -> None:
    assert speedup_over_synchronous(both) == pytest.approx(wanted)
