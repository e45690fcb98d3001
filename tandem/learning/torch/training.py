"""Training a low-rank adapter over the weights that the engine drafts with: there is no second copy
of them. The optimizer is AdamW over one vector, written out: torch's own imports its compiler,
which takes seconds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tandem.backends.interface import never
from tandem.learning.adaptation import Weights
from tandem.learning.examples import Example

LEARNING_RATE = 1e-3
WARM_UP_UPDATES = 10
BATCH_TOKENS = 256
"""Of the target's tokens in each update: a step has fewer, so that it ends soon."""
WEIGHT_DECAY = 0.01
MAX_NORM = 1.0
"""Of an update's gradient."""
FIRST_BETA = 0.9
SECOND_BETA = 0.99
EPSILON = 1e-8
MEAN_BETA = 0.9
"""Of the mean over the last updates, which is what is used: a single one sees few tokens."""
VECTORS = ("weights", "mean", "first_moment", "second_moment", "gradient")
STATE = (*VECTORS, "numbers")
"""Of a training: float32 [weights] each; last the updates that were made, and the tokens whose
gradient waits for the next."""
Loss = Callable[[Example, Tensor, Callable[[], bool]], Tensor]
"""From a text, the weights [n] that gradients go to, and `cancelled` to the loss of all tokens."""


class AdamW:
    """`vectors` are float32 [n] by the names in VECTORS, `updates` how many were made so far."""

    def __init__(self, vectors: Mapping[str, Tensor], updates: int = 0) -> None:
        self.vectors = vectors
        self.updates = updates
        self.weights = vectors["weights"].requires_grad_()

    def update(self, gradient: Tensor) -> None:
        """Change the weights along a gradient [n], which is clipped in place."""
        first, second = self.vectors["first_moment"], self.vectors["second_moment"]
        gradient *= min(1.0, MAX_NORM / (float(gradient.norm()) + EPSILON))
        self.updates += 1
        first.lerp_(gradient, 1 - FIRST_BETA)
        second.mul_(SECOND_BETA).addcmul_(gradient, gradient, value=1 - SECOND_BETA)
        rate = LEARNING_RATE * min(1.0, self.updates / WARM_UP_UPDATES)
        scale = (second / (1 - SECOND_BETA**self.updates)).sqrt_().add_(EPSILON)
        self.weights.mul_(1 - rate * WEIGHT_DECAY)
        self.weights.addcdiv_(first, scale, value=-rate / (1 - FIRST_BETA**self.updates))
        self.vectors["mean"].lerp_(self.weights, 1 - MEAN_BETA)


class LowRankTrainer:
    """Implements `AdapterTrainer`; `tokens`: how many the gradient has that waits for the next
    update."""

    def __init__(self, loss: Loss, optimizer: AdamW, tokens: int = 0) -> None:
        self._loss = loss
        self._optimizer = optimizer
        self._tokens = tokens

    def step(self, text: Example, cancelled: Callable[[], bool] = never) -> float:
        with torch.inference_mode(False), torch.enable_grad():
            loss = self._loss(text, self._optimizer.weights, cancelled)
            (gradient,) = torch.autograd.grad(loss, self._optimizer.weights)
        mean = float(loss.detach()) / max(1, text.target_tokens)
        if not bool(torch.isfinite(gradient).all()):
            return mean
        waiting = self._optimizer.vectors["gradient"]
        with torch.no_grad():
            waiting += gradient
            self._tokens += text.target_tokens
            if self._tokens >= BATCH_TOKENS:
                self._optimizer.update(waiting / self._tokens)
                waiting.zero_()
                self._tokens = 0
        return mean

    def weights(self) -> Weights:
        return self._optimizer.vectors["mean"].numpy().copy()

    def state(self) -> dict[str, NDArray[Any]]:
        vectors = self._optimizer.vectors
        state: dict[str, NDArray[Any]] = {
            name: vectors[name].detach().numpy().copy() for name in VECTORS
        }
        numbers = np.array([self._optimizer.updates, self._tokens], dtype=np.int64)
        return state | {STATE[-1]: numbers}
