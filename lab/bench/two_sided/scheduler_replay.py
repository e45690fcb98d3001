"""Recorded acceptance decisions, replayed through both sides' real machines (DRAGON §7.4).

Recording: along an answer drawn from the mixture, which side's draft was the token. Replaying: at
temperature 0 two distributions over three tokens make any such record come true. The mixture's
argmax is token 0 everywhere; a side whose draft was rejected has a likelier token of its own. So
every strategy meets the same decisions at the same positions, whatever it does in between.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import TypeVar

import numpy as np

from lab.analysis.dragon_equations import expected_acceptance
from lab.bench.two_sided.dragon_probs import Question
from tandem.core.probs import Array, SamplingParams, truncate
from tandem.core.randomness import SeededRandom
from tandem.netem.link_model import LinkPair
from tandem.testing.simulation.two_sided_answer import (
    PlacementFor,
    SimulatedSide,
    TwoSidedAnswer,
    simulate_two_sided,
)
from tandem.two_sided.protocol.draft_head import aggregate_sent
from tandem.two_sided.protocol.local_drafting import local_draft
from tandem.two_sided.protocol.messages import AggregationRequest
from tandem.two_sided.protocol.mixture import Side, SideDraft, Weights, side_weights
from tandem.two_sided.protocol.presets import AggregationPreset
from tandem.two_sided.protocol.profiler import SideProfiler

Value = TypeVar("Value")

PROMPT = (0,)
_ACCEPTED = np.array([1.0, 0.0, 0.0], dtype=np.float32)
_REJECTED = {
    Side.DEVICE: np.array([0.4, 0.6, 0.0], dtype=np.float32),
    Side.CLOUD: np.array([0.4, 0.0, 0.6], dtype=np.float32),
}


@dataclass(frozen=True, slots=True)
class Record:
    """Whether each side's draft was the token, position by position, how likely that was by both
    distributions (eq. 5), and what its steps took relative to their median."""

    accepted: Mapping[Side, tuple[bool, ...]]
    expected: Mapping[Side, tuple[float, ...]]
    step_shares: Mapping[Side, tuple[float, ...]]

    def rotated(self, share: float) -> Record:
        """Return the same decisions and steps, beginning `share` of the way in: another sequence at
        no cost."""
        return Record(
            {side: _rotated(self.accepted[side], share) for side in Side},
            {side: _rotated(self.expected[side], share) for side in Side},
            {side: _rotated(self.step_shares[side], share) for side in Side},
        )

    def rate(self, side: Side) -> float:
        return sum(self.accepted[side]) / len(self.accepted[side])


def record(
    question: Question, preset: AggregationPreset, shift: float, seed: int, tokens: int
) -> Record:
    """Return the record of an answer of `tokens` tokens; `shift` is added to the device's h."""
    rng = SeededRandom(seed)
    weights = side_weights(question.device.log_mass + shift, question.cloud.log_mass)
    context = question.prompt_ids
    accepted: dict[Side, list[bool]] = {side: [] for side in Side}
    expected: dict[Side, list[float]] = {side: [] for side in Side}
    steps_s: dict[Side, list[float]] = {side: [] for side in Side}
    for _ in range(tokens):
        drafts = {}
        distributions = {}
        for side, probs_of in ((Side.DEVICE, question.device), (Side.CLOUD, question.cloud)):
            began_s = time.perf_counter()
            probs = probs_of(context)
            steps_s[side].append(time.perf_counter() - began_s)
            distributions[side] = truncate(probs, preset.probs.truncation)
            drafts[side] = _draft(probs, preset, rng, len(context), side)
        token = _token(drafts, weights, rng, len(context))
        for side in Side:
            own = distributions[side]
            other = distributions[side.other]
            expected[side].append(float(expected_acceptance(own, other, weights[side])))
            accepted[side].append(drafts[side].token_id == token)
        context = (*context, token)
    return Record(
        {side: tuple(accepted[side]) for side in Side},
        {side: tuple(expected[side]) for side in Side},
        {side: _shares(steps_s[side]) for side in Side},
    )


def _draft(
    probs: Array, preset: AggregationPreset, rng: SeededRandom, position: int, side: Side
) -> SideDraft:
    token, sent = local_draft(probs, preset.probs, rng=rng, position=position, side=side)
    assert sent is not None, "an aggregator's drafts carry distributions"
    return SideDraft(token, sent)


def _token(
    drafts: dict[Side, SideDraft], weights: Weights, rng: SeededRandom, position: int
) -> int:
    return aggregate_sent(
        drafts[Side.DEVICE],
        drafts[Side.CLOUD],
        weights=weights,
        rng=rng,
        position=position,
    ).token_id


def _shares(steps_s: Sequence[float]) -> tuple[float, ...]:
    """Return how the model's steps vary around their median. A distribution known from another
    record took no time, and a step far from the median was held up by other processes: both are
    left out."""
    typical_s = median(steps_s)
    shares = (step_s / typical_s for step_s in steps_s)
    return tuple(share for share in shares if 0.75 < share < 1.25) or (1.0,)


def _rotated(values: tuple[Value, ...], share: float) -> tuple[Value, ...]:
    at = int(share * len(values))
    return (*values[at:], *values[:at])


def replay(
    recorded: Record,
    preset: AggregationPreset,
    step_s: dict[Side, float],
    link: LinkPair,
    placement_policy_for: PlacementFor,
    tokens: int,
    *,
    traced: bool = False,
) -> TwoSidedAnswer:
    """Return the record's answer under a preset's placement, in virtual time."""
    request = AggregationRequest(
        session=1,
        prompt_ids=PROMPT,
        vocabulary_hash="replay",
        vocabulary_size=3,
        sampling=SamplingParams(0.0),
        seed=1,
        max_tokens=tokens,
        preset=preset,
        ignore_eos=True,
    )
    device, cloud = (_side(recorded, side, step_s[side]) for side in Side)
    answer = simulate_two_sided(
        request, device, cloud, link, placement_policy_for=placement_policy_for, traced=traced
    )
    assert set(answer.token_ids) == {0}, "the record came true"
    return answer


def _side(recorded: Record, side: Side, step_s: float) -> SimulatedSide:
    accepted = recorded.accepted[side]
    shares = recorded.step_shares[side]

    def probs_of(context: tuple[int, ...]) -> Array:
        at = len(context) - len(PROMPT)
        return _ACCEPTED if at >= len(accepted) or accepted[at] else _REJECTED[side]

    return SimulatedSide(probs_of, 0.0, lambda step: step_s * shares[step % len(shares)])


class ExpectingProfiler(SideProfiler):
    """Follows how likely each draft was to be accepted (DRAGON §5.2: eq. 5 and a moving average),
    not whether it was. Only the side that aggregates has both distributions: of what the other side
    decided, the outcome is all that it knows."""

    def __init__(self, recorded: Record) -> None:
        super().__init__()
        self._recorded = recorded
        self._outcomes: list[tuple[Side, float]] = []

    def verified(self, side: Side, accepted: float) -> None:
        self._outcomes.append((side, accepted))

    def expect(self, position: int) -> None:
        """Count the expected acceptance at the position that was just decided here, in place of its
        outcomes, which came last."""
        for side, accepted in self._outcomes[: -len(Side)]:
            super().verified(side, accepted)
        self._outcomes.clear()
        at = position - len(PROMPT)
        for side in Side:
            expected = self._recorded.expected[side]
            super().verified(side, expected[at % len(expected)])
