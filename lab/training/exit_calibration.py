"""How far an exit's confidence may be believed, and the temperature that mends it.

An exit's confidence is the largest probability that it gives a token (FSD, equation 4); it is right
where that token is the model's likeliest. Temperature scaling (Guo et al. 2017) divides the exit's
logits by one number before its confidence is read. It is fitted on one part of held-out text, by
the likelihood of being right where it was and wrong where it was not, and judged on another. What
an exit takes for the verdict does not depend on it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from tandem.backends.torch.exit_adapters import Bin

BINS = 10
TEMPERATURES = tuple(float(one) for one in np.geomspace(0.12, 4.0, 18))
"""Those that are tried; the best lies between two of them."""


@dataclass(slots=True)
class TemperatureFit:
    """How surprising it is at each temperature that an exit was right, or was not."""

    nats: np.ndarray = field(default_factory=lambda: np.zeros(len(TEMPERATURES)))

    def add(self, logits: Tensor, likeliest: Tensor) -> None:
        """Add positions: `logits` [rows, vocabulary] of the exit, `likeliest` [rows] of the
        model."""
        logits = logits.float()
        highest, token_ids = logits.max(dim=-1)
        right = token_ids == likeliest
        for index, temperature in enumerate(TEMPERATURES):
            log_sure = highest / temperature - torch.logsumexp(logits / temperature, dim=-1)
            log_unsure = (-log_sure.expm1()).clamp_min(1e-7).log()
            self.nats[index] -= float(torch.where(right, log_sure, log_unsure).sum())

    def temperature(self) -> float:
        """Return the best one: the lowest point of a parabola through the best three, over the
        logarithm."""
        best = int(self.nats.argmin())
        if not 0 < best < len(TEMPERATURES) - 1:
            return round(TEMPERATURES[best], 4)
        before, here, after = self.nats[best - 1 : best + 2]
        bend = before - 2 * here + after
        shift = 0.5 * (before - after) / bend if bend > 0 else 0.0
        step = math.log(TEMPERATURES[1] / TEMPERATURES[0])
        return round(TEMPERATURES[best] * math.exp(shift * step), 4)


@dataclass(slots=True)
class Reliability:
    """Confidences and whether they were right, in bins of equal width."""

    confidence: np.ndarray = field(default_factory=lambda: np.zeros(BINS))
    right: np.ndarray = field(default_factory=lambda: np.zeros(BINS))
    count: np.ndarray = field(default_factory=lambda: np.zeros(BINS, dtype=np.int64))

    def add(self, logits: Tensor, likeliest: Tensor, temperature: float = 1.0) -> None:
        """Add positions: `logits` [rows, vocabulary] of the exit, `likeliest` [rows] of the
        model."""
        scores = logits.float() / temperature
        highest, token_ids = scores.max(dim=-1)
        sure = (highest - torch.logsumexp(scores, dim=-1)).exp()
        self.add_judged(sure.tolist(), (token_ids == likeliest).tolist())

    def add_judged(self, confidences: Sequence[float], right: Sequence[bool]) -> None:
        """Add one confidence in [0, 1] and one judgement for each position."""
        sure = np.asarray(confidences, dtype=np.float64)
        bins = np.minimum((sure * BINS).astype(int), BINS - 1)
        np.add.at(self.confidence, bins, sure)
        np.add.at(self.right, bins, np.asarray(right, dtype=np.float64))
        np.add.at(self.count, bins, 1)

    @property
    def share_right(self) -> float:
        return float(self.right.sum() / max(1, self.count.sum()))

    @property
    def error(self) -> float:
        """The expected calibration error: the mean gap between confidence and share that was right,
        weighted by how many positions a bin holds."""
        return float(np.abs(self.confidence - self.right).sum() / max(1, self.count.sum()))

    def bins(self) -> tuple[Bin, ...]:
        """Return the bins that hold something, from the least confident."""
        return tuple(
            (round(float(sure / count), 4), round(float(right / count), 4), int(count))
            for sure, right, count in zip(self.confidence, self.right, self.count, strict=True)
            if count
        )


@dataclass(frozen=True, slots=True)
class Calibration:
    """What is known of one exit's confidence. `errors` and `reliability`: before the temperature,
    and after it."""

    temperature: float
    agreement: float
    errors: tuple[float, float]
    reliability: tuple[tuple[Bin, ...], tuple[Bin, ...]]


def calibration_of(temperature: float, before: Reliability, after: Reliability) -> Calibration:
    return Calibration(
        temperature,
        round(before.share_right, 4),
        (round(before.error, 4), round(after.error, 4)),
        (before.bins(), after.bins()),
    )
