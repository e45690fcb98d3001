"""The state of one answer in its grammar. Invariants: what is allowed is a function of the answer;
the parser underneath is moved from one text to the next, back and forth, and never sees the end of
the text; and it is never given a token before it was seen, without the interpreter's lock, what
that will cost."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
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

MAX_KEPT = 128
"""Masks of one session: of the rows of a pass, of branches, and those that come back."""

MAX_STEP_S = 0.05
"""Of computing one mask; usual ones take a tenth of a millisecond."""
MAX_SLOW_STEP_S = 0.25
"""Of the one mask of an answer that may take longer: what a busy machine does meanwhile may count
as the thread's own time, which one of some ten thousand usual masks met."""
MAX_ANSWER_S = 10.0
"""Of computing all masks of an answer."""
FREE_STEP_S = 0.001
"""What a mask may take before it counts against its tenant's quota."""

Submit = Callable[[Callable[[], None]], "Future[None]"]
OnCost = Callable[[float], None]


class MatcherMask:
    """Implements `GrammarMask`, on any thread. Once a step takes far too long, or a second one too
    long, it fails for good, with InvalidArgument("grammar")."""

    def __init__(
        self,
        matcher: LLMatcher,
        vocabulary_size: int,
        complete_ids: frozenset[int],
        eos_token_ids: frozenset[int],
        submit: Submit,
        on_cost: OnCost = lambda seconds: None,
    ) -> None:
        """Create the masks of one answer. `complete_ids`: by which the parser says that the text is
        complete; `eos_token_ids`: the tokens that end it. `submit` runs the computation of masks
        that will soon be asked for; `on_cost` is called, on any thread, with the seconds that
        expensive masks took beyond `FREE_STEP_S`."""
        self._matcher = matcher
        self.vocabulary_size = vocabulary_size
        self._complete = sorted(complete_ids)
        self._eos = sorted(eos_token_ids)
        self._submit = submit
        self._on_cost = on_cost
        self._answer: tuple[int, ...] = ()
        self._kept: dict[tuple[int, ...], Bits] = {}
        self._lock = threading.Lock()
        self._took_s = 0.0
        self._was_slow = False
        self._failure: InvalidArgument | None = None

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

    def prepare(self, answers: Sequence[tuple[int, ...]]) -> Future[None] | None:
        """Start computing the masks that are missing. Raises ResourceExhausted if too much is
        waiting to be computed."""
        due = [answer for answer in answers if answer not in self._kept]
        return self._submit(lambda: self._compute(due)) if due else None

    def _compute(self, answers: Sequence[tuple[int, ...]]) -> None:
        """Compute masks in advance, on a thread for masks; whoever asks for one meets its error."""
        with suppress(InvalidArgument):
            for answer in answers:
                self._bits_after(answer)

    def _bits_after(self, answer: tuple[int, ...]) -> Bits:
        """Return the mask after the answer; no bit is set if the answer has no place in the
        grammar."""
        if (known := self._kept.get(answer)) is not None:
            return known
        with self._lock:
            if (known := self._kept.get(answer)) is not None:
                return known
            if self._failure is not None:
                raise InvalidArgument(self._failure.field, self._failure.why)
            try:
                bits = self._bits() if self._move(answer) else _NOTHING
            except InvalidArgument as error:
                self._failure = error
                raise
            return self._keep(answer, bits)

    def _move(self, answer: tuple[int, ...]) -> bool:
        """Move the parser to the answer as far as possible. Returns whether it could follow all of
        it. Giving it a token, or asking whether one has a place, holds the interpreter's lock, for
        seconds in the worst grammars. Computing the mask before that token does not, and looks at
        least as far: so what is too dear fails there."""
        before = self._answer
        common = _common(before, answer)
        if common < len(before):
            self._matcher.rollback(len(before) - common)
            self._answer = answer[:common]
        for length in range(common, len(answer)):
            token_id = answer[length]
            text = answer[:length]
            if token_id in self._eos:
                return False
            bits = self._kept.get(text)
            if bits is None:
                bits = self._keep(text, self._bits())
            if not _is_set(bits, token_id):
                return False
            self._matcher.consume_token(token_id)
            self._check()
            self._answer = answer[: length + 1]
        return True

    def _bits(self) -> Bits:
        """Compute the mask at the parser's text."""
        before_s = time.thread_time()
        bits = np.frombuffer(self._matcher.compute_bitmask(), dtype=np.uint8)
        took_s = time.thread_time() - before_s
        self._took_s += took_s
        if took_s > FREE_STEP_S:
            self._on_cost(took_s - FREE_STEP_S)
        self._check()
        if took_s > MAX_STEP_S:
            if self._was_slow or took_s > MAX_SLOW_STEP_S:
                why = f"a step took {took_s:.2g} s to compute; the maximum is {MAX_STEP_S:g} s"
                raise InvalidArgument("grammar", why)
            self._was_slow = True
        if self._took_s > MAX_ANSWER_S:
            why = (
                f"its masks took {MAX_ANSWER_S:g} s to compute, which is the maximum for an answer"
            )
            raise InvalidArgument("grammar", why)
        return bits

    def _keep(self, answer: tuple[int, ...], bits: Bits) -> Bits:
        if len(self._kept) >= MAX_KEPT:
            del self._kept[next(iter(self._kept))]
        self._kept[answer] = bits
        return bits

    def _check(self) -> None:
        if self._matcher.is_error():
            why = self._matcher.get_error().partition("\n")[0][:300]
            raise InvalidArgument("grammar", why)


def _is_set(bits: Bits, token_id: int) -> bool:
    byte, bit = divmod(token_id, 8)
    return byte < len(bits) and bool(bits[byte] >> bit & 1)


def _common(one: tuple[int, ...], other: tuple[int, ...]) -> int:
    """Return the length of their common beginning."""
    length = min(len(one), len(other))
    if one[:length] == other[:length]:
        return length
    return next(index for index in range(length) if one[index] != other[index])
