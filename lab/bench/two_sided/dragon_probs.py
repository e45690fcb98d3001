"""The local distribution of a side as a function of a text: its documents' distributions mixed by
their relevance.

Real models, and each distribution computed once: runs over links, pacings and presets share them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from lab.bench.two_sided.dragon_corpus import QUERY_TOKENS, RankedDocument, Window
from tandem.backends.interface import Engine
from tandem.core.probs import Array, SamplingParams
from tandem.testing.simulation.model_pair import EngineDistributions
from tandem.two_sided.protocol.mixture import Side, document_weights, local_probs, log_mass

BEGIN = (0,)
"""The demo tokenizer's begin-of-text token, before every document."""


class SideDistributions:
    """One side's distribution [V] after a text, float32; its documents lie before the text. All
    documents count the same: lexical scores are no logarithms."""

    def __init__(
        self, engine: Engine, documents: Sequence[RankedDocument], sampling: SamplingParams
    ) -> None:
        self._documents = [(*BEGIN, *one.token_ids) for one in documents]
        self._distributions = [EngineDistributions(engine, sampling) for _ in documents]
        self._weights = document_weights([0.0] * len(documents)).astype(np.float32)
        self._known: dict[tuple[int, ...], Array] = {}
        self.log_mass = log_mass([0.0] * len(documents))

    def __call__(self, context: tuple[int, ...]) -> Array:
        probs = self._known.get(context)
        if probs is None:
            distributions = [
                probs_of((*document, *context))
                for document, probs_of in zip(self._documents, self._distributions, strict=True)
            ]
            probs = self._known[context] = local_probs(np.stack(distributions), self._weights)
            probs.setflags(write=False)
        return probs

    def close(self) -> None:
        for probs_of in self._distributions:
            probs_of.close()


@dataclass(frozen=True, slots=True)
class Question:
    """A prompt, and both sides' distributions of what follows it."""

    prompt_ids: tuple[int, ...]
    device: SideDistributions
    cloud: SideDistributions

    def close(self) -> None:
        self.device.close()
        self.cloud.close()


def question_from(
    window: Window, device: Engine, cloud: Engine, documents: int, sampling: SamplingParams
) -> Question:
    """Return a window's query, with its best documents on both sides."""
    return Question(
        window.token_ids[:QUERY_TOKENS],
        SideDistributions(device, window.of(Side.DEVICE, documents), sampling),
        SideDistributions(cloud, window.of(Side.CLOUD, documents), sampling),
    )
