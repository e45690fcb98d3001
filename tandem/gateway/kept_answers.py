"""Streams that survive their callers' connections: an answer goes on without a reader, and can be
read again from any event on. Invariants: only its owner finds it; it is kept no longer than
`KEPT_S` without a reader, and no more answers and bytes than the limits say; tenants share the
places; whoever reads slowly holds up nobody."""

from __future__ import annotations

import asyncio
import time
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING

from starlette.types import Receive

from tandem.core.errors import ResourceExhausted
from tandem.gateway.connection_body import cancel_on_disconnect, fail_on_shutdown
from tandem.gateway.errors import ApiError, error_body
from tandem.gateway.event_stream import EVENTS, BegunAnswer, StreamResponse, Write
from tandem.net.auth import RECHECK_S, Recheck
from tandem.net.fair_shares import FairShares
from tandem.net.quotas import HolderRefused
from tandem.net.tenant import Tenant, paying_tenant

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

KEPT_S = 120.0
"""How long an answer is kept, and goes on, while nobody reads it."""
MOST_KEPT = 64
"""Answers kept at once, of all callers."""
MOST_BYTES = 2**20
"""Kept of one answer: its last events. An answer of 10,000 tokens has as many."""
PLACES = "places for resumable answers"


class KeptAnswer:
    """One answer; it is written by a task of its own."""

    def __init__(
        self,
        answer: BegunAnswer,
        owner: Tenant,
        ending: asyncio.Event,
        why_not: Callable[[], object],
    ) -> None:
        """Let the answer go on until `why_not` says why its owner may not have it any more."""
        self.writer = answer.writer
        self.owner = owner
        self.ended = False
        self.is_whole = False
        """Whether its events say how it ended."""
        self.failure: ApiError | None = None
        """What broke the answer off."""
        self.dropped = 0
        """First events that are not kept any more."""
        self.readers = 0
        self.was_cancelled = False
        self.was_read = False
        """Whether somebody read it to its end."""
        self._events: list[bytes] = []
        self._bytes = 0
        self._changed = asyncio.Event()
        self.task = asyncio.create_task(self._write(answer, ending, why_not))

    @property
    def is_done_with(self) -> bool:
        return self.ended and self.was_read and not self.readers

    async def _write(
        self, answer: BegunAnswer, ending: asyncio.Event, why_not: Callable[[], object]
    ) -> None:
        self.failure = ApiError(410, "the answer was ended before it was complete", code="deleted")
        try:
            guarded = partial(fail_on_shutdown, ending)
            with Recheck(why_not, RECHECK_S):
                self.failure = await answer.write_to(self._append, guarded)
                self.is_whole = True
        finally:
            self.ended = True
            self._changed.set()

    async def cancel(self) -> None:
        """End the answer where it is; one that has ended stays as it is."""
        if self.ended:
            return
        self.failure = ApiError(410, "the answer was cancelled", code="cancelled")
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)
        self.was_cancelled = not self.is_whole
        self.ended = True  # what had not begun does not say so itself
        self._changed.set()

    async def _append(self, event: bytes) -> None:
        if self.writer.stream_form.media_type == EVENTS:
            number = self.dropped + len(self._events)
            event = f"id: {self.writer.id}:{number}\n".encode() + event
        self._events.append(event)
        self._bytes += len(event)
        while self._bytes > MOST_BYTES and len(self._events) > 1:
            self._bytes -= len(self._events.pop(0))
            self.dropped += 1
        self._changed.set()

    async def read(self, place: int, write: Write) -> None:
        """Write the events from the one at `place` on, as they come, until the last one. A reader
        who is so slow that the next event is not kept any more gets an error, and so does one of an
        answer that is deleted."""
        while place >= self.dropped:
            for event in self._events[place - self.dropped :]:
                await write(event)
                place += 1
                if place < self.dropped:
                    break
            if place < self.dropped + len(self._events):
                continue
            if self.ended:
                if self.is_whole:
                    self.was_read = True
                else:
                    await self._break_off(self.failure, write)
                return
            self._changed.clear()
            await self._changed.wait()
        why = f"only the events from {self.dropped} on are still kept"
        await self._break_off(ApiError(410, why, code="events_dropped"), write)

    async def _break_off(self, failure: ApiError | None, write: Write) -> None:
        """End a reader's events by an error: what has no such end is taken for a whole answer."""
        form = self.writer.stream_form
        if failure is not None:
            await write(form.event(error_body(failure, form.path)))


class KeptStream(StreamResponse):
    """Sends the events of a kept answer from the one at `place` on."""

    def __init__(self, kept: KeptAnswers, answer: KeptAnswer, place: int) -> None:
        super().__init__(answer.writer.stream_form)
        self._kept = kept
        self._answer = answer
        self._place = place

    async def write_events(self, receive: Receive, write: Write) -> None:
        reading = self._answer.read(self._place, write)
        with self._kept.reading(self._answer):
            await cancel_on_disconnect(receive, asyncio.Event(), reading)


class KeptAnswers:
    """Those of one gateway, by their ids. `kept_s`: how long each is kept while nobody reads it."""

    def __init__(self, ending: asyncio.Event, kept_s: float = KEPT_S) -> None:
        self._ending = ending
        self._kept_s = kept_s
        self._answers: dict[str, KeptAnswer] = {}
        self._leaving: dict[str, asyncio.TimerHandle] = {}
        self._shares = FairShares({PLACES: MOST_KEPT})

    @contextmanager
    def room(self) -> Iterator[None]:
        """Hold the place of one answer more of this caller until it is kept. Answers that were read
        to their end make room, the oldest first. Raises ResourceExhausted if there is none."""
        owner = paying_tenant()
        self._make_room(owner)
        self._shares.take(owner, PLACES)
        try:
            yield
        finally:
            self._shares.take(owner, PLACES, -1)

    def _make_room(self, owner: Tenant) -> None:
        while True:
            try:
                return self._shares.check(owner, PLACES, 1, time.monotonic())
            except ResourceExhausted as refusal:
                own_only = isinstance(refusal, HolderRefused)
                read = (
                    answer
                    for answer in self._answers.values()
                    if answer.is_done_with and (answer.owner == owner or not own_only)
                )
                if (oldest := next(read, None)) is None:
                    raise
            self._drop(oldest)

    def keep(self, answer: BegunAnswer, why_not: Callable[[], object]) -> KeptAnswer:
        """Let an answer go on by itself, for this caller, until `why_not` says why it may not."""
        kept = KeptAnswer(answer, paying_tenant(), self._ending, why_not)
        self._answers[answer.writer.id] = kept
        self._shares.take(kept.owner, PLACES)
        self._leave_later(kept)
        return kept

    def find(self, number: str) -> KeptAnswer:
        """Return this caller's answer. Raises ApiError 404."""
        found = self._answers.get(number)
        if found is None or found.owner != paying_tenant():
            why = f"no answer with the id '{number[:80]}' is kept here"
            raise ApiError(404, why, param="id", code="not_found")
        return found

    def stream(self, number: str, place: int) -> KeptStream:
        """Return the events of this caller's answer from the one at `place` on. Raises ApiError 404
        or 410."""
        found = self.find(number)
        if place < found.dropped:
            why = f"only the events from {found.dropped} on are still kept"
            raise ApiError(410, why, param="starting_after", code="events_dropped")
        return KeptStream(self, found, place)

    async def cancel(self, number: str) -> KeptAnswer:
        """End this caller's answer, and return what there is of it. Raises ApiError 404."""
        answer = self.find(number)
        with self.reading(answer):
            await answer.cancel()
        return answer

    async def delete(self, number: str) -> None:
        """End this caller's answer and forget it. Raises ApiError 404."""
        answer = self.find(number)
        self._drop(answer)
        await asyncio.gather(answer.task, return_exceptions=True)

    @contextmanager
    def reading(self, answer: KeptAnswer) -> Iterator[None]:
        """Keep an answer while it is read."""
        answer.readers += 1
        try:
            yield
        finally:
            answer.readers -= 1
            self._leave_later(answer)

    def _leave_later(self, answer: KeptAnswer) -> None:
        number = answer.writer.id
        if (timer := self._leaving.pop(number, None)) is not None:
            timer.cancel()
        if number in self._answers:
            loop = asyncio.get_running_loop()
            self._leaving[number] = loop.call_later(self._kept_s, self._leave, answer)

    def _leave(self, answer: KeptAnswer) -> None:
        if not answer.readers:
            self._drop(answer)

    def _drop(self, answer: KeptAnswer) -> None:
        number = answer.writer.id
        if (timer := self._leaving.pop(number, None)) is not None:
            timer.cancel()
        if self._answers.pop(number, None) is not None:
            self._shares.take(answer.owner, PLACES, -1)
        answer.task.cancel()


def place_after(last_event_id: str, number: str) -> int:
    """Return the place of the event behind the one with this id; 0 if that is none of the answer
    `number`: a client may name the event that it read last of another one."""
    of, _, place = last_event_id.rpartition(":")
    return int(place) + 1 if of == number and place.isascii() and place.isdigit() else 0
