"""The local law of a side as a function of a text: its documents' laws mixed by their relevance.

Real models, and each law computed once: runs over links, pacings and presets share them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from bench.dragon_corpus import QUERY_TOKENS, Found, Window
from tandem.core.aggregation import Side, document_weights, local_law, log_mass
from tandem.core.laws import Array, Sampling
from tandem.engine.base import Engine
from tandem.simulation.pair_laws import EngineLaws

BEGIN = (0,)
"""The demo tokenizer's begin-of-text token, before every document."""


class SideLaws:
    """One side's law [V] after a text, float32; its documents lie before the text. All documents
    count the same: lexical scores are no logarithms."""

    def __init__(self, engine: Engine, found: Sequence[Found], sampling: Sampling) -> None:
        self._documents = [(*BEGIN, *one.token_ids) for one in found]
        self._laws = [EngineLaws(engine, sampling) for _ in found]
        self._weights = document_weights([0.0] * len(found)).astype(np.float32)
        self._known: dict[tuple[int, ...], Array] = {}
        self.log_mass = log_mass([0.0] * len(found))

    def __call__(self, context: tuple[int, ...]) -> Array:
        law = self._known.get(context)
        if law is None:
            laws = [
                law_of((*document, *context))
                for document, law_of in zip(self._documents, self._laws, strict=True)
            ]
            law = self._known[context] = local_law(np.stack(laws), self._weights)
            law.setflags(write=False)
        return law

    def close(self) -> None:
        for law_of in self._laws:
            law_of.close()


@dataclass(frozen=True, slots=True)
class Question:
    """A prompt, and both sides' laws of what follows it."""

    prompt_ids: tuple[int, ...]
    device: SideLaws
    cloud: SideLaws

    def close(self) -> None:
        self.device.close()
        self.cloud.close()


def question_from(
    window: Window, device: Engine, cloud: Engine, documents: int, sampling: Sampling
) -> Question:
    """A window's query, with its best documents on both sides."""
    return Question(
        window.token_ids[:QUERY_TOKENS],
        SideLaws(device, window.of(Side.DEVICE, documents), sampling),
        SideLaws(cloud, window.of(Side.CLOUD, documents), sampling),
    )
