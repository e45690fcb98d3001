"""An engine that takes a declared time per pass: a small model in the place of a paper's hardware.

Results made with pacing must say so. This module must not import torch.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from tandem.core.errors import InvalidArgument
from tandem.engine.base import (
    Engine,
    ForwardCancelled,
    Logits,
    Segment,
    Session,
    kv_files_of,
    never,
    vision_of,
)

_SPIN_S = 200e-6  # sleeping is no more precise than this
_NAP_S = 1e-3  # how often a waiting pass looks whether it was cancelled


class PacedEngine:
    """Passes everything on to `engine`, but a pass lasts first_s + (n - 1) · further_s.

    n is the number of tokens of the longest segment. The engine computes, then the rest of the time
    is waited out; what an early exit says is held back until that share of the pass's time is over
    that the exit waits for. A pass whose computation alone took longer counts in `late_passes`.
    """

    def __init__(
        self,
        engine: Engine,
        first_s: float,
        further_s: float,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        for field, seconds in (("first_s", first_s), ("further_s", further_s)):
            if not 0.0 <= seconds < float("inf"):
                raise InvalidArgument(field, f"{seconds} is not a duration in seconds")
        self._engine = engine
        self._first_s, self._further_s = first_s, further_s
        self._clock, self._sleep = clock, sleep
        self.late_passes = 0
        self.model_name = engine.model_name
        self.vision = vision_of(engine)
        self.kv_files = kv_files_of(engine)
        self.vocabulary_size = engine.vocabulary_size
        self.context_length = engine.context_length
        self.eos_token_ids = engine.eos_token_ids
        self.vocabulary_hash = engine.vocabulary_hash
        self.kv_bytes_per_token = engine.kv_bytes_per_token
        self.exit_depths = engine.exit_depths

    @property
    def kv_bytes_in_use(self) -> int:
        return self._engine.kv_bytes_in_use

    @property
    def sessions_open(self) -> int:
        return self._engine.sessions_open

    def open(self, capacity: int, spare: int = 0) -> Session:
        return self._engine.open(capacity, spare)

    def fork(self, parent: Session, length: int, capacity: int) -> Session:
        return self._engine.fork(parent, length, capacity)

    def forward(
        self, batch: Sequence[Segment], cancelled: Callable[[], bool] = never
    ) -> list[Logits]:
        started_s = self._clock()
        lengths = [segment.session.length for segment in batch]
        held: list[_Held] = []
        answers = self._engine.forward([_holding(s, held) for s in batch], cancelled)
        longest = max((len(segment.token_ids) for segment in batch), default=0)
        if longest == 0:
            return answers
        lasts_s = self._first_s + (longest - 1) * self._further_s
        if self._clock() > started_s + lasts_s:
            self.late_passes += 1
        going_on = True
        for index, told in held:
            going_on = going_on and self._wait(
                started_s + self.exit_depths[index] * lasts_s, cancelled
            )
            if going_on:
                told()
        if not going_on or not self._wait(started_s + lasts_s, cancelled):
            for segment, length in zip(batch, lengths, strict=True):
                segment.session.rollback(length)
            raise ForwardCancelled("cancelled during a paced pass")
        return answers

    def _wait(self, until_s: float, cancelled: Callable[[], bool]) -> bool:
        """Whether the time passed without a cancellation."""
        while (left_s := until_s - self._clock()) > 0:
            if cancelled():
                return False
            if left_s > _SPIN_S:
                self._sleep(min(left_s - _SPIN_S, _NAP_S))
        return True


_Held = tuple[int, Callable[[], None]]


def _holding(segment: Segment, held: list[_Held]) -> Segment:
    """The segment with what its early exits say kept in `held`, in the order of the exits."""
    if not segment.exits:
        return segment

    def hold(index: int, logits: Logits) -> None:
        held.append((index, lambda: segment.on_exit(index, logits)))

    return replace(segment, on_exit=hold)
