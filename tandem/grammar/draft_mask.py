"""A grammar for drafts, which may be anything: a mask that is late is done without. Invariant: all
that one session's masks make others wait for is a bounded time, however slow its grammar is."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future, wait

import numpy as np

from tandem.core.errors import InvalidArgument, ResourceExhausted
from tandem.core.processors import Mask
from tandem.grammar.matcher_mask import MatcherMask

LATE_S = 0.02
"""A mask is waited for so long; a usual one takes a tenth of a millisecond."""
MAX_LATE = 5
"""Masks that may be late; from then on none is waited for that is not there."""
STRICT_LATE_S = 0.25
"""Where the drafts may become the text, a mask cannot be done without."""


class DraftMask:
    """Implements `GrammarMask` for the one thread that drafts."""

    def __init__(self, mask: MatcherMask, strict: bool = False) -> None:
        """Wrap `mask`. `strict`: raise InvalidArgument("grammar") for a mask that is late."""
        self._mask = mask
        self._strict = strict
        self._late: Future[None] | None = None
        self._patience = MAX_LATE
        self.vocabulary_size = mask.vocabulary_size

    def allowed(self, answer: tuple[int, ...]) -> Mask | None:
        if self._is_there(answer):
            try:
                return self._mask.allowed(answer)
            except InvalidArgument:  # the verifier's answer fails of it, if it must
                if self._strict:
                    raise
        return np.ones(self.vocabulary_size, dtype=np.bool_)

    def forced(self, answer: tuple[int, ...]) -> int | None:
        if self._is_there(answer):
            try:
                return self._mask.forced(answer)
            except InvalidArgument:
                if self._strict:
                    raise
        return None

    def prepare(self, answers: Sequence[tuple[int, ...]]) -> Future[None] | None:
        """See the wrapped mask."""
        if self._late is not None and not self._late.done():
            return self._late
        try:
            return self._mask.prepare(answers)
        except ResourceExhausted:
            return None

    def _is_there(self, answer: tuple[int, ...]) -> bool:
        """Return whether the mask after the answer is ready."""
        if self._late is not None and not self._late.done():
            return False
        try:
            pending = self._mask.prepare([answer])
        except ResourceExhausted:
            if self._strict:
                raise
            return False
        if pending is None:
            return True
        patient_s = STRICT_LATE_S if self._strict else LATE_S if self._patience > 0 else 0.0
        if wait([pending], patient_s).done:
            return True
        if self._strict:
            raise InvalidArgument("grammar", f"computing a mask took more than {patient_s:g} s")
        self._late = pending
        self._patience -= 1
        return False
