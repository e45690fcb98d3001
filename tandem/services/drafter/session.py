"""One request at the drafter: an `EdgeMachine` between the draft engine and the verifier's stream.
Invariant: each event is handled as it arrives, since a round waits for it."""

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from math import inf

import grpc

from tandem.backends.interface import Session
from tandem.core.processors import LogitsProcessor
from tandem.core.stopping import FinishReason
from tandem.net.connection import Connection
from tandem.net.frame_stream import FrameStream, Traffic
from tandem.net.session_runner import SessionRunner
from tandem.net.status import Rejected
from tandem.routing.hedging import StallWatch
from tandem.runtime.draft_tasks import DraftsReady, DraftTaskRunner
from tandem.runtime.engine_thread import EngineThread
from tandem.services.drafter.cloud.route import CloudRoute
from tandem.services.drafter.cloud.warm_up import warm_up
from tandem.services.drafter.prefill import DraftPrefill
from tandem.services.drafter.round_figures import RoundReports, RoundSpans
from tandem.specdec.edge import EdgeMachine
from tandem.specdec.events import Commit, EdgeOutput, Finish, Interrupt, Reconnect, Send
from tandem.specdec.messages import (
    CloudMessage,
    Draft,
    EarlyVerdict,
    EdgeMessage,
    GoingAway,
    Open,
    Opened,
    Pong,
    Tokens,
    Verdict,
)
from tandem.telemetry.logging import get_logger
from tandem.telemetry.tracing import Span
from tandem_api.common.v1 import generation_pb2 as pb

log = get_logger(__name__)

OpenVerify = Callable[
    [Connection, Callable[[CloudMessage, int], None], Callable[[BaseException | None], None]],
    FrameStream[EdgeMessage, CloudMessage],
]
"""Over which connection, and then as `OpenStream`."""

RELIEVED_WITHIN_S = 2.0
"""How long a session stays at most at a cloud that is busier than another."""


class DrafterSession(SessionRunner[EdgeMessage, CloudMessage, EdgeOutput]):
    """Runs one machine to its end; iterate `commits`, then read the machine's stats."""

    def __init__(
        self,
        machine: EdgeMachine,
        thread: EngineThread,
        kv: Session,
        open_stream: OpenVerify,
        traffic: Traffic,
        closing_tasks: set[asyncio.Task[None]],
        route: CloudRoute,
        span: Span,
        prefill: DraftPrefill,
        processor: LogitsProcessor | None = None,
        tells_rounds: bool = False,
    ) -> None:
        """For `closing_tasks` see `SessionRunner`; `route` says where the streams go.
        `tells_rounds`: `take_rounds` is asked."""
        spread = machine.request.session
        super().__init__(
            lambda on_frame, on_end: open_stream(route.connect(), on_frame, on_end),
            *(Opened, closing_tasks, route.why_silent, spread),
        )
        self._open_beside = open_stream
        self._beside: SecondCloud | None = None
        self._watch = StallWatch()
        self._warming: asyncio.Task[None] | None = None
        self.traffic = traffic
        self._machine = machine
        self._draft_tasks = DraftTaskRunner(machine, thread, kv, self._drafts_ready, processor)
        self._route = route
        self._spans = RoundSpans(span)
        self._rounds = RoundReports(machine.stats) if tells_rounds else None
        self._relayable = asyncio.Event()
        self._holding: asyncio.TimerHandle | None = None
        self._relay_pace = RelayPace()
        self._commits: list[Commit] = []
        self._finish_reason: FinishReason | None = None
        self._prefill = prefill
        self._prefilling: asyncio.Task[None] | None = None

    @property
    def machine(self) -> EdgeMachine:
        return self._machine

    @property
    def ended(self) -> bool:
        return self._finish_reason is not None or super().ended

    async def commits(self) -> AsyncGenerator[Commit, None]:
        """Committed tokens as they become final. Raises Rejected or Unavailable when the cloud
        refuses or stays lost; closing the iterator cancels the request at the cloud."""
        with self.running():
            self.connect()
            ended = False
            while not ended:
                await self._relayable.wait()
                self._relayable.clear()
                ended = self.ended  # as of the commits taken now: more may come while they leave
                for commit in self._take_commits():
                    yield commit
            await self.raise_failure(self._finish_reason)

    def cancel(self) -> None:
        """The caller wants no more than what is committed; `commits` still hands that out."""
        self.dispatch(self.cancel_machine)

    def close(self) -> None:
        super().close()
        self._end_hedge()
        self._end_warm_up()
        if self._prefilling is not None:
            self._prefilling.cancel()
        self._draft_tasks.close()
        self._route.end(self.machine.committed.since(0))

    def receive(self, message: CloudMessage, size_bytes: int, now: float) -> list[EdgeOutput]:
        self._spans.heard(message)
        if not isinstance(message, Pong):
            self._end_hedge()
        if isinstance(message, GoingAway):
            self._route.asked_to_leave(now)
            if self._warms_up(message.grace_s):
                return []
        if isinstance(message, Opened) and not self._route.admits(message.model_name):
            code = grpc.StatusCode.FAILED_PRECONDITION
            if not self.peer_failed(code) and not self.machine.goes_on_alone:
                raise Rejected(code, f"the cloud serves another model now: {message.model_name}")
            return self.machine.lost(now)
        outputs = self.machine.receive(message, now)
        if isinstance(message, Verdict) and self._rounds is not None:
            self._rounds.ended(message, self.machine.drafts_sent)
        if isinstance(message, Verdict | Tokens):
            self._route.answered()
            self._watch.answered(now, self.machine.awaits_answer)
        return outputs

    def take_rounds(self) -> list[pb.RoundFigures]:
        """Those that ended since the last time."""
        return self._rounds.take() if self._rounds is not None else []

    def time_passed(self, now: float) -> list[EdgeOutput]:
        outputs = self.machine.tick(now)
        if Reconnect(lost=True) in outputs:
            self.peer_failed(grpc.StatusCode.UNAVAILABLE)
        elif self._warming is None and (reason := self._route.why_leave(now)) is not None:
            stays = self._route.leaves(reason, now) and self._warms_up(RELIEVED_WITHIN_S)
            outputs += [] if stays else self.machine.leave()
        elif self._watch.stalled(now) and self._beside is None:
            self._hedge()
        return outputs

    def apply(self, outputs: Sequence[EdgeOutput]) -> None:
        if any(isinstance(output, Reconnect) for output in outputs):
            self._end_hedge()
            self._end_warm_up()
            self._watch.moved()
        super().apply(outputs)

    def _hedge(self) -> None:
        """Ask a second cloud for what the first is silent about."""
        frames = self.machine.frames_beside()
        cloud = self._route.beside() if frames else None
        if cloud is None:
            return
        self._beside = beside = SecondCloud(cloud)
        try:
            beside.stream = self._open_beside(
                self._route.connection(cloud),
                lambda message, size: self._dispatch_from_stream(
                    lambda: self._heard_beside(beside, message, size)
                ),
                lambda error: self._dispatch_from_stream(lambda: self._ended_beside(beside, error)),
            )
            for frame in frames:
                beside.stream.send(frame)
        except Exception as error:  # the first one may still answer
            log.warning("second cloud not asked", reason=str(error))
            self._end_hedge()

    def _heard_beside(
        self, beside: "SecondCloud", message: CloudMessage, size_bytes: int
    ) -> Sequence[EdgeOutput]:
        """Its first answer makes it the session's cloud."""
        if beside is not self._beside:
            return self._receive(message, size_bytes)
        if isinstance(message, Opened) and message.model_name == self.machine.target_name:
            beside.opened = message
        elif isinstance(message, Verdict | Tokens) and beside.opened and beside.stream:
            self._beside = None
            self.take_over(beside.stream)
            self._route.taken_over(beside.cloud)
            self._end_warm_up()
            self._watch.moved()
            self.machine.switched(time.monotonic())
            return [*self._receive(beside.opened, 0), *self._receive(message, size_bytes)]
        elif not isinstance(message, Pong | EarlyVerdict):
            self._end_hedge()
        return ()

    def _ended_beside(
        self, beside: "SecondCloud", error: BaseException | None
    ) -> Sequence[EdgeOutput]:
        if beside is not self._beside:
            return self._stream_ended(error)
        self._end_hedge()
        return ()

    def _end_hedge(self) -> None:
        beside, self._beside = self._beside, None
        if beside is not None and beside.stream is not None:
            beside.stream.close_in_background(self._closing_tasks)

    def _warms_up(self, grace_s: float) -> bool:
        """Whether the session stays while its text is computed where it will go."""
        if self._warming is None and (cloud := self._route.next_cloud()) is not None:
            self._warming = asyncio.create_task(self._warm_up(cloud, grace_s))
            self._warming.add_done_callback(self._warmed_up)
        return self._warming is not None

    async def _warm_up(self, cloud: int, grace_s: float) -> None:
        await warm_up(
            lambda: self.machine.request.opening(self.machine.epoch, self.machine.committed),
            partial(self._open_beside, self._route.connection(cloud)),
            *(*self._route.turn(cloud), grace_s, self._closing_tasks),
        )

    def _warmed_up(self, warming: asyncio.Task[None]) -> None:
        if warming.cancelled():
            return
        self._warming = None
        if (error := warming.exception()) is not None:
            log.warning("text not computed before the move", reason=str(error))
        self._dispatch_from_stream(self.machine.leave)

    def _end_warm_up(self) -> None:
        warming, self._warming = self._warming, None
        if warming is not None:
            warming.cancel()

    def peer_failed(self, code: grpc.StatusCode) -> bool:
        return self._route.failed(code, time.monotonic())

    def perform(self, output: EdgeOutput) -> None:
        match output:
            case Send(message):
                self.send(message)
                if self._beside is not None and self._beside.stream is not None:
                    self._beside.stream.send(message)
                if isinstance(message, Draft | Open):
                    self._watch.waits(time.monotonic())
            case Commit():
                self._commits.append(output)
            case Interrupt(task):
                self._draft_tasks.interrupt(task)
            case Finish(reason):
                self._finish_reason = reason

    def cancel_machine(self) -> list[EdgeOutput]:
        return self.machine.cancel()

    def start_work(self) -> None:
        if self._prefilling is not None:
            return
        if self._prefill.due:
            self._prefilling = asyncio.create_task(self._prefill.run())
            self._prefilling.add_done_callback(self._prefilled)
            return
        while (task := self.machine.work(time.monotonic())) is not None:
            self._spans.drafting()
            self._draft_tasks.start(task)

    def notify(self) -> None:
        """Let `commits` go on, at once or a little later."""
        if self.ended:
            self._relay_now()
        elif self._commits:
            wait_s = self._relay_pace.wait_s(time.monotonic(), self._draft_tasks.idle)
            if wait_s <= 0:
                self._relay_now()
            elif self._holding is None:
                loop = asyncio.get_running_loop()
                self._holding = loop.call_later(wait_s, self._relay_now)

    def _relay_now(self) -> None:
        if self._holding is not None:
            self._holding.cancel()
            self._holding = None
        self._relay_pace.relayed(time.monotonic())
        self._relayable.set()

    def _prefilled(self, prefilling: asyncio.Task[None]) -> None:
        self._prefilling = None
        if prefilling.cancelled():
            return
        error = prefilling.exception()

        def done() -> list[EdgeOutput]:
            if error is not None:
                raise error
            return []

        self.dispatch(done)

    def _drafts_ready(self, ready: DraftsReady) -> None:
        self.dispatch(lambda: self.machine.drafted(ready.task, *ready.outcome(), time.monotonic()))

    def _take_commits(self) -> list[Commit]:
        """What became final since the last time, in as few pieces as its marks allow."""
        merged: list[Commit] = []
        for commit in self._commits:
            if merged and merged[-1].unverified == commit.unverified:
                before = merged.pop()
                commit = Commit(
                    (*before.token_ids, *commit.token_ids),
                    commit.unverified,
                    (*before.token_sources, *commit.token_sources),
                    (*before.logprobs, *commit.logprobs),
                )
            merged.append(commit)
        self._commits.clear()
        return merged


@dataclass(slots=True)
class SecondCloud:
    """One that was asked beside the session's cloud; `opened` once it has admitted the stream."""

    cloud: int
    stream: FrameStream[EdgeMessage, CloudMessage] | None = None
    opened: Opened | None = None


class RelayPace:
    """When committed text leaves for the caller. Relaying it takes processor time of every process
    on its way, which the next round waits for. So it waits for the drafts that follow it, as there
    is time while the cloud verifies; and no text leaves right after another, as nobody reads so
    fast. Pure: one clock's seconds go in."""

    HOLD_S, EVERY_S = 0.003, 0.005

    def __init__(self) -> None:
        self._relayed_s = -inf

    def relayed(self, now: float) -> None:
        self._relayed_s = now

    def wait_s(self, now: float, idle: bool) -> float:
        """How long at most what is committed `now` waits; `idle`: nothing is being drafted."""
        return max(0.0 if idle else self.HOLD_S, self._relayed_s + self.EVERY_S - now)
