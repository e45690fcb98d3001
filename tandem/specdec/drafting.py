"""The edge's drafts of one request: which are due, which are in flight, which go out.

Invariant: the draft KV is valid exactly for the first `kv_length` tokens of committed + in flight
(+ `ahead`); there is one work at a time, which drafts what follows them, but for an adopted branch
on its fork."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

from tandem.core.errors import ProtocolError
from tandem.core.tokens import PrefixedTokens
from tandem.specdec.choices import Control, Predraft, Schedule
from tandem.specdec.events import Drafted, DraftWork, EdgeRequest
from tandem.specdec.in_flight import DraftsInFlight, draft_frame
from tandem.specdec.messages import Draft, Frame, Opened, Verdict
from tandem.specdec.predraft_cache import Branch
from tandem.specdec.presets import MAX_DRAFT_LENGTH

ALTERNATIVES = 4
"""Runners-up of a draft token that likely outcomes are made of."""
FEW = 8
"""Tokens fed before a draft step that hardly lengthen it."""


class Drafting:
    """Reads `committed`, which its owner alone appends to. `ahead`: where one verdict settles all
    in flight, the drafts after full acceptance, the cloud's token first; None if unwanted."""

    def __init__(self, request: EdgeRequest, committed: PrefixedTokens) -> None:
        self.in_flight = DraftsInFlight()
        self.kv_length = 0
        self.work: DraftWork | None = None
        self.ahead: list[Drafted] | None = None
        self.schedule = request.preset.schedule
        self._request = request
        self._committed = committed
        self._from_distributions = request.preset.predraft is Predraft.LIKELY_OUTCOMES
        self.drafts_ahead = self._from_distributions
        self._length_limit = len(request.prompt_ids) + request.max_tokens
        self._longest = 0  # drafts in flight, where forced ones may lengthen a chunk
        self._wanted = self._forced = 0
        self._chunk_sent = 0
        self._chunk_s = 0.0
        self._reports = request.preset.control is Control.LATENCY_AWARE
        self._unfed = 0
        self.feeds_few = True
        """Whether what was taken last tells what a draft step takes: no prompt was fed with it."""

    @property
    def alternatives(self) -> int:
        """How many runners-up of a draft are wanted."""
        return ALTERNATIVES if self._from_distributions and self.drafts_ahead else 0

    @property
    def position(self) -> int:
        """The one after all that is committed or in flight."""
        return len(self._committed) + len(self.in_flight)

    @property
    def room(self) -> int:
        """How many more tokens the answer may have, if all that is in flight is accepted."""
        return self._length_limit - self.position

    @property
    def draftable(self) -> int:
        """How many tokens the schedule would have drafted now."""
        if not self._request.preset.drafts or self.in_flight.unsure:
            return 0
        if self.in_flight.ends_in(self._request.draft_ends):
            return 0
        chunk = self.schedule.chunk - self._chunk_sent - self.in_flight.unsent
        return min(chunk, self.schedule.window - len(self.in_flight), self.room)

    @property
    def chunk_is_open(self) -> bool:
        """Whether a part of a chunk is sent that is not whole yet."""
        return self._chunk_sent > 0

    @property
    def context(self) -> tuple[int, ...]:
        """All tokens before the next one to draft."""
        return (*self._committed.since(0), *self.in_flight.token_ids)

    def unfed(self, position: int, kv_length: int) -> tuple[int, ...]:
        """The tokens committed or in flight from `kv_length` up to `position`."""
        committed = len(self._committed)
        ahead = self.in_flight.token_ids[max(0, kv_length - committed) : position - committed]
        return (*self._committed.since(kv_length), *ahead)

    def opened(self, opened: Opened) -> None:
        """The cloud says how many drafts it judges at once."""
        if self._request.lengthens_forced:
            self._longest = min(opened.max_draft_length, MAX_DRAFT_LENGTH)

    def follow(self, schedule: Schedule) -> None:
        """Continue with another schedule, unless a chunk is begun: that is finished first."""
        if self.work is None and not self._chunk_sent and not self.in_flight.unsent:
            self.schedule = schedule

    def begin(self, count: int, ends: frozenset[int]) -> DraftWork:
        """The work that drafts the next `count` tokens, or up to the first that is among `ends`."""
        self._forget_ahead()  # a wider window: these take the place of what was drafted past it
        return self._start(count, ends, guess=False)

    def begin_ahead(self) -> DraftWork | None:
        """The work that drafts past the predicted bonus token, if that pays now."""
        if self.ahead is not None or not self.alternatives or not self.in_flight:
            return None
        schedule, ends = self.schedule, self._request.draft_ends
        if not (schedule.stop_and_wait and schedule.bonus) or self.in_flight.unsent:
            return None
        count = min(1 + schedule.chunk, self.room)
        if count < 2 or self.in_flight.ends_in(ends):
            return None
        self.ahead = []
        return self._start(count, ends, guess=True)

    def _start(self, count: int, ends: frozenset[int], guess: bool) -> DraftWork:
        self._wanted, self._unfed = count, self.position - self.kv_length
        stepwise = count > 1 and (guess or self._reports or self.schedule.token_by_token)
        longest = 0 if guess or stepwise else min(self._longest - len(self.in_flight), self.room)
        self.work = DraftWork(
            keep=self.kv_length,
            token_ids=self.unfed(self.position, self.kv_length),
            position=self.position,
            count=count,
            ends=ends,
            stepwise=stepwise,
            alternatives=self.alternatives,
            guess=guess,
            spare=max(0, longest - count),
        )
        return self.work

    def take(
        self, work: DraftWork, drafts: list[Drafted], kv_length: int, draft_s: float = 0.0
    ) -> bool:
        """Put a work's next tokens in flight, or `ahead`; False for a work that is not under
        way."""
        if work is not self.work:
            return False
        self.feeds_few, self._unfed = self._unfed <= FEW, 0
        most = self._wanted + work.spare
        if not 1 <= len(drafts) <= most:
            raise ProtocolError(f"1…{most} drafts wanted", f"drafted with {len(drafts)}")
        self._forced = max(0, len(drafts) - self._wanted)
        self._wanted = max(0, self._wanted - len(drafts))
        ends = drafts[-1].ends_chunk or drafts[-1].token_id in work.ends
        if not (self._wanted and work.stepwise) or ends:
            self.work = None
        if not work.branch:  # a branch's tokens are in a fork's KV, not in this one
            self.kv_length = kv_length
        if self.ahead is None:
            self._chunk_s += draft_s
            self.in_flight.add(drafts)
        else:
            self.ahead += drafts
        return True

    def positions(self, drafts: Sequence[Drafted]) -> int:
        """For how many positions these are drafts."""
        return len(drafts)

    def judged(self, verdict: Verdict) -> tuple[int, ...]:
        """The tokens sent that a verdict may speak of, oldest first."""
        if verdict.path:
            raise ProtocolError("a chain in flight", f"a verdict on the path {verdict.path}")
        return self.in_flight.token_ids[: self.in_flight.sent]

    def settle(self, verdict: Verdict) -> None:
        """The accepted drafts are committed."""
        self.in_flight.remove(verdict.accepted)

    def adopt_ahead(self) -> int:
        """All was accepted and `ahead` predicted the next token: put the rest in flight."""
        assert self.ahead, "nothing was drafted ahead"
        drafts, self.ahead = self.ahead[1:], None
        self.in_flight.add(drafts)
        return len(drafts)

    def promote(self, branch: Branch) -> None:
        """The text goes on as `branch` predicted: its work, if it is open, is the work now."""
        assert branch.work is not None, "the branch was never drafted"
        self._wanted = branch.work.count - len(branch.drafts)
        self.work = branch.work if branch.open else None

    def adopt(self, branch: Branch) -> int:
        """Put what was drafted for `branch` in flight. Returns how many tokens that is."""
        self.in_flight.add(branch.drafts)
        return len(branch.drafts)

    def discard(self) -> list[DraftWork]:
        """Discard the drafts in flight; returns the work to interrupt, which builds on them."""
        self.in_flight.clear()
        self._chunk_sent, self._chunk_s, self._forced = 0, 0.0, 0
        self.kv_length = min(self.kv_length, len(self._committed))
        self.ahead = None
        return self.interrupt()

    def discard_ahead(self) -> list[DraftWork]:
        """Discard what follows the predicted bonus token; returns the work to interrupt."""
        if self.ahead is None:
            return []
        self._forget_ahead()
        return self.interrupt()

    def _forget_ahead(self) -> None:
        """The token before them was fed already, and is fed again: a pass needs one."""
        if self.ahead is None:
            return
        self.kv_length = min(self.kv_length, self.position - 1)
        self.ahead = None

    def interrupt(self) -> list[DraftWork]:
        """Give up the work under way; returns it, if there is one."""
        works = [self.work] if self.work else []
        self.work = None
        return works

    def reconnected(self) -> None:
        """Nothing was sent on the stream that is open now."""
        self.in_flight.sent = 0
        self._chunk_sent = self._forced = 0
        self.schedule = self._request.preset.schedule

    def resent(self, epoch: int) -> list[Draft]:
        """The drafts that are sent, for another stream beside the one that is open now. How they
        are cut decides no text, but what is judged as a whole stays whole."""
        sent, stream = self.in_flight.sent, []
        begun = min(self._chunk_sent, sent)
        each = sent if self.schedule.stop_and_wait else max(1, self.schedule.chunk)
        ends = [*range(each, sent - begun, each), sent - begun, sent] if sent else []
        self.in_flight.sent = 0
        for end in ends:
            if piece := self.in_flight.next_chunk(end - self.in_flight.sent):
                stream.append(self._frame(piece, epoch, whole=end <= sent - begun))
                self.in_flight.sent += len(piece)
        return stream

    def send_due(self, epoch: int, budget_s: float = inf) -> list[Draft]:
        """The frames that are to leave now, whole chunks or what there is of one; they count as
        sent from now on. A chunk that took longer than `budget_s` to draft is whole as it is."""
        frames: list[Draft] = []
        while self.in_flight.unsent:
            # A window that was closed still lets out what had been drafted for this outcome.
            left = max(1, self.schedule.chunk) - self._chunk_sent + self._forced
            piece = self.in_flight.next_chunk(left)
            whole = len(piece) == left or self.draftable < 1 or self._chunk_s >= budget_s
            if not whole and not self.schedule.token_by_token:
                break
            frames.append(self._frame(piece, epoch, whole))
            self.in_flight.sent += len(piece)
            self._chunk_sent = 0 if whole else self._chunk_sent + len(piece)
            self._forced = 0 if whole else self._forced
            self._chunk_s = 0.0 if whole else self._chunk_s
        return frames

    def _frame(self, piece: list[Drafted], epoch: int, whole: bool) -> Draft:
        before = self.in_flight.token_ids[: self.in_flight.sent]
        base = len(self._committed) + len(before)
        frame = Frame(self._request.session, epoch, base, self._committed.prefix_with(before))
        preset = self._request.preset
        hold = preset.schedule.decode_when_idle and not self.schedule.decode_when_idle
        return draft_frame(frame, piece, preset, whole, hold)
