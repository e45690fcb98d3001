"""Drafting after documents as a job of the engine: a sequence for each document, all fed the same
tokens in one pass. Belongs to the engine's thread."""

import time
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from tandem.backends.interface import Engine, ForwardRequest, Logits, Session
from tandem.backends.request_checks import check_length
from tandem.core.errors import InvalidArgument
from tandem.core.probs import Array, SamplingParams, log_partition, probs_from_logits
from tandem.core.processors import LogitsProcessor
from tandem.runtime.engine_jobs import BLOCKED_TIMEOUT_S, GroupJob
from tandem.two_sided.protocol.decoder_machine import DecodeTask, LocalDraft
from tandem.two_sided.protocol.draft_head import DraftProbs
from tandem.two_sided.protocol.mixture import local_probs


class DocumentGroup:
    """Sequences of up to `capacity` tokens after their documents; without documents, one empty
    one."""

    def __init__(
        self, engine: Engine, documents: Sequence[Session], capacity: int, leading_length: int = 0
    ) -> None:
        """Open a sequence after each document. Each of `documents` holds its whole document and
        nothing else, and is only read. Its first `leading_length` tokens also begin the text that
        follows, and count there."""
        self._starts = [document.length - leading_length for document in documents] or [0]
        self._sessions: list[Session] = []
        try:
            for document, start in zip(documents, self._starts, strict=False):
                self._sessions.append(engine.fork(document, document.length, start + capacity))
            if not documents:
                self._sessions.append(engine.open(capacity))
        except BaseException:
            self.close()
            raise

    @property
    def length(self) -> int:
        """Tokens after each document whose keys and values are kept."""
        return self._sessions[0].length - self._starts[0]

    def rollback(self, length: int) -> None:
        """Forget every token after the first `length` that follow the documents. Raises
        InvalidArgument("length") unless 0 <= length <= self.length."""
        check_length(length, self.length)
        for session, start in zip(self._sessions, self._starts, strict=True):
            session.rollback(start + length)

    def requests(self, token_ids: tuple[int, ...]) -> list[ForwardRequest]:
        """Feed the same tokens to all, for the logits after the last of them."""
        return [ForwardRequest(session, token_ids, logits_to_keep=1) for session in self._sessions]

    def close(self) -> None:
        """Free all but the documents. Closing twice is allowed."""
        for session in self._sessions:
            session.close()


def group_kv_tokens(documents: int, capacity: int) -> int:
    """Return how many tokens a group keeps beside its documents', with keys and values."""
    return max(1, documents) * capacity


Draw = Callable[[Array, int], tuple[int, DraftProbs | None]]
"""The draft for an absolute position from the side's distribution [V] there, and the distribution
that is sent."""


OnLocalDraft = Callable[[LocalDraft, float], None]
"""Told of a draft and of the seconds since the one before it, or since the first pass began."""


class DecodeJob(GroupJob[tuple[LocalDraft | None, float]]):
    """Drafts the tokens of a task one by one, each from the mixture of what the sequences say.

    Every draft but the last is handed to `on_draft` on the engine thread; the last is the result,
    or None where the processor leaves no token. A token is one pass over all sequences."""

    def __init__(
        self,
        group: DocumentGroup,
        *,
        work: DecodeTask,
        sampling: SamplingParams,
        draw: Draw,
        on_draft: OnLocalDraft,
        processor: LogitsProcessor | None = None,
    ) -> None:
        self._group = group
        self._work = work
        self._kept = work.keep
        self._unfed = work.token_ids
        self._processor = processor
        self._weights = np.array(work.mixture.weights)
        self._answer_ids = work.answer_ids
        self._sampling = sampling
        self._draw = draw
        self._on_draft = on_draft
        self._drafts = 0
        self._last: LocalDraft | None = None
        self._dead_end = False
        self._since_s = self._took_s = 0.0

    def timeout_error(self) -> Exception:
        return InvalidArgument("grammar", f"its masks took more than {BLOCKED_TIMEOUT_S:g} s")

    def requests(self) -> Sequence[ForwardRequest]:
        if self._processor is not None:
            self.awaits = self._processor.prepare([self._answer_ids])
        self._since_s = self._since_s or time.perf_counter()
        self._group.rollback(self._kept)  # a pass that failed may have fed some sequences
        return self._group.requests(self._unfed)

    def take_all(self, logits: Sequence[Logits]) -> bool:
        """Draw a token; True if it is the last."""
        probs, log_left = self._side_probs([rows[0] for rows in logits])
        if probs is None:
            self._dead_end = True
            return True
        token_id, sent = self._draw(probs, self._work.position + self._drafts)
        now = time.perf_counter()
        took_s = now - self._since_s
        self._since_s = now
        self._kept = self._group.length
        self._unfed = (token_id,)
        self._last = LocalDraft(token_id, sent, self._kept, log_left)
        self._answer_ids += (token_id,)
        self._drafts += 1
        if self._drafts == self._work.count:
            self._took_s = took_s
            return True
        self._on_draft(self._last, took_s)
        return False

    def _side_probs(self, logits: Sequence[Array]) -> tuple[Array | None, float]:
        """Return the side's distribution, None where no token is left; and the mass that is
        (log)."""
        if self._processor is None:
            return side_probs(logits, self._weights, self._sampling), 0.0
        processor = self._processor
        answer_ids = self._answer_ids
        rows = [processed_row(row, self._sampling, processor, answer_ids) for row in logits]
        if all(log_left == -np.inf for _, log_left in rows):
            return None, -np.inf
        weights, log_left = self._work.mixture.left([log_left for _, log_left in rows])
        counting = [scores for (scores, _), weight in zip(rows, weights, strict=True) if weight > 0]
        return side_probs(counting, weights[weights > 0], self._sampling), log_left

    def result(self) -> tuple[LocalDraft | None, float]:
        assert self._last is not None or self._dead_end, "the job is done"
        return None if self._dead_end else self._last, self._took_s


def processed_row(
    logits: Array, sampling: SamplingParams, processor: LogitsProcessor, answer: tuple[int, ...]
) -> tuple[NDArray[np.float32], float]:
    """Return a document's logits [V] after the processors, and the logarithm of the mass that those
    of them that are factors of a token's probability leave, at the temperature, before any cut."""
    scores = processor.repeated(logits, answer)
    before = log_partition(scores, sampling.temperature)
    if before == -np.inf:
        raise InvalidArgument("logits", "all are -inf")
    scores = processor.weighted(scores, answer)
    return scores, log_partition(scores, sampling.temperature) - before


def side_probs(logits: Sequence[Array], weights: Array, sampling: SamplingParams) -> Array:
    """Return a side's distribution [V] float32: its documents' distributions after `sampling`, by
    their shares [documents]; a single one as it is, bit for bit (DRAGON eq. 2 within one side)."""
    distributions = [probs_from_logits(row, sampling) for row in logits]
    if len(distributions) == 1:
        return distributions[0]
    return local_probs(np.stack(distributions), weights).astype(np.float32)
