"""What is asked on two sides: a query, and both sides' distributions after it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from lab.bench.two_sided.dragon_corpus import QUERY_TOKENS, RankedDocument, Window
from tandem.backends.interface import Engine
from tandem.core.probs import SamplingParams
from tandem.testing.simulation.side_distributions import SideDistributions
from tandem.two_sided.protocol.mixture import Side

BEGIN = (0,)
"""The demo tokenizer's begin-of-text token, before every document."""


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
        after_documents(device, window.of(Side.DEVICE, documents), sampling),
        after_documents(cloud, window.of(Side.CLOUD, documents), sampling),
    )


def after_documents(
    engine: Engine, documents: Sequence[RankedDocument], sampling: SamplingParams
) -> SideDistributions:
    """Return an engine's distributions after each of these documents and a text, mixed."""
    return SideDistributions(engine, [(*BEGIN, *one.token_ids) for one in documents], sampling)
