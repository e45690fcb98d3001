"""More than two sides: several other aggregators have documents too, and the device mixes them all.

Nothing else in this package knows of them. Each other side runs the two-sided cloud's machine with
`AggregationMode.DEVICE_COIN`: it sends its drafts and takes the tokens. The device runs
`ManySidesMachine`, which has one link to each of them, throws a coin with one face a side, and
tells each side the tokens and nothing of the others. Sides have numbers: the device is 0, the cloud
1, and those that settings name come next. Side n is at link n - 1.

Invariants: as of `SideMachine`: a committed token is never retracted or repeated, and tokens follow
from drafts, distributions and seed alone. The answer needs every side, so links are lost and begin
together."""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial, reduce
from typing import Any

import numpy as np

from tandem.core.errors import InvalidArgument, ProtocolError
from tandem.core.probs import Array
from tandem.core.randomness import Purpose, RandomSource, SeededRandom
from tandem.core.stopping import FinishReason
from tandem.core.tokens import PrefixHash, TokenSource
from tandem.net.frame_stream import Traffic
from tandem.net.session_runner import OpenedStream
from tandem.specdec.edge import CommittedText, check_processes
from tandem.specdec.events import Commit, Finish, Reconnect
from tandem.specdec.liveness import Liveness, Phase
from tandem.specdec.messages import Cancel, FrameHeader, GoingAway, Ping, Pong
from tandem.specdec.resumable import Resumable
from tandem.telemetry.metrics import Metrics
from tandem.two_sided.protocol.aggregation_rules import (
    FETCH_FACTOR,
    NeedsTopList,
    begins_stretch,
    token_rule_at_device,
    weights_change_every,
)
from tandem.two_sided.protocol.counters import AggregationStats, RoundTrips
from tandem.two_sided.protocol.decoder_messages import DecodingDraft, DecodingTarget
from tandem.two_sided.protocol.draft_queues import (
    OwnDrafts,
    PeerDrafts,
    QueuedDraft,
    decoded_draft,
    peer_draft,
)
from tandem.two_sided.protocol.messages import (
    AggregationRequest,
    CloudSideMessage,
    CollaborationOpened,
    DeviceMessage,
    Fetch,
    SideDraftFrame,
    TargetFrame,
    ToDecoder,
    ToPeer,
)
from tandem.two_sided.protocol.mixture import Side, document_weights, side_weights
from tandem.two_sided.protocol.presets import AggregationMode, AggregationPreset
from tandem.two_sided.protocol.side_machine import check_committed, check_side_draft
from tandem.two_sided.protocol.top_list import TopList, certified_argmax, top_list
from tandem.two_sided.serving.device_session import (
    OpenSideStream,
    TextPiece,
    add_traffic,
    fill_side,
)
from tandem_api.common.v1 import generation_pb2 as pb


def preset_of_sides(preset: AggregationPreset, count: int) -> AggregationPreset:
    """Return the same method for `count` sides, if it knows more than two: where a coin decides,
    for it may have any number of faces."""
    if count <= len(Side) or preset.mode is not AggregationMode.COIN or not preset.two_sided:
        return preset
    return replace(preset, mode=AggregationMode.DEVICE_COIN)


# The arithmetic of any number of sides


def shares_of(log_masses: Sequence[float]) -> tuple[float, ...]:
    """Return the shares η of the sides in the mixture, in the order of their numbers.

    Args:
        log_masses: h of each side's documents. Of more than two sides without any document the
            cloud, whose model is no smaller, counts alone.

    Raises InvalidArgument for NaN or +inf, and where neither of two sides has documents."""
    if len(log_masses) == len(Side):
        return side_weights(log_masses[Side.DEVICE], log_masses[Side.CLOUD])
    if all(mass == -math.inf for mass in log_masses):
        return tuple(float(number == Side.CLOUD) for number in range(len(log_masses)))
    shares: list[float] = document_weights(log_masses).tolist()
    return tuple(shares)


def mixture_of(distributions: Sequence[Array], shares: Sequence[Any]) -> Array:
    """Return the target distribution [V]: each side's distribution [V] times its share."""
    for probs in distributions:
        if probs.shape != distributions[0].shape or probs.ndim != 1:
            why = f"shapes {distributions[0].shape} and {probs.shape}"
            raise InvalidArgument("probs", why)
    mixed: Array = sum(share * probs for share, probs in zip(shares, distributions, strict=True))
    return mixed


def coupled_number(shares: Sequence[Any], rng: RandomSource, position: int) -> int:
    """Return the number of the side whose draft is the token of `position`: each side's with the
    probability of its share. One coin a side but the last: whether the token is that side's, if it
    is none of those before it. Of two sides it is `coupled_side`."""
    for number in range(len(shares) - 1):
        left = sum(shares[number:])
        if rng.bernoulli(shares[number], left, position, Purpose.COIN, draw=number):
            return number
    return len(shares) - 1


# The machine


@dataclass(frozen=True, slots=True)
class ToLink:
    """A frame for the other side at a link."""

    link: int
    message: DeviceMessage


@dataclass(frozen=True, slots=True)
class FromLink:
    """A frame of the other side at a link."""

    link: int
    message: CloudSideMessage


@dataclass(frozen=True, slots=True)
class LastOpened(FromLink):
    """The frame with which the last of the other sides has opened."""


@dataclass(frozen=True, slots=True)
class SidesCommit(Commit):
    """Tokens that are final, and of each the numbers of the sides whose draft it was."""

    token_sides: tuple[tuple[int, ...], ...] = field(default=(), compare=False)


@dataclass(slots=True)
class ManySidesStats(AggregationStats):
    """Running totals by the sides' numbers. `made`: tokens that are one side's alone, by the coin,
    or since at temperature 0 no other side had drafted them."""

    made: Counter[int] = field(default_factory=Counter)

    @classmethod
    def of(cls, sides: int) -> ManySidesStats:
        numbers = range(sides)
        return cls(
            drafted=dict.fromkeys(numbers, 0),
            accepted=dict.fromkeys(numbers, 0),
            decode_s=dict.fromkeys(numbers, 0.0),
        )


@dataclass(slots=True)
class _OtherSide:
    """State of one other side, as the device knows it: for one stream, but for its signs of
    life."""

    number: int
    liveness: Liveness
    drafts: PeerDrafts
    log_mass: float | None = None
    trips: RoundTrips = field(default_factory=RoundTrips)

    def begin_stream(self) -> None:
        self.log_mass = None
        self.trips = RoundTrips()

    @property
    def link(self) -> int:
        return self.number - Side.CLOUD


@dataclass(frozen=True, slots=True)
class _Decision:
    """A token, and the numbers of the sides whose draft it is."""

    token_id: int
    sides: tuple[int, ...]

    @property
    def source(self) -> TokenSource:
        if len(self.sides) != 1:
            return TokenSource.BOTH if self.sides else TokenSource.RECOVERED
        match self.sides[0]:
            case Side.DEVICE:
                return TokenSource.DEVICE
            case Side.CLOUD:
                return TokenSource.CLOUD
        return TokenSource.SIDE


@dataclass(slots=True)
class _Batch:
    """Decisions that are committed in one go, and why the answer ended with them."""

    base: int
    prefix_hash: PrefixHash
    decisions: list[_Decision] = field(default_factory=list)
    reason: FinishReason | None = None

    @property
    def token_ids(self) -> tuple[int, ...]:
        return tuple(decision.token_id for decision in self.decisions)


ManySidesOutputs = list[ToPeer[ToLink] | ToDecoder | Commit | Reconnect | Finish]


class ManySidesMachine(Resumable[ToPeer[ToLink] | ToDecoder | Commit]):
    """One request at the device, with a link to each other side; used like `SideMachine`. A frame
    for another side is a `ToPeer` of a `ToLink`, one of another side comes as a `FromLink`."""

    aggregation_side = Side.DEVICE

    def __init__(
        self,
        request: AggregationRequest,
        *,
        log_mass: float,
        others: Sequence[Liveness],
        completes_stop: Callable[[int], bool] = lambda token_id: False,
        rng: RandomSource | None = None,
    ) -> None:
        """Begin a request.

        Args:
            request: whose preset is `preset_of_sides`.
            log_mass: h of the device's documents.
            others: when each other side counts as lost, by the links.
            completes_stop: called once with every committed token: whether a stop string ends with
                it.
            rng: what decides; from the request's seed if None."""
        super().__init__(JointLiveness(others))
        self.request = request
        self._log_mass = log_mass
        self._rng = rng if rng is not None else SeededRandom(request.seed)
        self._text = CommittedText(request, completes_stop)
        self.committed = self._text.tokens
        self.committed.extend(request.committed_ids)
        self.stats = ManySidesStats.of(1 + len(others))
        self.opened_by: dict[int, CollaborationOpened] = {}
        """What each other side said of itself last, by its number."""
        self._drafts = OwnDrafts(self.committed)
        self._others = tuple(
            _OtherSide(number, liveness, PeerDrafts(self.committed))
            for number, liveness in enumerate(others, start=Side.CLOUD)
        )
        self._token_rule = token_rule_at_device(request.sampling.greedy)
        self._reweigh_every = weights_change_every(request)
        self._shares: tuple[float, ...] | None = None
        self._first = len(self.committed)
        self._fetched: tuple[int, int] | None = None
        self._epoch = 0
        self._epoch_offset = 0
        self._decoder_epoch = 0

    @property
    def peer_opened(self) -> CollaborationOpened | None:
        """The cloud's last description of itself."""
        return self.opened_by.get(Side.CLOUD)

    @property
    def queued(self) -> tuple[int, int]:
        """Numbers of drafts that wait: the device's, the other sides'."""
        return len(self._drafts), sum(len(other.drafts) for other in self._others)

    # Connection

    def _open_stream(self, now: float) -> ManySidesOutputs:
        self.stats.streams += 1
        self._shares = None
        self._first = len(self.committed)
        self._fetched = None
        for other in self._others:
            other.begin_stream()
        return self._to_all(now, self.request.opening(self._epoch, self.committed, self._log_mass))

    def _forget_stream(self) -> None:
        for other in self._others:
            other.drafts.clear()

    def _count_loss(self, silent_s: float) -> None:
        self.stats.links_lost += 1
        self.stats.loss_noticed_s = max(self.stats.loss_noticed_s, silent_s)

    def _ping(self, now: float) -> ManySidesOutputs:
        outputs: ManySidesOutputs = []
        for other in self._others:
            if (nonce := other.liveness.ping_due(now)) is not None:
                outputs += self._to_side(other, now, Ping(**self._header(), nonce=nonce))
        return outputs

    def _go_on_alone(self, now: float) -> ManySidesOutputs:
        return self._decide(now)

    def decoder_restarted(self) -> None:
        """Begin again with a decoder that starts from the committed text and epoch 0."""
        self._drafts.clear()
        self._epoch_offset = self._epoch + 1
        self._decoder_epoch = 0

    def stop(self) -> ManySidesOutputs:
        """End the answer: a stop string is complete in the text that was committed."""
        return [] if self.phase is Phase.DONE else self._finish(FinishReason.STOP)

    def _close(self) -> ManySidesOutputs:
        """Drop the drafts; `Cancel` has the other sides free the session at once."""
        outputs: ManySidesOutputs = []
        if self.phase is Phase.RUNNING:
            # Not counted as sent: nothing answers it, so that no round trip ends with it.
            cancel = Cancel(**self._header())
            outputs += [ToPeer(ToLink(other.link, cancel)) for other in self._others]
        self._drafts.clear()
        self._forget_stream()
        return outputs

    # Drafts and frames

    def drafted(self, draft: DecodingDraft, now: float) -> ManySidesOutputs:
        """Take the next draft of the device's decoder."""
        if self.phase is Phase.DONE:
            return []
        check_committed(self.committed, draft, ends_at=draft.committed)
        self._decoder_epoch = max(self._decoder_epoch, draft.epoch)
        self._epoch = max(self._epoch, self._epoch_offset + draft.epoch)
        self.stats.decode_s[Side.DEVICE] += draft.cost.decode_s
        if not self._drafts.add(decoded_draft(draft, self._epoch_offset)):
            self.stats.stale_drafts += 1
            return []
        return self._decide(now)

    def sized(self, size_bytes: int) -> None:
        """Take the size of a frame that was sent, which changes nothing: the device decides on any
        link."""

    def receive(self, received: FromLink, now: float, size_bytes: int = 0) -> ManySidesOutputs:
        """Take one frame of the stream that is open now at a link. Raises ProtocolError,
        InvalidArgument or PrefixMismatch where the other side breaks the conversation."""
        if self.phase is not Phase.RUNNING:
            return []
        message = received.message
        if message.session != self.request.session:
            raise ProtocolError(self.phase, f"a frame of session {message.session}")
        other = self._others[received.link]
        other.liveness.received(now)
        other.trips.received(now)
        match message:
            case SideDraftFrame():
                other.liveness.answered(now)
                return self._receive_draft(message, other, now)
            case CollaborationOpened():
                return self._receive_opened(message, other, now)
            case Ping() | Pong():
                check_committed(self.committed, message, ends_at=message.base)
                if isinstance(message, Pong):
                    return []
                return self._to_side(other, now, Pong(**self._header(), nonce=message.nonce))
            case GoingAway():
                return self._leave_stream()
        raise ProtocolError(self.phase, type(message).__name__)

    def _receive_opened(
        self, message: CollaborationOpened, other: _OtherSide, now: float
    ) -> ManySidesOutputs:
        if other.log_mass is not None:
            raise ProtocolError(self.phase, "CollaborationOpened")
        check_processes(message.processes, self.request.sampling, self.request.processors)
        other.log_mass = message.log_mass
        self.opened_by[other.number] = message
        self._text.limit(message.max_tokens)
        masses = [mass for side in self._others if (mass := side.log_mass) is not None]
        if len(masses) == len(self._others):
            self._shares = shares_of([self._log_mass, *masses])
        return self._decide(now)

    def _receive_draft(
        self, frame: SideDraftFrame, other: _OtherSide, now: float
    ) -> ManySidesOutputs:
        check_committed(self.committed, frame, ends_at=frame.committed)
        if frame.base >= self._text.length_limit:
            return []  # drafted where another side has less room
        check_side_draft(
            frame,
            self._token_rule,
            length_limit=self._text.length_limit,
            committed=len(self.committed),
            ahead=self.request.preset.ahead,
        )
        self.stats.decode_s[other.number] += frame.decode_s
        elapsed_s = other.trips.elapsed_s(frame.heard, now)
        if elapsed_s is not None and math.isfinite(frame.held_s):
            self.stats.answered(other.number, elapsed_s, frame.held_s)
        other.drafts.add(peer_draft(frame))
        return self._decide(now)

    # Deciding

    def _decide(self, now: float) -> ManySidesOutputs:
        """Decide every token that can be decided."""
        if self.phase is Phase.DONE:
            return []
        outputs: ManySidesOutputs = []
        batch = _Batch(len(self.committed), self.committed.prefix)
        while batch.reason is None:
            decision = self._next(len(self.committed))
            if isinstance(decision, NeedsTopList):
                outputs += self._fetch(decision.count, now)
                break
            if decision is None:
                break
            self._commit(decision, batch)
        if batch.decisions:
            outputs += self._committed_outputs(batch, now)
        return outputs

    def _next(self, position: int) -> _Decision | NeedsTopList | None:
        """Return the next token, if the drafts are here that it takes."""
        local = self._drafts.first
        if self.phase is Phase.ALONE:
            return None if local is None else _Decision(local.token_id, ())
        if self._shares is None:
            return None
        drafts = (local, *(other.drafts.first for other in self._others))
        if self.request.sampling.greedy:
            here = _all_of(drafts)
            return None if here is None else _likeliest(here)
        start = len(self.request.prompt_ids)
        every = self._reweigh_every
        if every and begins_stretch(position, every=every, start=start, first=self._first):
            # The first drafts of a stretch carry the new h.
            if (here := _all_of(drafts)) is None:
                return None
            self._shares = shares_of([draft.log_mass for draft in here])
        owner = coupled_number(self._shares, self._rng, position)
        draft = drafts[owner]
        return None if draft is None else _Decision(draft.token_id, (owner,))

    def _fetch(self, count: int, now: float) -> ManySidesOutputs:
        """Ask all sides once for longer top lists."""
        wanted = (len(self.committed), count)
        if self._fetched == wanted:
            return []
        self._fetched = wanted
        self.stats.fetches += 1
        return self._to_all(now, Fetch(**self._header(), count=count))

    def _commit(self, decision: _Decision, batch: _Batch) -> None:
        token_id = decision.token_id
        advanced = [self._drafts.advance(token_id)]
        advanced += [other.drafts.advance(token_id) for other in self._others]
        for number, draft in enumerate(advanced):
            if draft is not None:
                self.stats.drafted[number] += 1
                self.stats.accepted[number] += draft.token_id == token_id
        if len(decision.sides) == 1:
            self.stats.made[decision.sides[0]] += 1
        _, batch.reason = self._text.append((token_id,))
        batch.decisions.append(decision)
        self._drafts.forget_before(len(self.committed))  # nobody fetches the device's distributions

    def _committed_outputs(self, batch: _Batch, now: float) -> ManySidesOutputs:
        token_ids = batch.token_ids
        unverified = self.phase is Phase.ALONE
        self.stats.tokens += len(token_ids)
        outputs: ManySidesOutputs = []
        header: FrameHeader = {
            "session": self.request.session,
            "epoch": self._epoch,
            "base": batch.base,
            "prefix_hash": batch.prefix_hash,
        }
        if self.phase is Phase.RUNNING:
            outputs += self._to_all(now, TargetFrame(**header, token_ids=token_ids))
        header["epoch"] = self._decoder_epoch
        last = batch.reason is not None
        outputs.append(ToDecoder(DecodingTarget(**header, token_ids=token_ids, last=last)))
        if unverified:
            self.stats.unverified_tokens += len(token_ids)
            sources = (TokenSource.EDGE,) * len(token_ids)
            outputs.append(Commit(token_ids, unverified=True, token_sources=sources))
        else:
            sources = tuple(decision.source for decision in batch.decisions)
            sides = tuple(decision.sides for decision in batch.decisions)
            outputs.append(SidesCommit(token_ids, token_sources=sources, token_sides=sides))
        return outputs if batch.reason is None else [*outputs, *self._finish(batch.reason)]

    # Sending

    def _to_all(self, now: float, message: DeviceMessage) -> ManySidesOutputs:
        outputs: ManySidesOutputs = []
        for other in self._others:
            outputs += self._to_side(other, now, message)
        return outputs

    def _to_side(self, other: _OtherSide, now: float, message: DeviceMessage) -> ManySidesOutputs:
        other.trips.sent(now)
        return [ToPeer(ToLink(other.link, message))]

    def _header(self) -> FrameHeader:
        """Return the fields that every frame carries."""
        return {
            "session": self.request.session,
            "epoch": self._epoch,
            "base": len(self.committed),
            "prefix_hash": self.committed.prefix,
        }


def _all_of(drafts: Sequence[QueuedDraft | None]) -> tuple[QueuedDraft, ...] | None:
    """Return all sides' drafts, once they are here."""
    here = tuple(draft for draft in drafts if draft is not None)
    return here if len(here) == len(drafts) else None


def _likeliest(drafts: Sequence[QueuedDraft]) -> _Decision | NeedsTopList:
    """Decide at temperature 0: return the argmax of the mixture, from the other sides' top lists
    and the device's own distribution, which comes first. Where the lists are too short to decide,
    return a request for longer ones."""
    local = drafts[Side.DEVICE].probs
    lists = [draft.probs for draft in drafts[Side.CLOUD :] if isinstance(draft.probs, TopList)]
    assert isinstance(local, np.ndarray), "a side knows its own distributions"
    assert len(lists) == len(drafts) - 1, "checked on receipt"
    count = min(len(top.ids) for top in lists)
    listed = top_list(local, count, reduce(np.union1d, [top.ids for top in lists]))
    token_id = certified_argmax([listed, *lists], shares_of([draft.log_mass for draft in drafts]))
    if token_id is None:
        return NeedsTopList(count * FETCH_FACTOR)
    sides = (number for number, draft in enumerate(drafts) if draft.token_id == token_id)
    return _Decision(token_id, tuple(sides))


class JointLiveness:
    """Signs of life of all other sides of one request. The request needs every one of them, so it
    is as lost as the one that is missed longest."""

    def __init__(self, others: Sequence[Liveness]) -> None:
        self._others = tuple(others)

    @property
    def goes_on_alone(self) -> bool:
        """True if the device goes on once a side is given up."""
        return any(other.goes_on_alone for other in self._others)

    def connected(self, now: float) -> None:
        """Begin with fresh streams to all."""
        for other in self._others:
            other.connected(now)

    def lost(self, now: float, stuck_s: float = 0.0) -> float:
        """End all streams, since one of them is gone; returns how long the most silent side had
        been silent. For `stuck_s` see `Liveness.lost`."""
        return max(other.lost(now, stuck_s) for other in self._others)

    def tick(self, now: float) -> None:
        """Take that time into account in which this process did not get to run."""
        for other in self._others:
            other.tick(now)

    def is_dead(self, now: float) -> bool:
        return any(other.is_dead(now) for other in self._others)

    def is_given_up(self, now: float) -> bool:
        return any(other.is_given_up(now) for other in self._others)


# Serving


class SideStreams:
    """One stream to each other side, which begin and end together: what a session of many sides has
    in place of its stream to the cloud."""

    def __init__(
        self,
        openers: Sequence[OpenSideStream],
        closing_tasks: set[asyncio.Task[None]],
        on_frame: Callable[[FromLink, int], None],
        on_end: Callable[[BaseException | None], None],
    ) -> None:
        """Open all, in the order of the links. `closing_tasks` holds the closing of those that had
        been opened before one could not be."""
        self._unopened = set(range(len(openers)))
        self._on_frame = on_frame
        self._streams: list[OpenedStream[DeviceMessage]] = []
        try:
            for link, opener in enumerate(openers):
                self._streams.append(opener(partial(self._receive, link), on_end))
        except BaseException:
            self.close_in_background(closing_tasks)
            raise

    def send(self, message: ToLink) -> int:
        """Queue a frame for one side and return its size in bytes."""
        return self._streams[message.link].send(message.message)

    def close_in_background(
        self, closing_tasks: set[asyncio.Task[None]], flush_s: float = 0.0, lost: bool = False
    ) -> None:
        """End all; see `FrameStream.close`."""
        for stream in self._streams:
            stream.close_in_background(closing_tasks, flush_s, lost)

    def _receive(self, link: int, message: CloudSideMessage, size_bytes: int) -> None:
        kind = FromLink
        if link in self._unopened and isinstance(message, CollaborationOpened):
            self._unopened.remove(link)
            kind = FromLink if self._unopened else LastOpened
        self._on_frame(kind(link, message), size_bytes)


class ManySides:
    """Adds to the answers of a device with more than two sides: whose each token is, what each side
    did, and the same as metrics."""

    def __init__(self, names: Sequence[str], metrics: Metrics) -> None:
        """Set up the metrics of the sides. `names`: what settings call the sides beyond the cloud,
        in the order of their numbers."""
        self._names = tuple(names)
        self._series = metrics.other_sides()

    def preset(self, preset: AggregationPreset) -> AggregationPreset:
        """Return the same method for all sides, if it knows more than two."""
        return preset_of_sides(preset, len(Side) + len(self._names))

    def take_part(self, preset: AggregationPreset) -> bool:
        """Return whether the sides beyond the cloud take part in answers by a preset from
        `preset`."""
        return preset.mode is AggregationMode.DEVICE_COIN

    def name(self, started: pb.Started) -> None:
        """Name all sides in the caller's first message."""
        started.sides.extend(("device", "cloud", *self._names))

    def attribute(self, committed: pb.Committed, piece: TextPiece) -> None:
        """Say whose drafts the tokens of a message are, as bits of the sides' numbers."""
        if isinstance(piece.commit, SidesCommit):
            sides = piece.commit.token_sides[: len(piece.token_ids)]
            committed.token_sides.extend(
                sum(1 << number for number in token_sides) for token_sides in sides
            )

    def summarize(
        self, summary: pb.Summary, machine: ManySidesMachine, traffics: Sequence[Traffic]
    ) -> None:
        """Add what each side did to the summary of device and cloud, and export it.

        Args:
            summary: the caller's, with what a two-sided answer says.
            machine: that of the answer, which has ended.
            traffics: bytes exchanged with each other side, the cloud first."""
        stats = machine.stats
        for name in self._names:
            summary.more_sides.add(name=name)
        for number, side in enumerate((summary.device, summary.cloud, *summary.more_sides)):
            side.made = stats.made[number]
        for number, side in enumerate(summary.more_sides, start=len(Side)):
            fill_side(side, number, stats=stats, opened=machine.opened_by.get(number))
            add_traffic(summary, side, traffics[number - Side.CLOUD])
        for name, side in zip(("cloud", *self._names), self._others_of(summary), strict=True):
            self._series.judged(name, side.drafted, side.accepted, side.made)
            self._series.used(name, side.documents)
            self._series.carried(name, side.uplink_bytes, side.downlink_bytes)
            if side.HasField("round_trip_s"):
                self._series.answered(name, side.round_trip_s)

    @staticmethod
    def _others_of(summary: pb.Summary) -> Iterator[pb.SideSummary]:
        yield summary.cloud
        yield from summary.more_sides
