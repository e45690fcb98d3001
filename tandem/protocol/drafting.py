"""The edge's drafts of one request: which are due, which are in flight, which go out.

Invariant: the draft KV is valid exactly for the first `kv_length` tokens of committed + in flight;
there is one work at a time, and it drafts what follows them. Must not import asyncio, grpc, torch
or time.
"""

from __future__ import annotations

from tandem.core.errors import ProtocolError
from tandem.protocol.in_flight import DraftsInFlight, draft_frame
from tandem.protocol.messages import Draft, Frame
from tandem.protocol.outputs import Drafted, DraftWork, EdgeRequest
from tandem.protocol.prefixes import PrefixedTokens


class Drafting:
    """Reads `committed`, which its owner alone appends to."""

    def __init__(self, request: EdgeRequest, committed: PrefixedTokens) -> None:
        self.in_flight = DraftsInFlight()
        self.kv_length = 0
        self.work: DraftWork | None = None
        self._request = request
        self._committed = committed
        self._schedule = request.preset.schedule
        self._length_limit = len(request.prompt_ids) + request.max_tokens

    @property
    def room(self) -> int:
        """How many more tokens the answer may have, if all that is in flight stands."""
        return self._length_limit - len(self._committed) - len(self.in_flight)

    @property
    def draftable(self) -> int:
        """How many tokens the schedule would have drafted now."""
        if not self._request.preset.drafts or self.in_flight.ends_in(self._request.draft_ends):
            return 0
        window = self._schedule.window - len(self.in_flight)
        return min(self._schedule.chunk - self.in_flight.unsent, window, self.room)

    @property
    def context(self) -> tuple[int, ...]:
        """All tokens before the next one to draft."""
        return (*self._committed.since(0), *self.in_flight.token_ids)

    def begin(self, count: int, ends: frozenset[int]) -> DraftWork:
        """The work that drafts the next `count` tokens, or up to the first that is among `ends`."""
        fed, ahead = self.kv_length, max(0, self.kv_length - len(self._committed))
        self.work = DraftWork(
            keep=fed,
            token_ids=(*self._committed.since(fed), *self.in_flight.token_ids[ahead:]),
            position=len(self._committed) + len(self.in_flight),
            count=count,
            ends=ends,
        )
        return self.work

    def take(self, work: DraftWork, drafts: list[Drafted], kv_length: int) -> bool:
        """Put the tokens of a work in flight; False for a work that was interrupted."""
        if work is not self.work:
            return False
        if not 1 <= len(drafts) <= work.count:
            raise ProtocolError(f"1…{work.count} drafts wanted", f"drafted with {len(drafts)}")
        self.work = None
        self.kv_length = kv_length
        self.in_flight.add(drafts)
        return True

    def discard(self) -> bool:
        """Void the drafts in flight; whether a work that builds on them is to be interrupted."""
        self.in_flight.clear()
        self.kv_length = min(self.kv_length, len(self._committed))
        return self.interrupt()

    def interrupt(self) -> bool:
        """Give up the work under way; whether there was one."""
        interrupted = self.work is not None
        self.work = None
        return interrupted

    def send_chunks(self, epoch: int) -> list[Draft]:
        """The frames of the chunks that are complete, which count as sent from now on."""
        frames: list[Draft] = []
        while self.in_flight.unsent:
            chunk = self.in_flight.next_chunk(self._schedule.chunk)
            if len(chunk) < self._schedule.chunk and self.draftable > 0:
                break
            frames.append(self._frame(chunk, epoch))
            self.in_flight.sent += len(chunk)
        return frames

    def _frame(self, chunk: list[Drafted], epoch: int) -> Draft:
        before = self.in_flight.token_ids[: self.in_flight.sent]
        base = len(self._committed) + len(before)
        frame = Frame(self._request.session, epoch, base, self._committed.prefix_with(before))
        return draft_frame(frame, chunk, self._request.preset)
