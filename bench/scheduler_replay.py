"""Recorded acceptance decisions, replayed through both sides' real machines (DRAGON §7.4).

Recording: along an answer drawn from the mixture, which side's draft was the token. Replaying: at
temperature 0 two laws over three tokens make any such record come true. The mixture's argmax is
token 0 everywhere; a side whose draft was refused has a likelier token of its own. So every
strategy meets the same decisions at the same positions, whatever it does in between.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import TypeVar

import numpy as np

from bench.dragon_laws import Question
from tandem.core.aggregation import Side, SideDraft, Weights, aggregate, side_weights
from tandem.core.chance import SeededChance
from tandem.core.laws import Array, Sampling
from tandem.netem.link_model import LinkPair
from tandem.netem.two_sided import PlacingFor, SimulatedSide, TwoSided, simulate_two_sided
from tandem.policy.aggregation_presets import AggregationPreset
from tandem.policy.local_laws import local_draft
from tandem.protocol.aggregation_outputs import AggregationRequest

Value = TypeVar("Value")

PROMPT = (0,)
_KEPT = np.array([1.0, 0.0, 0.0], dtype=np.float32)
_REFUSED = {
    Side.DEVICE: np.array([0.4, 0.6, 0.0], dtype=np.float32),
    Side.CLOUD: np.array([0.4, 0.0, 0.6], dtype=np.float32),
}


@dataclass(frozen=True, slots=True)
class Record:
    """Whether each side's draft was the token, position by position, and what its steps took
    relative to their median."""

    accepted: dict[Side, tuple[bool, ...]]
    step_shares: dict[Side, tuple[float, ...]]

    def turned(self, share: float) -> Record:
        """The same decisions and steps, begun that far in: another sequence at no cost."""
        return Record(
            {side: _turned(self.accepted[side], share) for side in Side},
            {side: _turned(self.step_shares[side], share) for side in Side},
        )

    def rate(self, side: Side) -> float:
        return sum(self.accepted[side]) / len(self.accepted[side])


def record(
    question: Question, preset: AggregationPreset, lean: float, seed: int, tokens: int
) -> Record:
    """An answer of `tokens`; `lean`: by how much the device's h exceeds what it was found as."""
    chance = SeededChance(seed)
    weights = side_weights(question.device.log_mass + lean, question.cloud.log_mass)
    context = question.prompt_ids
    accepted: dict[Side, list[bool]] = {side: [] for side in Side}
    steps_s: dict[Side, list[float]] = {side: [] for side in Side}
    for _ in range(tokens):
        drafts = {}
        for side, law_of in ((Side.DEVICE, question.device), (Side.CLOUD, question.cloud)):
            began_s = time.perf_counter()
            law = law_of(context)
            steps_s[side].append(time.perf_counter() - began_s)
            drafts[side] = _draft(law, preset, chance, len(context), side)
        token = _token(drafts, weights, chance, len(context))
        for side in Side:
            accepted[side].append(drafts[side].token_id == token)
        context = (*context, token)
    return Record(
        {side: tuple(accepted[side]) for side in Side},
        {side: _shares(steps_s[side]) for side in Side},
    )


def _draft(
    law: Array, preset: AggregationPreset, chance: SeededChance, position: int, side: Side
) -> SideDraft:
    token, sent = local_draft(law, preset.law, chance, position, side)
    assert sent is not None, "an aggregator's drafts carry laws"
    return SideDraft(token, sent)


def _token(
    drafts: dict[Side, SideDraft], weights: Weights, chance: SeededChance, position: int
) -> int:
    pair = drafts[Side.DEVICE], drafts[Side.CLOUD]
    return aggregate(*pair, weights, chance, position).token_id


def _shares(steps_s: Sequence[float]) -> tuple[float, ...]:
    """How the model's own steps vary. A law known from another record took no time, and a step far
    from the median was held up by other processes: neither says anything."""
    typical_s = median(steps_s)
    shares = (step_s / typical_s for step_s in steps_s)
    return tuple(share for share in shares if 0.75 < share < 1.25) or (1.0,)


def _turned(values: tuple[Value, ...], share: float) -> tuple[Value, ...]:
    at = int(share * len(values))
    return (*values[at:], *values[:at])


def replay(
    recorded: Record,
    preset: AggregationPreset,
    step_s: dict[Side, float],
    link: LinkPair,
    placing_for: PlacingFor,
    tokens: int,
    *,
    traced: bool = False,
) -> TwoSided:
    """The record's answer under a preset's placement, in virtual time."""
    request = AggregationRequest(
        session=1,
        prompt_ids=PROMPT,
        vocabulary_hash="replay",
        vocabulary_size=3,
        sampling=Sampling(0.0),
        seed=1,
        max_tokens=tokens,
        preset=preset,
        ignore_eos=True,
    )
    device, cloud = (_side(recorded, side, step_s[side]) for side in Side)
    found = simulate_two_sided(request, device, cloud, link, placing_for=placing_for, traced=traced)
    assert set(found.token_ids) == {0}, "the record came true"
    return found


def _side(recorded: Record, side: Side, step_s: float) -> SimulatedSide:
    accepted, shares = recorded.accepted[side], recorded.step_shares[side]

    def law_of(context: tuple[int, ...]) -> Array:
        at = len(context) - len(PROMPT)
        return _KEPT if at >= len(accepted) or accepted[at] else _REFUSED[side]

    return SimulatedSide(law_of, 0.0, lambda step: step_s * shares[step % len(shares)])
