"""Scripted engines with a manner: one that notes its passes, one as slow as a laptop's, and one
that says what it is told."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from tandem.backends.interface import (
    Engine,
    ForwardCancelled,
    ForwardRequest,
    Logits,
    Session,
    never,
)
from tandem.suite.models import ModelPair
from tandem.testing.paced import PacedEngine
from tandem.testing.scripted import ScriptedEngine
from tandem.text.tokenizer import TextTokenizer
from tests.unit.cli.scripted_pair import scripted_pair

TOKEN_S = 0.25
PROMPT_TOKEN_S = 0.025


class NotingEngine(PacedEngine):
    """Keeps the batch of each pass of `engine`."""

    def __init__(self, engine: Engine) -> None:
        super().__init__(engine, 0.0, 0.0)
        self.batches: list[Sequence[ForwardRequest]] = []

    def forward(
        self, batch: Sequence[ForwardRequest], cancelled: Callable[[], bool] = never
    ) -> list[Logits]:
        self.batches.append(batch)
        return super().forward(batch, cancelled)

    @property
    def rows_read(self) -> int:
        """Rows of logits that were asked for."""
        return sum(request.logits_to_keep for batch in self.batches for request in batch)


class LaptopEngine(PacedEngine):
    """Paces `engine`, and keeps the rows of each pass, of all and of each session."""

    def __init__(self, engine: Engine) -> None:
        super().__init__(engine, TOKEN_S, PROMPT_TOKEN_S, PROMPT_TOKEN_S)
        # Quantised rows are rounded by their number.
        self.capabilities = replace(engine.capabilities, same_bits=False, batch_invariant=False)
        self.passes: list[int] = []
        self.by_session: list[dict[Session, int]] = []

    def forward(
        self, batch: Sequence[ForwardRequest], cancelled: Callable[[], bool] = never
    ) -> list[Logits]:
        """Compute a pass that cannot be cancelled once it runs, as llama.cpp's."""
        if cancelled():
            raise ForwardCancelled("cancelled before the pass")
        self.passes.append(sum(len(request.token_ids) for request in batch))
        self.by_session.append({each.session: len(each.token_ids) for each in batch})
        return super().forward(batch)

    @property
    def rows_fed(self) -> int:
        return sum(self.passes)


def laptop_pair() -> ModelPair:
    """A quick draft model, and a target that is slow."""
    pair = scripted_pair()
    return replace(pair, target=LaptopEngine(pair.target))


SURE = 0.98


def speaking(
    tokenizer: TextTokenizer, prompt_tokens: int, text: str
) -> tuple[ScriptedEngine, ScriptedEngine]:
    """A draft and a target that answer a prompt of so many tokens with the text, marks included,
    and end."""
    ends = sorted(tokenizer.eos_token_ids)
    script = [*tokenizer.mark_ids(text), *ends]
    size = tokenizer.vocabulary_size

    def probs(context: tuple[int, ...]) -> NDArray[np.float64]:
        place = min(max(0, len(context) - prompt_tokens), len(script) - 1)
        likely = np.full(size, (1 - SURE) / (size - 1))
        likely[script[place]] = SURE
        return likely

    def engine() -> ScriptedEngine:
        ids = tokenizer.eos_token_ids
        return ScriptedEngine(size, probs, context_length=2048, eos_token_ids=ids)

    return engine(), engine()
