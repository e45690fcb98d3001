"""The edge's side of an answer: draws the token in place of a refused draft.

Invariant: one refusal is one draw. When a sparse answer was not enough, that same draw goes on with
the full law; a fresh one would be biased (DESIGN §3.2). Must not import asyncio, grpc, torch, time.
"""

from __future__ import annotations

import numpy as np

from tandem.core.chance import Chance
from tandem.core.laws import Array
from tandem.core.sparse_answer import (
    NeedFullLaw,
    SparseAnswer,
    draw_from_sparse_answer,
    finish_with_full_law,
)
from tandem.protocol.messages import FullAnswer
from tandem.protocol.outputs import Drafted
from tandem.protocol.rules import AcceptanceRule, Proposal


class Recovery:
    """Draws recovered tokens, each in one step or, with a full law asked for, in two."""

    def __init__(self, rule: AcceptanceRule, chance: Chance, whole_laws: bool = False) -> None:
        """`whole_laws`: refusals bring the whole target law."""
        self._rule = rule
        self._whole_laws = whole_laws
        self._chance = chance
        self._unfinished: tuple[SparseAnswer, NeedFullLaw] | None = None

    @property
    def waits(self) -> bool:
        """Whether a draw waits for the full law."""
        return self._unfinished is not None

    def start(
        self, answer: FullAnswer | SparseAnswer, refused: Drafted, position: int
    ) -> int | None:
        """The recovered token, or None when the draw needs the full law."""
        if isinstance(answer, FullAnswer):
            proposal = Proposal(refused.token_id, draft_probs=refused.draft_probs)
            return self._rule.recovered(answer.target_probs, proposal, position)
        drawn = draw_from_sparse_answer(answer, refused.draft_probs, self._chance, position)
        if isinstance(drawn, NeedFullLaw):
            self._unfinished = (answer, drawn)
            return None
        return drawn

    def foresee(self, answer: SparseAnswer, refused: Drafted, position: int) -> int | None:
        """The token that a verdict like this early one would bring, by the same random numbers;
        None where the answer does not tell. Changes nothing."""
        if not self._whole_laws:
            drawn = draw_from_sparse_answer(answer, refused.draft_probs, self._chance, position)
            return None if isinstance(drawn, NeedFullLaw) else drawn
        law = np.zeros_like(refused.draft_probs)
        law[answer.ids] = answer.probs
        if not law.any():
            return None
        proposal = Proposal(refused.token_id, draft_probs=refused.draft_probs)
        return self._rule.recovered(law, proposal, position)

    def finish(self, target_probs: Array, refused: Drafted, position: int) -> int:
        """The recovered token, drawn on with the full law. Only while `waits`, and still so after
        InvalidArgument for a law that cannot be the one the sparse answer was made of."""
        assert self._unfinished is not None, "no draw waits for a full law"
        answer, need = self._unfinished
        token = finish_with_full_law(
            answer, target_probs, refused.draft_probs, need, self._chance, position
        )
        self._unfinished = None
        return token

    def forget(self) -> None:
        """The stream is gone: the refusal will be heard again, and decided the same way."""
        self._unfinished = None
