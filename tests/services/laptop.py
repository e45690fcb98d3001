"""A model of 13 billion parameters on a laptop: four tokens a second, forty of a prompt, and no
sign of life within a pass."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

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
from tests.unit.cli.scripted_pair import scripted_pair

TOKEN_S = 0.25
PROMPT_TOKEN_S = 0.025


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
