"""The token in the place of a rejected draft, where the edge draws it."""

from __future__ import annotations

import numpy as np

from tandem.core.probs import Array
from tandem.core.randomness import RandomSource
from tandem.core.sparse_payload import (
    FullPayload,
    SparsePayload,
    TailExhausted,
    draw_from_sparse_payload,
    finish_with_full_distribution,
)
from tandem.specdec.events import Drafted
from tandem.specdec.rules import AcceptanceRule, Proposal


class Recovery:
    """Draws recovered tokens, each in one step or, with a full distribution asked for, in two.

    Invariant: one rejection is one draw. When a sparse payload was not enough, that same draw goes
    on with the full distribution; a fresh one would be biased."""

    def __init__(
        self, rule: AcceptanceRule, rng: RandomSource, whole_distributions: bool = False
    ) -> None:
        """Start with no recovery under way. `whole_distributions`: whether rejections bring the
        whole target distribution."""
        self._rule = rule
        self._whole_distributions = whole_distributions
        self._rng = rng
        self._unfinished: tuple[SparsePayload, TailExhausted] | None = None

    @property
    def waits(self) -> bool:
        """True if a draw waits for the full distribution."""
        return self._unfinished is not None

    def start(
        self, payload: FullPayload | SparsePayload, rejected: Drafted, position: int
    ) -> int | None:
        """Return the recovered token, or None when the draw needs the full distribution."""
        if isinstance(payload, FullPayload):
            proposal = Proposal((rejected.token_id,), draft_probs=rejected.draft_probs)
            return self._rule.recovered(payload.target_probs, proposal, position)
        drawn = draw_from_sparse_payload(payload, rejected.draft_probs, self._rng, position)
        if isinstance(drawn, TailExhausted):
            self._unfinished = (payload, drawn)
            return None
        return drawn

    def predict(self, payload: SparsePayload, rejected: Drafted, position: int) -> int | None:
        """Return the token that a verdict like this early one would bring, by the same random
        numbers; None where the payload does not say. Changes nothing."""
        if not self._whole_distributions:
            drawn = draw_from_sparse_payload(payload, rejected.draft_probs, self._rng, position)
            return None if isinstance(drawn, TailExhausted) else drawn
        probs = np.zeros_like(rejected.draft_probs)
        probs[payload.ids] = payload.probs
        if not probs.any():
            return None
        proposal = Proposal((rejected.token_id,), draft_probs=rejected.draft_probs)
        return self._rule.recovered(probs, proposal, position)

    def finish(self, target_probs: Array, rejected: Drafted, position: int) -> int:
        """Return the recovered token: the draw goes on with the full distribution. Only while
        `waits`, and still so after InvalidArgument for a distribution that the sparse payload
        cannot be of."""
        assert self._unfinished is not None, "no draw waits for a full distribution"
        payload, need = self._unfinished
        token = finish_with_full_distribution(
            payload,
            target_probs,
            draft_probs=rejected.draft_probs,
            need=need,
            rng=self._rng,
            position=position,
        )
        self._unfinished = None
        return token

    def forget(self) -> None:
        """Forget the rejection: the stream is gone, and it will come again and be decided the same
        way."""
        self._unfinished = None
