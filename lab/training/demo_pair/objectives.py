"""Losses of the three trainings. All take logits [rows, length, vocab] and return mean nats.

The acceptance rate of speculative sampling at a position is the overlap of the two distributions,
sum over tokens of min(target_probs, draft_probs) = 1 - total variation (Leviathan et al. 2023,
corollary 3.6). Minimising the total variation maximises it directly; its gradient is poor far from
the optimum, hence the divergence first.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812

from lab.training.demo_pair.loop import Objective
from lab.training.demo_pair.precision import product_precision


def cross_entropy(
    logits: torch.Tensor, inputs: torch.Tensor, labels: torch.Tensor, progress: float
) -> torch.Tensor:
    return F.cross_entropy(logits.flatten(0, 1).float(), labels.flatten())


def distillation(target: torch.nn.Module) -> Objective:
    """Return the objective KL(target || draft), which blends into total variation as
    `variation_weight` grows with the training's progress."""

    def objective(
        logits: torch.Tensor, inputs: torch.Tensor, labels: torch.Tensor, progress: float
    ) -> torch.Tensor:
        with torch.no_grad(), product_precision(inputs.device):
            target_logits = target(input_ids=inputs, use_cache=False).logits
        log_draft = F.log_softmax(logits.flatten(0, 1).float(), dim=-1)
        log_target = F.log_softmax(target_logits.flatten(0, 1).float(), dim=-1)
        target_probs = log_target.exp()
        weight = variation_weight(progress)
        loss = log_draft.new_zeros(())
        if weight < 1.0:
            # The target's negative entropy has no gradient; it only makes the logged loss a KL.
            divergence = (target_probs * (log_target - log_draft)).sum(-1).mean()
            loss = loss + (1.0 - weight) * divergence
        if weight > 0.0:
            variation = 0.5 * (target_probs - log_draft.exp()).abs().sum(-1).mean()
            loss = loss + weight * variation
        return loss

    return objective


def variation_weight(progress: float) -> float:
    """Return the weight of total variation: 0 until 40% of the budget, rising linearly to 0.9 at
    70%."""
    return 0.9 * min(1.0, max(0.0, (progress - 0.4) / 0.3))
