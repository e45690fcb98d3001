"""The two kinds of work that answering from documents asks of an engine: reading and drafting.

Both feed all sequences of a request in one pass. Must not import grpc.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import numpy as np

from tandem.core.aggregation import local_law
from tandem.core.laws import Array, Sampling, law_from_logits
from tandem.engine.base import Engine, Logits, Segment, Session
from tandem.engine.document_group import DocumentGroup
from tandem.protocol.decoder import DecodeWork, LocalDraft

Draw = Callable[[Array, int], tuple[int, Array | None]]
"""The draft for an absolute position from the side's law [V] there, and the law that is sent."""


ROWS_PER_PASS = 1024
"""Tokens of one request in one pass: others wait for it, and its activations take memory."""

OnLocalDraft = Callable[[LocalDraft, float], None]
"""Told of a draft and of the seconds since the one before it, or since the first pass began."""


class DecodeJob:
    """A `GroupJob` that drafts the tokens of a work one by one, each from the mixture of what the
    sequences say.

    Every draft but the last is handed to `on_draft` on the engine thread; the last is the result.
    A token is one pass over all sequences; a long prompt takes as many as its rows need, between
    which others have their turn.
    """

    def __init__(
        self,
        group: DocumentGroup,
        work: DecodeWork,
        sampling: Sampling,
        draw: Draw,
        on_draft: OnLocalDraft,
    ) -> None:
        self._group = group
        self._work = work
        self._weights = np.array(work.shares.weights)
        self._sampling = sampling
        self._draw = draw
        self._on_draft = on_draft
        self._drafts = 0
        self._last: LocalDraft | None = None
        self._since_s = self._took_s = 0.0
        self._feeding = Feeding(())
        self._rows: list[Array] = []

    def segments(self) -> Sequence[Segment]:
        if not self._feeding:
            self._feeding = Feeding(self._begin())
        return self._feeding.segments()

    def _begin(self) -> list[Segment]:
        """What is to be fed before the next token is drawn."""
        if self._last is not None:
            return self._group.segments((self._last.token_id,))
        self._since_s = time.perf_counter()
        self._group.rollback(self._work.keep)
        return self._group.segments(self._work.token_ids)

    def take_all(self, logits: Sequence[Logits]) -> bool:
        self._rows += [rows[0] for rows in logits]
        self._feeding.fed(len(logits))
        return not self._feeding and self._take()

    def _take(self) -> bool:
        """Draw a token; True if it is the last."""
        law = side_law(self._rows, self._weights, self._sampling)
        self._rows = []
        token_id, sent = self._draw(law, self._work.position + self._drafts)
        now = time.perf_counter()
        took_s, self._since_s = now - self._since_s, now
        self._last = LocalDraft(token_id, sent, self._group.length)
        self._drafts += 1
        if self._drafts == self._work.count:
            self._took_s = took_s
            return True
        self._on_draft(self._last, took_s)
        return False

    def result(self) -> tuple[LocalDraft, float]:
        assert self._last is not None, "the job is done"
        return self._last, self._took_s


def side_law(logits: Sequence[Array], weights: Array, sampling: Sampling) -> Array:
    """A side's law [V] float32: its documents' laws after `sampling`, by their shares [documents].

    One document's law is passed on as it is, bit for bit (DRAGON eq. 2 within one side)."""
    laws = [law_from_logits(row, sampling) for row in logits]
    if len(laws) == 1:
        return laws[0]
    return local_law(np.stack(laws), weights).astype(np.float32)


class PrefillJob:
    """A `GroupJob` that computes the keys and values of several texts, each in a full session and,
    so that they are the same bits whoever else is there, in one piece."""

    def __init__(self, engine: Engine, texts: Sequence[tuple[int, ...]]) -> None:
        self._engine = engine
        self._texts = texts
        self._sessions: list[Session] = []
        self._feeding = Feeding(())

    def segments(self) -> Sequence[Segment]:
        if not self._sessions:
            self._sessions = [self._engine.open(len(text)) for text in self._texts]
            pairs = zip(self._sessions, self._texts, strict=True)
            self._feeding = Feeding([Segment(session, text, wanted=0) for session, text in pairs])
        return self._feeding.segments()

    def take_all(self, logits: Sequence[Logits]) -> bool:
        self._feeding.fed(len(logits))
        return not self._feeding

    def result(self) -> list[Session]:
        return self._sessions

    def close(self) -> None:
        """Free the sessions of a job that failed; on the engine's thread."""
        for session in self._sessions:
            session.close()


class Feeding:
    """Segments of one request, to be fed in as many passes as their rows need."""

    def __init__(self, segments: Sequence[Segment]) -> None:
        self._due = [(segment, segment.session.length) for segment in segments]

    def __len__(self) -> int:
        return len(self._due)

    def segments(self) -> list[Segment]:
        """Those of the next pass, at least one; asked for again when a pass is repeated, of which a
        part may have run."""
        chosen: list[Segment] = []
        rows = 0
        for segment, length in self._due:
            rows += len(segment.token_ids)
            if chosen and rows > ROWS_PER_PASS:
                break
            segment.session.rollback(length)
            chosen.append(segment)
        return chosen

    def fed(self, count: int) -> None:
        """The first `count` have run."""
        del self._due[:count]
