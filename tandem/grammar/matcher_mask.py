"""The state of one answer in its grammar. Invariant: what is allowed is a function of the answer;
the parser underneath is moved from one text to the next, back and forth, and never sees the end of
the text."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import Executor
from contextlib import suppress
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from tandem.core.errors import InvalidArgument
from tandem.core.processors import Mask

if TYPE_CHECKING:
    from llguidance import LLMatcher

Bits = NDArray[np.uint8]
_NOTHING = np.zeros(1, dtype=np.uint8)

MAX_KEPT = 64
"""Masks of one session: of the rows of a pass, of branches, and those that come back."""


class MatcherMask:
    """Implements `GrammarMask`, on any thread."""

    def __init__(
        self,
        matcher: LLMatcher,
        vocabulary_size: int,
        complete_ids: frozenset[int],
        eos_token_ids: frozenset[int],
        worker: Executor,
    ) -> None:
        """`complete_ids`: by which the parser says that the text is complete; `eos_token_ids`: the
        tokens that end it. The `worker` computes masks that are asked for soon."""
        self._matcher = matcher
        self.vocabulary_size = vocabulary_size
        self._complete = sorted(complete_ids)
        self._eos = sorted(eos_token_ids)
        self._worker = worker
        self._answer: tuple[int, ...] = ()
        self._kept: dict[tuple[int, ...], Bits] = {}
        self._lock = threading.Lock()

    def allowed(self, answer: tuple[int, ...]) -> Mask | None:
        bits = self._bits_after(answer)
        if not bits.any():
            return None
        allowed = np.unpackbits(bits, count=self.vocabulary_size, bitorder="little").view(np.bool_)
        if allowed[self._complete].any():
            allowed[self._complete] = False
            allowed[self._eos] = True
        return allowed

    def forced(self, answer: tuple[int, ...]) -> int | None:
        bits = self._bits_after(answer)
        if int(np.bitwise_count(bits).sum()) != 1:
            return None
        byte = int(bits.argmax())
        token_id = 8 * byte + int(bits[byte]).bit_length() - 1
        if token_id in self._complete:
            return self._eos[0] if len(self._eos) == 1 else None
        return token_id

    def prepare(self, answers: Sequence[tuple[int, ...]]) -> None:
        due = [answer for answer in answers if answer not in self._kept]
        if due:
            self._worker.submit(self._compute, due)

    def _compute(self, answers: Sequence[tuple[int, ...]]) -> None:
        """On the worker's thread; whoever asks for a mask meets its error."""
        with suppress(InvalidArgument):
            for answer in answers:
                self._bits_after(answer)

    def _bits_after(self, answer: tuple[int, ...]) -> Bits:
        """No bit is set where the answer has no place in the grammar."""
        if (known := self._kept.get(answer)) is not None:
            return known
        with self._lock:
            if (known := self._kept.get(answer)) is not None:
                return known
            bits = _NOTHING
            if self._move(answer):
                bits = np.frombuffer(self._matcher.compute_bitmask(), dtype=np.uint8)
                self._check()
            if len(self._kept) >= MAX_KEPT:
                del self._kept[next(iter(self._kept))]
            self._kept[answer] = bits
        return bits

    def _move(self, answer: tuple[int, ...]) -> bool:
        """Whether the parser could follow the answer; it follows as much of it as it can."""
        before = self._answer
        common = _common(before, answer)
        if common < len(before):
            self._matcher.rollback(len(before) - common)
        self._answer = answer[:common]
        rest = list(answer[common:])
        if any(token_id in self._eos for token_id in rest):
            return False
        known = self._matcher.validate_tokens(rest) if rest else 0
        if known and not self._matcher.consume_tokens(rest[:known]):
            self._check()
        self._answer = answer[: common + known]
        return known == len(rest)

    def _check(self) -> None:
        if self._matcher.is_error():
            why = self._matcher.get_error().partition("\n")[0][:300]
            raise InvalidArgument("grammar", why)


def _common(one: tuple[int, ...], other: tuple[int, ...]) -> int:
    """The length of their common beginning."""
    length = min(len(one), len(other))
    if one[:length] == other[:length]:
        return length
    return next(index for index in range(length) if one[index] != other[index])
