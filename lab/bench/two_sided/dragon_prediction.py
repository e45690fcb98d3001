"""What a two-sided answer should take, from acceptance and declared times, before it is run.

For an aggregator: DRAGON's eq. 7, whose ratio to waiting for every token is Theorem 6.2. For the
coupled form, which the paper does not have, the recursion below. Times in seconds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

import numpy as np

from lab.analysis.dragon_equations import expected_acceptance, expected_head_acceptance
from lab.bench.two_sided.dragon_probs import Question
from tandem.core.probs import Array, truncate
from tandem.core.randomness import Purpose, SeededRandom
from tandem.two_sided.protocol.mixture import (
    Side,
    Weights,
    coupled_side,
    side_weights,
)
from tandem.two_sided.protocol.placement import BothSides, SideTimes, token_time_s
from tandem.two_sided.protocol.presets import LocalProbs, ProbsPayload

REPEATS = 50
"""Runs of the recursion for each answer's coins."""


@dataclass(frozen=True, slots=True)
class Acceptance:
    """Along the texts of some answers: by Algorithm 1 (the corrected eq. 5), of each side; how
    often Gumbel coupling gives both sides one token; how far the two distributions are apart."""

    device: float
    cloud: float
    agreement: float
    distance: float


def measure_acceptance(
    questions: Sequence[Question], choices: LocalProbs, seed: int, tokens: int
) -> Acceptance:
    """Return the acceptance along answers to the questions. `choices`: how an aggregator's drafts
    are drawn, and what it knows of their distributions."""
    rates: list[tuple[float, float, float, float]] = []
    for number, question in enumerate(questions):
        rates += _along_one(question, choices, SeededRandom(seed + number), tokens)
    return Acceptance(*(fmean(column) for column in zip(*rates, strict=True)))


def _along_one(
    question: Question, choices: LocalProbs, rng: SeededRandom, tokens: int
) -> list[tuple[float, float, float, float]]:
    """Return the rates at each position of an answer that is drawn from the mixture by the coin."""
    weights = side_weights(question.device.log_mass, question.cloud.log_mass)
    context = question.prompt_ids
    rates = []
    for _ in range(tokens):
        distributions = question.device(context), question.cloud(context)
        drafts = [
            rng.gumbel_categorical(probs, len(context), Purpose.DRAFT) for probs in distributions
        ]
        device, cloud = (truncate(probs, choices.truncation) for probs in distributions)
        rates.append(
            (
                rate_of(choices, device, cloud, weights.device),
                rate_of(choices, cloud, device, weights.cloud),
                float(drafts[0] == drafts[1]),
                float(np.maximum(distributions[0] - distributions[1], 0).sum()),
            )
        )
        context = (*context, drafts[coupled_side(weights, rng, len(context))])
    return rates


def rate_of(choices: LocalProbs, own_probs: Array, other_probs: Array, own_weight: float) -> float:
    """Return how often a side's draft is accepted, by the distributions [V] that are drawn from."""
    if choices.payload is not ProbsPayload.HEAD:
        return float(expected_acceptance(own_probs, other_probs, own_weight))
    return float(
        expected_head_acceptance(
            own_probs, other_probs, own_weight, top=choices.head, precision=choices.precision
        )
    )


@dataclass(frozen=True, slots=True)
class Times:
    """Declared: a decoding step of each side, and the way there and back."""

    device_s: float
    cloud_s: float
    rtt_s: float

    def sides(self, acceptance: Acceptance) -> BothSides:
        return BothSides(
            SideTimes(self.device_s, self.rtt_s / 2, acceptance.device),
            SideTimes(self.cloud_s, self.rtt_s / 2, acceptance.cloud),
        )


def aggregated_s(times: Times, acceptance: Acceptance, at: Side | None) -> float:
    """Return the seconds a token with the aggregation at one side; None: at the better of the
    two."""
    both = times.sides(acceptance)
    return min(token_time_s(both, side) for side in (Side if at is None else (at,)))


def synchronous_s(times: Times) -> float:
    """Return the seconds a token where both sides wait for each other every time, aggregating at
    the device: eq. 7 with nothing accepted."""
    return max(times.device_s, times.cloud_s + times.rtt_s)


def coupled_s(
    times: Times, acceptance: Acceptance, owners: Sequence[Sequence[Side]], seed: int
) -> float:
    """Return the seconds a token by coin, where the sides agree independently at each position.

    `owners`: for some answers, the side whose token counts at each position, which the coin decides
    beforehand. The token is ready when that side has decoded it. Where the other side had drawn the
    same token it goes on undisturbed; else it goes on when the token has come.
    """
    source = np.random.default_rng(seed)
    step_s = {Side.DEVICE: times.device_s, Side.CLOUD: times.cloud_s}
    means_s = []
    for coins in [coins for coins in owners for _ in range(REPEATS)]:
        ready = dict(step_s)
        shown_s: list[float] = []
        for owner in coins:
            other = owner.other
            token_s = ready[owner]
            heard_s = token_s + times.rtt_s / 2
            shown_s.append(token_s if owner is Side.DEVICE else heard_s)
            # A token that comes during the other side's own step for it ends that step.
            known_s = max(heard_s, ready[other] - step_s[other])
            agreed = source.random() < acceptance.agreement
            from_s = min(known_s, ready[other]) if agreed else known_s
            ready = {owner: token_s + step_s[owner], other: from_s + step_s[other]}
        shown = np.maximum.accumulate(shown_s)
        means_s.append((shown[-1] - shown[0]) / (len(coins) - 1))
    return float(np.mean(means_s))


def owners_of(question: Question, seed: int, tokens: int) -> list[Side]:
    """Return whose token counts at each position of an answer, by the coin that both sides know."""
    weights = side_weights(question.device.log_mass, question.cloud.log_mass)
    return owners_between(weights, len(question.prompt_ids), tokens, seed)


def owners_between(weights: Weights, start: int, tokens: int, seed: int) -> list[Side]:
    """Return whose token counts at `tokens` positions from `start` on, by the coin that both sides
    know."""
    rng = SeededRandom(seed)
    return [coupled_side(weights, rng, start + number) for number in range(tokens)]
