"""Distributions of a pair along held-out text, and how well they fit it and each other: their
cross-entropy in nats per token, and the mean over positions of Σ min(target_probs, draft_probs) at
temperature 1, which is the rejection rule's acceptance rate when the context is that text."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from lab.bench.harness.models import Models
from lab.bench.harness.report import Row, make_row
from lab.bench.harness.texts import held_out
from tandem.backends.interface import Engine, ForwardRequest
from tandem.backends.model_description import load_tokenizer
from tandem.core.probs import SamplingParams, batch_probs_from_logits

MAX_TOKENS = 512
MAX_CHARACTERS = 4 * MAX_TOKENS  # more would only be cut off again


@dataclass(slots=True)
class Sums:
    """Over positions of held-out text."""

    tokens: int = 0
    target_nats: float = 0.0
    draft_nats: float = 0.0
    overlap: float = 0.0
    same: int = 0

    def add(
        self, target_distributions: np.ndarray, draft_distributions: np.ndarray, next_ids: list[int]
    ) -> None:
        """Add the distributions [n, vocabulary] of n positions, and the tokens that stand there."""
        rows = np.arange(len(next_ids))
        self.tokens += len(next_ids)
        self.target_nats -= float(np.log(target_distributions[rows, next_ids]).sum())
        self.draft_nats -= float(np.log(draft_distributions[rows, next_ids]).sum())
        self.overlap += float(np.minimum(target_distributions, draft_distributions).sum())
        self.same += int((target_distributions.argmax(-1) == draft_distributions.argmax(-1)).sum())

    def row(self, source: str, seed: int) -> Row:
        return make_row(
            source=source,
            seed=seed,
            tokens=self.tokens,
            target_cross_entropy=self.target_nats / self.tokens,
            draft_cross_entropy=self.draft_nats / self.tokens,
            acceptance_rate=self.overlap / self.tokens,
            top1_agreement=self.same / self.tokens,
        )


def texts(models: Models, quick: bool) -> Iterator[tuple[str, list[int]]]:
    """Yield the source and the first tokens of each held-out text."""
    tokenizer = load_tokenizer(models.target)
    for document in held_out()[:: 4 if quick else 1]:
        token_ids = tokenizer.encode(document["text"][:MAX_CHARACTERS])[:MAX_TOKENS]
        if len(token_ids) > 1:
            yield document["source"], token_ids


def distributions_along(engine: Engine, token_ids: list[int]) -> np.ndarray:
    """Return the distributions [n, vocabulary] after each token but the last."""
    session = engine.open(len(token_ids) - 1)
    try:
        fed = tuple(token_ids[:-1])
        (logits,) = engine.forward([ForwardRequest(session, fed, len(fed))])
        return batch_probs_from_logits(logits, SamplingParams())
    finally:
        session.close()
