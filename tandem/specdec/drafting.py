"""The edge's drafts of one request as a chain: which are due, which are in flight, which go out.

Invariants: drafts in flight are oldest first, contiguous from the end of the committed text, and
the first `sent` of them are on the stream that is open now. The draft KV is valid exactly for the
first `kv_length` tokens of committed + in flight. There is one task at a time, which drafts what
follows them, but for an adopted branch on its fork."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import inf

import numpy as np

from tandem.core.codecs import SURE_FLOAT16, sparse_wire_probs, wire_probs
from tandem.core.errors import ProtocolError
from tandem.core.probs import Array, truncate, truncate_keeping
from tandem.core.tokens import PrefixedTokens
from tandem.specdec.choices import Control, Predraft, RejectionPayload, Schedule, Uplink
from tandem.specdec.events import Drafted, DraftTask, EdgeRequest
from tandem.specdec.messages import Committed, Drafts, FrameHeader, Opened
from tandem.specdec.presets import MAX_DRAFT_LENGTH, Preset
from tandem.specdec.proposers import DraftSource

ALTERNATIVES = 4
"""Alternatives of a draft token that likely outcomes are made of."""
FEW = 8
"""Tokens fed before a draft step that hardly lengthen it."""


@dataclass(slots=True)
class _Chunk:
    """The chunk that is being drafted and sent.

    `sent`: drafts of it that are sent. `extra`: drafts beyond its length, which a grammar forces
    after its last one, or the caller predicts. `draft_s`: what drafting it took so far."""

    sent: int = 0
    extra: int = 0
    draft_s: float = 0.0


class Drafting:
    """Reads `committed`, which its owner alone appends to."""

    def __init__(self, request: EdgeRequest, committed: PrefixedTokens) -> None:
        self._kv_length = 0
        self.task: DraftTask | None = None
        self.allowed = request.longest_draft
        """Drafts that the cloud takes in a frame; 0 while that is not known, and none may leave."""
        self.schedule = self._within(request.preset.schedule)
        self.is_pure_decode = True
        """Whether what was taken last tells what a draft step takes: no prompt was fed with it."""
        self.in_flight = DraftsInFlight()
        self._request = request
        self._committed = committed
        likely = request.preset.predraft is Predraft.LIKELY_OUTCOMES
        self.alternatives = ALTERNATIVES if likely else 0
        """Number of alternatives wanted for a draft."""
        self._drafts = request.preset.drafts
        self._lengthens = request.lengthens_forced
        self.ends = request.draft_ends
        """Draft tokens after which more drafts would be wasted."""
        self.length_limit = len(request.prompt_ids) + request.max_tokens
        """Tokens of prompt and answer together."""
        self.longest = 0
        """Drafts that the cloud takes at once; 0 before it has said so."""
        self._chunk = _Chunk()
        self._drafts_left = 0  # drafts that the task under way still owes
        self._fed_with_task = 0  # tokens that it feeds before its first draft
        self._reports = request.preset.control is Control.LATENCY_AWARE

    @property
    def position(self) -> int:
        """Position after all that is committed or in flight."""
        return self._committed.end + len(self.in_flight)

    @property
    def room(self) -> int:
        """Number of tokens that the answer may still have if all that is in flight is accepted."""
        return self.length_limit - self.position

    @property
    def draftable(self) -> int:
        """Number of tokens that the schedule would draft now."""
        in_flight, schedule = self.in_flight, self.schedule
        window = schedule.window - len(in_flight)
        if not self._drafts or window < 1:
            return 0
        chunk = schedule.chunk - self._chunk.sent - in_flight.unsent
        if chunk < 1 or in_flight.is_over(self.ends):
            return 0
        return min(chunk, window, self.room)

    @property
    def chunk_is_open(self) -> bool:
        """True if part of a chunk was sent and the rest was not."""
        return self._chunk.sent > 0

    def unfed(self, position: int, kv_length: int) -> tuple[int, ...]:
        """Return the tokens committed or in flight from `kv_length` up to `position`."""
        committed = self._committed.end
        drafts = self.in_flight.token_ids
        return (
            *self._committed.since(kv_length),
            *drafts[max(0, kv_length - committed) : position - committed],
        )

    # What the machine is told of the session.

    def opened(self, opened: Opened) -> list[DraftTask]:
        """Note how many drafts the cloud judges at once. Returns the task to interrupt, if that
        drafts more than may leave."""
        self.longest = self.allowed = max(1, min(opened.max_draft_length, MAX_DRAFT_LENGTH))
        self.schedule = self._within(self.schedule)
        return self._discard_too_long()

    def _discard_too_long(self) -> list[DraftTask]:
        """Discard what is more than the cloud takes in a round, unless it was sent. Cut into two,
        it would get two verdicts, and a bonus token between them."""
        if self.in_flight.sent or not (self.schedule.in_rounds and self._exceeds()):
            return []
        return self.draft_again()  # the same

    def draft_again(self) -> list[DraftTask]:
        """Discard the drafts in flight for others in their place; returns the task to interrupt.
        The next one feeds a token, though nothing was committed: a pass needs one."""
        tasks = self.discard()
        self._kv_length = min(self._kv_length, self.position - 1)
        return tasks

    def _exceeds(self) -> bool:
        """Return whether more is drafted for one round, or being drafted, than the cloud takes."""
        begun = self.task.count if self.task is not None else 0
        return max(begun, self.in_flight.unsent) > self.allowed

    def _within(self, schedule: Schedule) -> Schedule:
        """Return a schedule with no longer chunks than the cloud takes."""
        chunk = min(schedule.chunk, self.allowed or schedule.chunk)
        if chunk == schedule.chunk:
            return schedule
        window = chunk if schedule.in_rounds else schedule.window
        return replace(schedule, window=window, chunk=chunk)

    def reconnected(self) -> list[DraftTask]:
        """Note that nothing was sent on the stream that is open now, whose cloud may be another
        one. Returns the task to interrupt, as `opened` does."""
        self.in_flight.sent = 0
        self._chunk.sent = 0
        self._chunk.extra = 0
        if self._request.longest_draft:
            self.allowed = min(self.allowed, self._request.longest_draft)
        self.schedule = self._within(self._request.preset.schedule)
        return self._discard_too_long()

    @property
    def kv_length(self) -> int:
        """Tokens that the draft KV holds."""
        return self._kv_length

    def adopt_prefix(self, kv_length: int) -> None:
        """Note that the draft KV holds the first `kv_length` committed tokens, which no task has
        fed."""
        if self.task is not None or self.in_flight:
            raise ProtocolError("drafting", "adopt_prefix")
        self._kv_length = kv_length

    @property
    def may_follow(self) -> bool:
        """True if no chunk is begun."""
        return self.task is None and not self._chunk.sent and not self.in_flight.unsent

    def follow(self, schedule: Schedule) -> None:
        """Continue with another schedule. Only while it `may_follow`: a chunk is finished first."""
        self.schedule = self._within(schedule)

    # Tasks: one at a time.

    def begin(self, count: int, ends: frozenset[int]) -> DraftTask:
        """Return the task that drafts the next `count` tokens, or up to the first that is among
        `ends`."""
        position = self.position
        self._drafts_left = count
        self._fed_with_task = position - self._kv_length
        stepwise = count > 1 and (self._reports or self.schedule.token_by_token)
        lengthens = self._lengthens and not stepwise
        longest = min(self.longest - len(self.in_flight), self.room) if lengthens else 0
        self.task = DraftTask(
            keep=self._kv_length,
            token_ids=self.unfed(position, self._kv_length),
            position=position,
            count=count,
            ends=ends,
            stepwise=stepwise,
            alternatives=self.alternatives,
            max_extra=max(0, longest - count),
        )
        return self.task

    def take(
        self, task: DraftTask, drafts: list[Drafted], kv_length: int, draft_s: float = 0.0
    ) -> bool:
        """Put a task's next tokens in flight; False for a task that is not under way."""
        if task is not self.task:
            return False
        self.is_pure_decode = self._fed_with_task <= FEW or all(
            drafted.source is not DraftSource.MODEL for drafted in drafts
        )
        self._fed_with_task = 0
        most, left = self._drafts_left + task.max_extra, self._drafts_left - len(drafts)
        if not 1 <= len(drafts) <= most:
            raise ProtocolError(f"1…{most} drafts expected", f"drafted with {len(drafts)}")
        self._chunk.extra = max(0, -left)
        self._drafts_left = max(0, left)
        ends = drafts[-1].ends_chunk or drafts[-1].token_id in task.ends
        if not (self._drafts_left and task.stepwise) or ends:
            self.task = None
        if not task.branch:  # a branch's tokens are in a fork's KV, not in this one
            self._kv_length = kv_length
        self._chunk.draft_s += draft_s
        self.in_flight.add(drafts)
        return True

    def positions(self, drafts: Sequence[Drafted]) -> int:
        """Return how many positions these drafts cover."""
        return len(drafts)

    def interrupt(self) -> list[DraftTask]:
        """Give up the task under way; returns it, if there is one."""
        tasks = [self.task] if self.task else []
        self.task = None
        return tasks

    # What becomes of the drafts in flight.

    def judged(self, message: Committed) -> tuple[int, ...]:
        """Return the tokens sent that a message may speak of, oldest first."""
        if message.path:
            raise ProtocolError("a chain in flight", f"Committed with the path {message.path}")
        return self.in_flight.sent_token_ids

    def settle(self, message: Committed) -> None:
        """Drop the accepted drafts, which are committed."""
        self.in_flight.remove(message.accepted)

    def go_on_with(self, task: DraftTask, taken: int) -> None:
        """Go on with a branch that predicted the text: its task, of which `taken` drafts came
        before, is the one under way now."""
        self._drafts_left = task.count - taken
        self.task = task

    def discard(self) -> list[DraftTask]:
        """Discard the drafts in flight; returns the task to interrupt, which builds on them."""
        self.in_flight.clear()
        self._chunk = _Chunk()
        self._kv_length = min(self._kv_length, self._committed.end)
        return self.interrupt()

    # Frames.

    def send_due(self, budget_s: float = inf) -> list[Drafts]:
        """Return the frames that are to leave now, whole chunks or what there is of one; they count
        as sent from now on. A chunk that took longer than `budget_s` to draft is whole as it is."""
        frames: list[Drafts] = []
        while self.in_flight.unsent and self.allowed:
            # A window that was closed, or a chunk that the cloud made shorter after its first part
            # had left, still lets out what had been drafted for this outcome.
            chunk = self._chunk
            left = max(1, max(1, self.schedule.chunk) + chunk.extra - chunk.sent)
            piece = self.in_flight.next_chunk(left)
            whole = len(piece) == left or self.draftable < 1 or chunk.draft_s >= budget_s
            if not whole and not self.schedule.token_by_token:
                break
            frames.append(self._frame(piece, whole))
            self.in_flight.sent += len(piece)
            if whole:
                self._chunk = _Chunk()
            else:
                chunk.sent += len(piece)
        return frames

    def _frame(self, piece: list[Drafted], whole: bool) -> Drafts:
        before = self.in_flight.sent_token_ids
        header: FrameHeader = {
            "session": self._request.session,
            "base": self._committed.end + len(before),
            "prefix_hash": self._committed.prefix_with(before),
        }
        return draft_frame(header, piece, self._request.preset, whole=whole)


class DraftsInFlight:
    """A queue of drafts, of which a first part has been sent."""

    def __init__(self) -> None:
        self._drafts: list[Drafted] = []
        self._token_ids: list[int] = []
        self.sent = 0

    def __len__(self) -> int:
        return len(self._drafts)

    @property
    def first(self) -> Drafted | None:
        """The draft for the position after the committed text."""
        return self._drafts[0] if self._drafts else None

    @property
    def all(self) -> tuple[Drafted, ...]:
        return tuple(self._drafts)

    @property
    def token_ids(self) -> tuple[int, ...]:
        return tuple(self._token_ids)

    @property
    def sent_token_ids(self) -> tuple[int, ...]:
        return tuple(self._token_ids[: self.sent])

    @property
    def unsent(self) -> int:
        """Number of drafts that are not sent."""
        return len(self._drafts) - self.sent

    def is_over(self, ends: frozenset[int]) -> bool:
        """Return whether nothing is drafted after what is in flight: its last one is among `ends`,
        or the draft model was not sure of it."""
        last = self._drafts[-1] if self._drafts else None
        return last is not None and (last.ends_chunk or last.token_id in ends)

    def add(self, drafts: Sequence[Drafted]) -> None:
        self._drafts += drafts
        self._token_ids += [drafted.token_id for drafted in drafts]

    def next_chunk(self, length: int) -> list[Drafted]:
        """Return the first unsent ones, at most `length`."""
        return self._drafts[self.sent : self.sent + length]

    def remove(self, count: int) -> None:
        """Take out the first ones, sent or not."""
        del self._drafts[:count]
        del self._token_ids[:count]
        self.sent = max(0, self.sent - count)

    def clear(self) -> None:
        self._drafts.clear()
        self._token_ids.clear()
        self.sent = 0


def draft_frame(
    header: FrameHeader, chunk: Sequence[Drafted], preset: Preset, whole: bool = True
) -> Drafts:
    """Return the message that carries drafts, with what the preset says of their distributions;
    `whole`: they complete a chunk."""
    token_ids = tuple([drafted.token_id for drafted in chunk])
    probabilities = None
    distributions = None
    if preset.uplink is Uplink.PROBABILITIES:
        probabilities = tuple(float(drafted.draft_probs[drafted.token_id]) for drafted in chunk)
    if preset.uplink.carries_probs:
        distributions = np.stack([drafted.draft_probs for drafted in chunk])
    return Drafts(
        **header,
        token_ids=token_ids,
        end_of_chunk=whole,
        probabilities=probabilities,
        distributions=distributions,
    )


def bulk_bytes(frames: Sequence[Drafts], request: EdgeRequest) -> int:
    """Return the bytes of the whole distributions that these frames carry and that their verdict
    may bring."""
    preset = request.preset
    size = request.vocabulary_size
    whole = preset.rejection_payload is RejectionPayload.FULL_DISTRIBUTION
    distributions = 4 * size if whole else 0
    if preset.uplink is Uplink.FULL_DISTRIBUTIONS:
        precise = 4 if preset.uplink_precision == "float32" else 2
        distributions += precise * size * sum(len(frame.token_ids) for frame in frames)
    return distributions


def draw_draft(
    probs: Array, preset: Preset, draw: Callable[[Array, int], int], position: int
) -> tuple[int, Array]:
    """Return a draft token for an absolute position, and the distribution [V] that it is judged by,
    in wire precision: the one it was drawn from, unless the preset truncates after sampling.

    Args:
        probs: the draft model's [V], after sampling settings.
        preset: what is sent of it.
        draw: draws a token for a position."""
    if not preset.truncate_after_sampling:
        drawn_from = probs_to_draft_from(probs, preset)
        return draw(drawn_from, position), drawn_from
    token_id = draw(probs, position)
    # Float16 would drop a token less likely than this, which no cloud could then judge.
    floor = 0.0 if preset.uplink_precision == "float32" else SURE_FLOAT16
    kept = truncate_keeping(probs, preset.truncation, token_id, floor)
    return token_id, _as_sent(kept, preset)


def probs_to_draft_from(probs: Array, preset: Preset) -> Array:
    """Return the draft model's distribution [V] after sampling settings, in wire precision."""
    return _as_sent(truncate(probs, preset.truncation), preset)


def _as_sent(truncated: Array, preset: Preset) -> Array:
    if preset.uplink_precision == "float32":  # distributions are float32 from the start
        return truncated
    if preset.uplink is Uplink.FULL_DISTRIBUTIONS:
        return wire_probs(truncated, preset.uplink_precision)
    if preset.uplink is Uplink.SPARSE_DISTRIBUTIONS:
        return sparse_wire_probs(truncated, preset.uplink_precision)
    return truncated
