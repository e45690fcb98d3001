"""The local distribution of a side as a function of a text: its documents' distributions mixed.

Real models, and each distribution computed once: runs over links, pacings and presets share them.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tandem.backends.interface import Engine
from tandem.core.probs import Array, SamplingParams
from tandem.testing.simulation.model_pair import EngineDistributions
from tandem.two_sided.protocol.mixture import document_weights, local_probs, log_mass


class SideDistributions:
    """One side's distribution [V] after a text, float32. All documents count the same."""

    def __init__(
        self, engine: Engine, documents: Sequence[tuple[int, ...]], sampling: SamplingParams
    ) -> None:
        """Start with nothing computed. `documents`: the token ids that lie before every text."""
        self._documents = documents
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
