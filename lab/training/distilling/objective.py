"""What the draft learns: the target's distribution over the tokens that the draft can propose.

As for the demo pair, KL(target ‖ draft) blends into total variation
(`lab.training.demo_pair.objectives`).
Divergence is against the target's distribution given that a kept token comes, since no draft over
the kept tokens is nearer to it; the overlap counts what the others take away.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from lab.training.demo_pair.objectives import variation_weight
from lab.training.demo_pair.precision import product_precision
from lab.training.distilling.recordings import UNRECORDED, Recording


@dataclass(frozen=True, slots=True)
class Distillation:
    """`head` [kept, size] has the rows of the target's head that the draft has too; `draft_head`
    [kept, size of the draft] those of the draft's own head, where it is another."""

    recording: Recording
    head: Tensor
    draft_head: Tensor | None = None

    def __call__(self, states: Tensor, inputs: Tensor, labels: Tensor, progress: float) -> Tensor:
        """Return the mean loss over the recorded positions of states [rows, length, size], in
        nats."""
        kept = labels != UNRECORDED
        log_draft, log_target, outside = self._distributions(states[kept], labels[kept])
        weight = variation_weight(progress)
        loss = log_draft.new_zeros(())
        if weight < 1.0:
            divergence = (log_target.exp() * (log_target - log_draft)).sum(-1).mean()
            loss = loss + (1.0 - weight) * divergence
        if weight > 0.0:
            target_probs = log_target.exp() * (1 - outside[:, None])
            overlap = torch.minimum(target_probs, log_draft.exp()).sum(-1)
            loss = loss + weight * (1 - overlap).mean()
        return loss

    def _distributions(self, states: Tensor, records: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the log-probabilities [positions, kept] of draft and target, the target's given
        that a kept token comes, and the target's mass [positions] outside the kept tokens."""
        rows = records.to(self.recording.hidden.device)
        draft_head = self.head if self.draft_head is None else self.draft_head
        with product_precision(states.device):
            draft_logits = functional.linear(states, draft_head).float()
            with torch.no_grad():
                hidden = self.recording.hidden[rows].to(states.device).float()
                target_logits = functional.linear(hidden, self.head).float()
        partition = target_logits.logsumexp(-1)
        whole = self.recording.log_partition[rows].to(states.device)
        outside = (1 - (partition - whole).exp()).clamp_min(0.0)
        log_target = target_logits - partition[:, None]
        return functional.log_softmax(draft_logits, -1), log_target, outside
