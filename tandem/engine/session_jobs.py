"""The two kinds of work a session asks of its engine: drafting tokens, and laws to judge them by.

Invariant: a draft token is drawn from the law the other end will reconstruct. Must not import grpc.
"""

from __future__ import annotations

from tandem.core.laws import Array, Sampling, law_from_logits, laws_from_logits
from tandem.engine.base import Logits, Segment, Session
from tandem.policy.draft_laws import law_to_draft_from
from tandem.policy.presets import Preset
from tandem.protocol.cloud import VerifyWork
from tandem.protocol.outputs import Drafted, DraftWork
from tandem.protocol.rules import AcceptanceRule


class DraftJob:
    """Drafts the tokens of a work one by one; ends early after an end-of-text token."""

    def __init__(
        self,
        session: Session,
        work: DraftWork,
        sampling: Sampling,
        rule: AcceptanceRule,
        preset: Preset,
        ends: frozenset[int],
    ) -> None:
        self._session = session
        self._work = work
        self._sampling = sampling
        self._rule = rule
        self._preset = preset
        self._ends = ends
        self._drafts: list[Drafted] = []

    def segment(self) -> Segment:
        if self._drafts:
            return Segment(self._session, (self._drafts[-1].token_id,), wanted=1)
        self._session.rollback(self._work.keep)
        return Segment(self._session, self._work.token_ids, wanted=1)

    def take(self, logits: Logits) -> bool:
        law = law_to_draft_from(law_from_logits(logits[0], self._sampling), self._preset)
        token_id = self._rule.propose(law, self._work.position + len(self._drafts))
        self._drafts.append(Drafted(token_id, law))
        return len(self._drafts) == self._work.count or token_id in self._ends

    def result(self) -> tuple[list[Drafted], int]:
        """The drafts and the length of the draft KV."""
        return self._drafts, self._session.length


class VerifyJob:
    """One pass over a work's tokens; the result is its `wanted` laws, float32 [vocabulary], as far
    as the acceptance rule still needs them."""

    def __init__(
        self, session: Session, work: VerifyWork, sampling: Sampling, rule: AcceptanceRule
    ) -> None:
        self._session = session
        self._work = work
        self._sampling = sampling
        self._rule = rule
        self._laws: list[Array] = []

    def segment(self) -> Segment:
        self._session.rollback(self._work.keep)
        return Segment(self._session, self._work.token_ids, self._work.wanted)

    def take(self, logits: Logits) -> bool:
        laws = laws_from_logits(logits, self._sampling)
        first = self._work.keep + len(self._work.token_ids) - self._work.wanted + 1
        self._laws = [self._rule.prepare(law, first + i) for i, law in enumerate(laws)]
        return True

    def result(self) -> list[Array]:
        return self._laws
