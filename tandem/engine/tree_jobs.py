"""Drafting a token tree: one pass a layer, over a pending tree that grows in the draft's KV.

Invariant: as for chains, every candidate is drawn from the law the other end will reconstruct. At
temperature 0, where a law has but one token, the candidates of a node are its likeliest ones: any
draft law gives greedy text, and these are followed most often. Must not import grpc.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tandem.core.laws import Array, Sampling, law_from_logits
from tandem.core.truncation import Truncation, truncate
from tandem.engine.base import Logits, Segment, Session
from tandem.engine.session_jobs import DraftJob
from tandem.policy.draft_laws import law_to_draft_from
from tandem.policy.presets import Preset
from tandem.protocol.outputs import Drafted, DraftWork
from tandem.protocol.rules import AcceptanceRule
from tandem.protocol.tree_growth import TreeGrowth


class TreeDraftJob(DraftJob):
    """Drafts the tree of a work; its last layer is not fed."""

    def __init__(
        self,
        session: Session,
        work: DraftWork,
        sampling: Sampling,
        rule: AcceptanceRule,
        preset: Preset,
        *rest: Any,
    ) -> None:
        super().__init__(session, work, sampling, rule, preset, *rest)
        self._growth = TreeGrowth(work, rule)

    def segment(self) -> Segment:
        growth = self._growth
        if not growth.nodes:
            return super().segment()
        newest = growth.newest
        return Segment(
            self._session,
            growth.newest_token_ids,
            wanted=len(newest),
            parents=growth.newest_parents,
            grows=newest.start > 0,
        )

    def take(self, logits: Logits) -> bool:
        return self._growth.grow([self._law(row) for row in logits])

    def result(self) -> tuple[list[Drafted], int]:
        """The tree, and the length of the draft KV without it."""
        return self._growth.nodes, self._session.length

    def _law(self, logits: Array) -> Array:
        width = self._growth.width
        if not self._sampling.greedy or self._preset.with_replacement:
            law = law_from_logits(logits, self._sampling)
        else:
            unlikelier = law_from_logits(logits, replace(self._sampling, temperature=1.0))
            law = truncate(unlikelier, Truncation(top_k=width))
        return law_to_draft_from(law, self._preset)
