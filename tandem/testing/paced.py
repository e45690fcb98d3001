"""An engine whose passes take a declared time: a small model in the place of a paper's hardware.
Results made with pacing must say so."""

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace

from tandem.backends.interface import (
    Engine,
    ForwardCancelled,
    ForwardRequest,
    Logits,
    Session,
    never,
    open_session,
)
from tandem.core.errors import InvalidArgument

_SPIN_S = 200e-6  # sleeping is no more precise than this
_NAP_S = 1e-3  # how often a waiting pass looks whether it was cancelled
_KEPT_S = 5e-3  # an engine thread asks for the next step of a draft sooner than that


class PacedDevice:
    """An accelerator that paced engines share, which computes one pass at a time.

    Of the passes that wait for it, those that go first begin first: the short ones of a draft
    model, so that sessions which draft together are also verified together. For the same reason it
    is kept for a moment after such a pass, until the next step of the same drafts asks for it."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._changed = threading.Condition()
        self._busy = False
        self._first_waiting = 0
        self._kept_until_s = 0.0

    @contextmanager
    def turn(self, goes_first: bool, cancelled: Callable[[], bool] = never) -> Iterator[None]:
        """Hold the accelerator for a pass. Raises ForwardCancelled where nobody wants the pass any
        more before it begins."""
        with self._changed:
            self._first_waiting += goes_first
            try:
                while self._busy or not (goes_first or self._free_for_others()):
                    if cancelled():
                        raise ForwardCancelled("cancelled before a paced pass")
                    self._changed.wait(_NAP_S)
                self._busy = True
            finally:
                self._first_waiting -= goes_first
        try:
            yield
        finally:
            with self._changed:
                self._busy = False
                if goes_first:
                    self._kept_until_s = self._clock() + _KEPT_S
                self._changed.notify_all()

    def _free_for_others(self) -> bool:
        return not self._first_waiting and self._clock() >= self._kept_until_s


class PacedEngine:
    """Passes everything on to `engine`, but a pass lasts first_s + (n - 1) · further_s, and
    batch_s more for each token of its other requests.

    n is the number of tokens of the longest request. Early exits' logits are held back for their
    share of that time. A pass whose computation alone took longer counts in `late_passes`.
    """

    def __init__(
        self,
        engine: Engine,
        first_s: float,
        further_s: float,
        batch_s: float = 0.0,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
        device: PacedDevice | None = None,
        goes_first: bool = False,
    ) -> None:
        """Wrap `engine`. Raises InvalidArgument for a duration that is negative or not finite.

        Args:
            device: the accelerator that it shares with other engines; None: it shares none.
            goes_first: whether its passes go first there; see `PacedDevice`."""
        for field, seconds in (
            ("first_s", first_s),
            ("further_s", further_s),
            ("batch_s", batch_s),
        ):
            if not 0.0 <= seconds < float("inf"):
                raise InvalidArgument(field, f"{seconds} is not a duration in seconds")
        self._engine = engine
        self._first_s = first_s
        self._further_s = further_s
        self._batch_s = batch_s
        self._clock = clock
        self._sleep = sleep
        self._device = device
        self._goes_first = goes_first
        self.late_passes = 0
        self.model_name = engine.model_name
        self.open = engine.open
        self.fork = engine.fork
        self.capabilities = engine.capabilities
        self.vision = engine.vision
        self.kv_files = engine.kv_files
        self.kv_copies = engine.kv_copies
        self.vocabulary_size = engine.vocabulary_size
        self.context_length = engine.context_length
        self.eos_token_ids = engine.eos_token_ids
        self.vocabulary_hash = engine.vocabulary_hash
        self.kv_bytes_per_token = engine.kv_bytes_per_token
        self.exit_depths = engine.exit_depths
        self.layer_count = engine.layer_count
        self.hidden_size = engine.hidden_size
        self.exit_temperatures = engine.exit_temperatures
        self.inner = engine

    def open_for(self, owner: str, capacity: int, spare: int = 0) -> Session:
        return open_session(self._engine, owner, capacity, spare)

    @property
    def kv_bytes_in_use(self) -> int:
        return self._engine.kv_bytes_in_use

    @property
    def sessions_open(self) -> int:
        return self._engine.sessions_open

    def forward(
        self, batch: Sequence[ForwardRequest], cancelled: Callable[[], bool] = never
    ) -> list[Logits]:
        device = self._device
        with nullcontext() if device is None else device.turn(self._goes_first, cancelled):
            return self._pass(batch, cancelled)

    def _pass(self, batch: Sequence[ForwardRequest], cancelled: Callable[[], bool]) -> list[Logits]:
        started_s = self._clock()
        lengths = [request.session.length for request in batch]
        held: list[_Held] = []
        answers = self._engine.forward([_holding(s, held) for s in batch], cancelled)
        tokens = [len(request.token_ids) for request in batch]
        longest = max(tokens, default=0)
        if longest == 0:
            return answers
        lasts_s = self._first_s + (longest - 1) * self._further_s
        lasts_s += (sum(tokens) - longest) * self._batch_s
        if self._clock() > started_s + lasts_s:
            self.late_passes += 1
        going_on = True
        for index, deliver in held:
            due_s = started_s + self.exit_depths[index] * lasts_s
            going_on = going_on and self._wait(due_s, cancelled)
            if going_on:
                deliver()
        if not going_on or not self._wait(started_s + lasts_s, cancelled):
            for request, length in zip(batch, lengths, strict=True):
                request.session.rollback(length)
            raise ForwardCancelled("cancelled during a paced pass")
        return answers

    def _wait(self, until_s: float, cancelled: Callable[[], bool]) -> bool:
        """Wait; returns whether the time passed without a cancellation."""
        while (left_s := until_s - self._clock()) > 0:
            if cancelled():
                return False
            if left_s > _SPIN_S:
                self._sleep(min(left_s - _SPIN_S, _NAP_S))
        return True


_Held = tuple[int, Callable[[], None]]


def _holding(request: ForwardRequest, held: list[_Held]) -> ForwardRequest:
    """Return the request with what its early exits say kept in `held`, in the order of the
    exits."""
    if not request.exits:
        return request

    def hold(index: int, logits: Logits) -> None:
        held.append((index, lambda: request.on_exit(index, logits)))

    return replace(request, on_exit=hold)
