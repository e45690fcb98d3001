"""Recorded acceptance decisions, replayed through both sides' real machines (DRAGON §7.4).

Recording: along an answer drawn from the mixture, which side's draft was the token. Replaying: at
temperature 0 two distributions over three tokens make any such record come true. The mixture's
argmax is token 0 everywhere; a side whose draft was rejected has a likelier token of its own. So
every strategy meets the same decisions at the same positions, whatever it does in between.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from lab.bench.two_sided.dragon_probs import Question
from tandem.core.probs import Array, SamplingParams
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

Value = TypeVar("Value")

PROMPT = (0,)
_ACCEPTED = np.array([1.0, 0.0, 0.0], dtype=np.float32)
_REJECTED = {
    Side.DEVICE: np.array([0.4, 0.6, 0.0], dtype=np.float32),
    Side.CLOUD: np.array([0.4, 0.0, 0.6], dtype=np.float32),
}


@dataclass(frozen=True, slots=True)
class Record:
    """Whether each side's draft was the token, position by position."""

    accepted: Mapping[Side, tuple[bool, ...]]

    def rotated(self, share: float) -> Record:
        """Return the same decisions, beginning `share` of the way in: another sequence at no
        cost."""
        return Record({side: _rotated(self.accepted[side], share) for side in Side})


def record(
    question: Question, preset: AggregationPreset, shift: float, seed: int, tokens: int
) -> Record:
    """Return the record of an answer of `tokens` tokens; `shift` is added to the device's h."""
    rng = SeededRandom(seed)
    weights = side_weights(question.device.log_mass + shift, question.cloud.log_mass)
    context = question.prompt_ids
    accepted: dict[Side, list[bool]] = {side: [] for side in Side}
    for _ in range(tokens):
        drafts = {
            side: _draft(probs_of(context), preset, rng, len(context), side)
            for side, probs_of in ((Side.DEVICE, question.device), (Side.CLOUD, question.cloud))
        }
        token = _token(drafts, weights, rng, len(context))
        for side in Side:
            accepted[side].append(drafts[side].token_id == token)
        context = (*context, token)
    return Record({side: tuple(accepted[side]) for side in Side})


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
        request, device, cloud, link, placement_policy_for=placement_policy_for
    )
    assert set(answer.token_ids) == {0}, "the record came true"
    return answer


def _side(recorded: Record, side: Side, step_s: float) -> SimulatedSide:
    accepted = recorded.accepted[side]

    def probs_of(context: tuple[int, ...]) -> Array:
        at = len(context) - len(PROMPT)
        return _ACCEPTED if at >= len(accepted) or accepted[at] else _REJECTED[side]

    return SimulatedSide(probs_of, 0.0, lambda step: step_s)
