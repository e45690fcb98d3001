"""One request at the drafter: an `EdgeMachine` between the draft engine and the verifier's stream.
Invariant: each event is handled as it arrives, since a round waits for it."""

import asyncio
import time
from collections.abc import AsyncGenerator, Callable
from math import inf

import grpc

from tandem.backends.interface import Session
from tandem.core.processors import LogitsProcessor
from tandem.core.stopping import FinishReason
from tandem.net.frame_stream import Traffic
from tandem.net.session_runner import SessionRunner
from tandem.net.status import Rejected
from tandem.runtime.draft_tasks import DraftsReady, DraftTaskRunner
from tandem.runtime.engine_thread import EngineThread
from tandem.runtime.layer_tasks import LayersReady, LayersRunner
from tandem.services.drafter.cloud.link import CloudLink
from tandem.services.drafter.prefill import DraftPrefill
from tandem.services.drafter.round_figures import RoundReports, RoundSpans
from tandem.services.drafter.split_edge import LayersSession
from tandem.specdec.edge import EdgeMachine
from tandem.specdec.events import Commit, EdgeOutput, Finish, Interrupt, Reconnect, Send
from tandem.specdec.messages import (
    CloudMessage,
    EdgeMessage,
    Opened,
)
from tandem.telemetry.logging import get_logger
from tandem.telemetry.tracing import Span
from tandem_api.common.v1 import generation_pb2 as pb

log = get_logger(__name__)


class DrafterSession(SessionRunner[EdgeMessage, CloudMessage, EdgeOutput]):
    """Runs one machine to its end: `connect` it, so that the cloud has the text while keys and
    values are opened here, `begin` to draft, iterate `commits`, then read the machine's stats."""

    def __init__(
        self,
        machine: EdgeMachine,
        link: CloudLink,
        traffic: Traffic,
        closing_tasks: set[asyncio.Task[None]],
        span: Span,
        tells_rounds: bool = False,
    ) -> None:
        """Set up the session. `closing_tasks`: see `SessionRunner`. `tells_rounds`: whether
        `take_rounds` will be called."""
        super().__init__(
            open_stream=link.open_stream,
            opened=Opened,
            closing_tasks=closing_tasks,
            why_silent=link.why_silent,
            spread=machine.request.session,
        )
        self._link = link
        self.traffic = traffic
        self._machine = machine
        self._draft_tasks: DraftTaskRunner | None = None
        self._layers: LayersRunner | None = None
        self._spans = RoundSpans(span)
        self._rounds = RoundReports(machine.stats) if tells_rounds else None
        self._relayable = asyncio.Event()
        self._holding: asyncio.TimerHandle | None = None
        self._relay_pace = RelayPace()
        self._commits: list[Commit] = []
        self._finish_reason: FinishReason | None = None
        self._prefill: DraftPrefill | None = None
        self._prefilling: asyncio.Task[None] | None = None

    def begin(
        self,
        thread: EngineThread,
        kv: Session,
        prefill: DraftPrefill,
        processor: LogitsProcessor | None = None,
        layers: LayersSession | None = None,
        on_broken: Callable[[], None] | None = None,
    ) -> None:
        """Begin to draft. `layers`: those of the target, if the request is split. `on_broken`: see
        `DraftRequest`."""
        self._prefill = prefill
        self._draft_tasks = DraftTaskRunner(
            self._machine,
            thread,
            kv,
            on_drafted=self._drafts_ready,
            processor=processor,
            on_broken=on_broken,
        )
        if layers is not None:
            self._layers = LayersRunner(self._machine, layers.thread, layers.kv, self._layers_ready)
        self.dispatch(list)  # what is due by now

    @property
    def machine(self) -> EdgeMachine:
        return self._machine

    @property
    def ended(self) -> bool:
        return self._finish_reason is not None or super().ended

    async def commits(self) -> AsyncGenerator[Commit, None]:
        """Yield committed tokens as they become final. Raises Rejected or Unavailable when the
        cloud refuses or stays lost; closing the iterator cancels the request at the cloud."""
        with self.running():
            ended = False
            while not ended:
                await self._relayable.wait()
                self._relayable.clear()
                ended = self.ended  # as of the commits taken now: more may come while they leave
                for commit in self._take_commits():
                    yield commit
            await self.raise_failure(self._finish_reason)

    def cancel(self) -> None:
        """Stop making more than what is committed, which is all that the caller still wants;
        `commits` still yields it."""
        self.dispatch(self.cancel_machine)

    def close(self) -> None:
        if self._closed:
            return
        super().close()
        if self._prefilling is not None:
            self._prefilling.cancel()
        if self._draft_tasks is not None:
            self._draft_tasks.close()
        if self._layers is not None:
            self._layers.close()
        self._link.end()

    def receive(self, message: CloudMessage, size_bytes: int, now: float) -> list[EdgeOutput]:
        self._spans.heard(message)
        self._link.heard(message, now)
        if isinstance(message, Opened) and not self._link.admits(message):
            code = grpc.StatusCode.FAILED_PRECONDITION
            if not self.peer_failed(code) and not self.machine.goes_on_alone:
                raise Rejected(code, f"the cloud serves another model now: {message.model_name}")
            return self.machine.lost(now)
        outputs = self.machine.receive(message, now)
        if self._rounds is not None:
            self._rounds.heard(self.machine.drafts_sent)
        return outputs

    def take_rounds(self) -> list[pb.RoundFigures]:
        """Return the figures of the rounds that ended since the last call."""
        return self._rounds.take() if self._rounds is not None else []

    def time_passed(self, now: float) -> list[EdgeOutput]:
        outputs = self.machine.tick(now)
        if Reconnect(lost=True) in outputs:
            self.peer_failed(grpc.StatusCode.UNAVAILABLE)
        return outputs

    def peer_failed(self, code: grpc.StatusCode) -> bool:
        return self._link.failed(code)

    def perform(self, output: EdgeOutput) -> None:
        match output:
            case Send(message):
                self.send(message)
            case Commit():
                self._commits.append(output)
            case Interrupt(task) if self._draft_tasks is not None:
                self._draft_tasks.interrupt(task)
            case Finish(reason):
                self._finish_reason = reason

    def cancel_machine(self) -> list[EdgeOutput]:
        return self.machine.cancel()

    def start_work(self) -> None:
        if self._prefill is None or self._draft_tasks is None:
            return
        if self._layers is not None:
            self._layers.start_due()
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
            idle = self._draft_tasks is None or self._draft_tasks.idle
            wait_s = self._relay_pace.wait_s(time.monotonic(), idle)
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

    def _layers_ready(self, ready: LayersReady) -> None:
        self.dispatch(
            lambda: self.machine.layers_done(ready.task, ready.states(), time.monotonic())
        )

    def _take_commits(self) -> list[Commit]:
        """Return the tokens that became final since the last call, in as few pieces as their marks
        allow."""
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


class RelayPace:
    """Decides when committed text is sent to the caller. Relaying it takes processor time of every
    process on its way, which the next round waits for. So it waits for the drafts that follow it,
    as there is time while the cloud verifies; and no text leaves right after another, as nobody
    reads so fast. Pure: one clock's seconds go in."""

    HOLD_S = 0.003
    EVERY_S = 0.005

    def __init__(self) -> None:
        self._relayed_s = -inf

    def relayed(self, now: float) -> None:
        self._relayed_s = now

    def wait_s(self, now: float, idle: bool) -> float:
        """Return how long at most what is committed `now` waits; `idle`: nothing is being
        drafted."""
        return max(0.0 if idle else self.HOLD_S, self._relayed_s + self.EVERY_S - now)
