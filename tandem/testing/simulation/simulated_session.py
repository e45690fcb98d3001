"""One request in virtual time: its edge machine, draft engine and link, and the verifier that it
shares with others. Invariant: every frame goes over the link, and what a lost stream carried is
gone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from tandem.netem.link_model import Link, LinkPair, LinkShape
from tandem.specdec.cloud import CloudMachine
from tandem.specdec.cloud_checks import CloudModel
from tandem.specdec.edge import EdgeMachine
from tandem.specdec.events import Commit, EdgeOutput, Finish, Interrupt, Reconnect, Send
from tandem.specdec.messages import CloudMessage, EdgeMessage, Open
from tandem.testing.simulation.model_times import ModelTimes
from tandem.testing.simulation.simulated_cloud_drafts import SimulatedCloudDrafts
from tandem.testing.simulation.simulated_drafts import SimulatedDrafts
from tandem.testing.simulation.simulated_verifier import (
    ServedSession,
    SimulatedVerifier,
    TargetModel,
)
from tandem.testing.simulation.virtual_time import Faults, VirtualTime

MANY_LAYERS = 1 << 10


@dataclass(slots=True, eq=False)
class SimulatedSession:
    """Begins with `schedule`; over when `finish` is there."""

    edge: EdgeMachine
    drafts: SimulatedDrafts
    target: TargetModel
    link: LinkPair
    size_of: Callable[[EdgeMessage | CloudMessage], int]
    verifier: SimulatedVerifier
    time: VirtualTime
    times: ModelTimes
    stream: int = 0
    served: ServedSession | None = None
    finish: Finish | None = None
    ended_s: float = 0.0
    commits: list[tuple[float, Commit]] = field(default_factory=list)

    def schedule(
        self,
        start_s: float,
        faults: Faults,
        link_changes: Sequence[tuple[float, LinkShape]] = (),
    ) -> None:
        """Schedule the request's beginning and what will happen to its link: faults, and other
        settings from these moments on."""
        faults.plan(self.time, self.link, self._reset, self._depart)
        for moment, settings in link_changes:
            self._at(moment, partial(self._change, settings))
        self._at(start_s, self._connect)
        self._at(start_s + 0.2, self._tick)

    def _at(self, moment: float, event: Callable[[], None]) -> None:
        """Schedule an event of this session, and what follows from it."""

        def run() -> None:
            event()
            self._react()

        self.time.at(moment, run)

    def _react(self) -> None:
        if self.finish is not None:
            return
        self._draft()
        if self.served is not None:
            self.verifier.look(self.served)

    def _tick(self) -> None:
        if self.finish is None:
            self._apply(self.edge.tick(self.time.now))
            self._at(self.time.now + 0.2, self._tick)

    def _change(self, shape: LinkShape) -> None:
        self.link.up.change(shape.up)
        self.link.down.change(shape.down)

    def _reset(self) -> None:
        self._apply(self.edge.lost(self.time.now))
        self._react()

    def _depart(self) -> None:
        if self.served:
            self._to_edge([self.served.cloud.going_away()])

    def _connect(self) -> None:
        self._apply(self.edge.connect(self.time.now))

    def _apply(self, outputs: Sequence[EdgeOutput]) -> None:
        for output in outputs:
            match output:
                case Send(message):
                    size = self.size_of(message)
                    self._carry(self.link.up, size, partial(self._at_cloud, message))
                case Commit():
                    self.commits.append((self.time.now, output))
                case Finish():
                    self.finish = output
                    self.ended_s = self.time.now
                case Reconnect():
                    self._new_stream()
                case Interrupt(work):
                    self.drafts.interrupt(work)

    def _new_stream(self) -> None:
        self.stream += 1
        self._leave_verifier()
        self.link.up.empty()
        self.link.down.empty()
        self._at(self.time.now + 0.001, self._connect_if_waiting)

    def _leave_verifier(self) -> None:
        served, self.served = self.served, None
        if served is not None:
            self.verifier.remove(served)

    def _connect_if_waiting(self) -> None:
        if self.edge.phase == "connecting":
            self._connect()

    def _carry(self, link: Link, size_bytes: int, deliver: Callable[[], None]) -> None:
        stream = self.stream

        def arrive() -> None:
            if stream == self.stream:
                deliver()

        self._at(link.send(size_bytes, self.time.now), arrive)

    def _at_cloud(self, message: EdgeMessage) -> None:
        if isinstance(message, Open):
            self._open(message)
        elif self.served:
            cloud = self.served.cloud
            self._to_edge(cloud.receive(message))
            if cloud.ended:
                self._leave_verifier()
            else:
                self.verifier.look(self.served)

    def _open(self, opening: Open) -> None:
        model = CloudModel(
            model_name="simulated",
            vocabulary_hash=opening.vocabulary_hash,
            vocabulary_size=opening.vocabulary_size,
            context_length=1 << 20,
            eos_token_ids=self.edge.request.eos_token_ids,
            exits=len(self.target.exit_distributions),
            layer_count=MANY_LAYERS,
            hidden_size=self.times.hidden_size,
            exit_temperatures=self.target.exit_temperatures,
            row_share=self.verifier.row_share,
        )
        verifier = self.verifier
        cloud = CloudMachine(
            opening,
            model,
            budget=verifier.budget,
            draft_budget=verifier.draft_budget,
            has_draft_model=self.times.offers_cloud_drafts,
        )
        self._leave_verifier()
        drafts = SimulatedCloudDrafts(cloud, self.drafts.probs)
        self.served = ServedSession(cloud, self.target, self.link.down, self._to_edge, drafts)
        self._to_edge([cloud.opened()])
        self.verifier.look(self.served)

    def _to_edge(self, messages: Sequence[CloudMessage]) -> None:
        for message in messages:
            size = self.size_of(message)
            self._carry(self.link.down, size, partial(self._at_edge, message))

    def _at_edge(self, message: CloudMessage) -> None:
        self._apply(self.edge.receive(message, self.time.now))

    def _run_layers(self) -> None:
        """Compute the hidden states of a split request: of each token its own number."""
        if (task := self.edge.layers_work()) is None:
            return
        states = np.zeros((len(task.token_ids), self.times.hidden_size), dtype=np.float32)
        states[:, 0] = task.token_ids

        def done() -> None:
            self._apply(self.edge.layers_done(task, states, self.time.now))

        self._at(self.time.now + self.times.layers_s, done)

    def _draft(self) -> None:
        self._run_layers()
        while (work := self.edge.work(self.time.now)) is not None:
            self.drafts.start(work)
        if (number := self.drafts.begin_pass()) is not None:
            times = self.times
            slowed = times.slowed_at(self.time.now, beside=self.verifier.under_way)
            branches_s = (self.drafts.jobs_under_way - 1) * times.branch_s
            self.drafts.step_s = (times.draft_s + branches_s) * slowed
            self._at(self.time.now + self.drafts.step_s, lambda: self._drafted(number))

    def _drafted(self, number: int) -> None:
        for report in self.drafts.end_pass(number):
            outcome = (report.work, report.drafts, report.kv_length, report.draft_s)
            self._apply(self.edge.drafted(*outcome, self.time.now))
