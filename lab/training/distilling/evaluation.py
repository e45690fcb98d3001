"""Held-out figures: how often the target would accept what the draft proposes, on its own answers.

Acceptance at a position is Σ min(target_probs, draft_probs), the acceptance rate of the rejection
rule; at temperature 0 it is how often the likeliest tokens are equal.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from lab.training.distilling.recordings import UNRECORDED, Recording, padded

_ROWS = {"cpu": 8, "cuda": 64}
_POSITIONS = {"cpu": 512, "cuda": 4096}


@dataclass(frozen=True, slots=True)
class AnswerFigures:
    """Means over `tokens` positions. `outside` is the target's mass on tokens that the draft cannot
    propose. Cross-entropies are of the sampled tokens that it can, in nats."""

    tokens: int
    acceptance: float
    agreement: float
    outside: float
    target_cross_entropy: float
    draft_cross_entropy: float


def compare(
    recording: Recording,
    sequences: Sequence[int],
    draft: nn.Module,
    head: Tensor,
    kept: Tensor,
    draft_head: Tensor | None = None,
) -> AnswerFigures:
    """Compare a draft with the target on recorded answers. The target's distributions are the
    recorded ones. Everything is computed where `head` lies.

    Args:
        head: the target's head [vocabulary, size].
        kept: the rows of the head that the draft has.
        draft_head: the draft's head [kept, size of the draft], where it does not use the
            target's."""
    device = head.device
    chosen = recording.token_ids[recording.records != UNRECORDED].to(device)
    kept, hidden = kept.to(device), recording.hidden.to(device)
    sums = torch.zeros(7, dtype=torch.float64)
    inside = head[kept] if draft_head is None else draft_head
    rows = _ROWS[device.type]
    positions = _POSITIONS[device.type]
    for first in range(0, len(sequences), rows):
        some = sequences[first : first + rows]
        inputs, labels = (
            tensor.to(device) for tensor in padded(recording, some, answers_alone=True)
        )
        marked = labels != UNRECORDED
        with torch.inference_mode():
            states = draft(inputs).logits[marked]
            parts = zip(states.split(positions), labels[marked].split(positions), strict=True)
            for part, records in parts:
                target = functional.linear(hidden[records].float(), head)
                draft_logits = functional.linear(part, inside)
                sums += _sums(target, draft_logits, kept, chosen[records])
    total, overlap, equal, outside, known, *entropies = sums.tolist()
    means = (value / total for value in (overlap, equal, outside))
    return AnswerFigures(int(total), *means, *(value / max(known, 1) for value in entropies))


def _sums(target_logits: Tensor, draft_logits: Tensor, kept: Tensor, chosen: Tensor) -> Tensor:
    """Return sums over positions of what `AnswerFigures` has the means of, and how many positions
    they are of."""
    log_target = functional.log_softmax(target_logits, -1)
    log_draft = functional.log_softmax(draft_logits, -1)
    log_inside = log_target[:, kept]
    overlap = torch.minimum(log_inside.exp(), log_draft.exp()).sum()
    equal = kept[log_draft.argmax(-1)] == log_target.argmax(-1)
    outside = 1 - log_inside.exp().sum(-1)
    column = torch.searchsorted(kept, chosen).clamp_max(len(kept) - 1)
    known = kept[column] == chosen
    entropies = (
        -log[known].gather(1, column[known, None]).sum() for log in (log_inside, log_draft)
    )
    parts = (len(chosen), overlap, equal.sum(), outside.sum(), known.sum(), *entropies)
    return torch.stack([torch.as_tensor(part, dtype=torch.float64, device="cpu") for part in parts])
