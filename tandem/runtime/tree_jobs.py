"""Drafting a token tree: one pass a layer, over a pending tree that grows in the draft's KV.

Invariant: as for chains, every candidate is drawn from the distribution the other end will
reconstruct. At temperature 0, where a distribution has but one token, the candidates of a node are
its likeliest ones: any draft distribution gives greedy text, and these are followed most often."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from tandem.backends.interface import ForwardRequest, Logits, Session
from tandem.core.probs import Array, Truncation, probs_from_logits, truncate
from tandem.runtime.session_jobs import DraftJob, DraftRequest
from tandem.specdec.drafting import probs_to_draft_from
from tandem.specdec.events import Drafted
from tandem.specdec.proposers import Proposed
from tandem.specdec.rounds.tree_drafting import TreeGrowth, with_remembered


class TreeDraftJob(DraftJob):
    """Drafts the tree of a task; its last layer is not fed."""

    def __init__(self, session: Session, request: DraftRequest) -> None:
        super().__init__(session, request)
        self._growth = TreeGrowth(request.task, request.rule)

    def request(self) -> ForwardRequest:
        growth = self._growth
        if not growth.nodes:
            return super().request()
        if self._rows is not None:
            self._rows.prepare(growth.contexts)
        # A pass that failed for others may have fed the newest here: then all are fed anew.
        held = len(self._session.tree or ())
        first = held if held == growth.newest.start else 0
        nodes = growth.nodes[first:]
        return ForwardRequest(
            self._session,
            tuple(node.token_id for node in nodes),
            logits_to_keep=len(growth.newest),
            parents=tuple(node.parent for node in nodes),
            extends_tree=first > 0,
        )

    def take(self, logits: Logits) -> bool:
        return self._growth.grow(
            [
                self._from_logits(row, partial(self._after, context))
                for row, context in zip(logits, self._growth.contexts, strict=True)
            ]
        )

    def result(self) -> tuple[list[Drafted], int]:
        """Return the tree, and the length of the draft KV without it."""
        return self._growth.nodes, self._session.length

    def _draft_forced(self, most: int) -> None:
        """Draft nothing: a tree grows layer by layer."""

    def _after(self, context: tuple[int, ...], logits: Array) -> Array:
        """Return the distribution that candidates after a node are drawn from."""
        scores = logits if self._rows is None else self._rows.processed(logits, context)
        branches = self._texts.after(context, confirmed=False).branches
        allowed = [draft for draft in branches if scores[draft.token_id] > -np.inf]  # by a grammar
        return self._probs(scores, allowed)

    def _probs(self, logits: Array, remembered: Sequence[Proposed]) -> Array:
        width = self._growth.width
        if not self._sampling.greedy or self._preset.with_replacement:
            probs = with_remembered(probs_from_logits(logits, self._sampling), remembered)
        else:
            unlikelier = probs_from_logits(logits, replace(self._sampling, temperature=1.0))
            probs = with_remembered(unlikelier, remembered)
            probs = truncate(probs, Truncation(top_k=width))
        return probs_to_draft_from(probs, self._preset)
