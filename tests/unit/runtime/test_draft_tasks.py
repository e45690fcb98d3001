"""A verdict is handled while drafting runs, and ends the drafting it voids at the next layer."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence

import pytest

from tandem.backends.interface import ForwardCancelled, ForwardRequest, Logits, Session, never
from tandem.runtime.draft_tasks import DraftsReady, DraftTaskRunner
from tandem.runtime.engine_thread import EngineThread
from tandem.specdec.choices import Predraft, Schedule
from tandem.specdec.edge import EdgeMachine
from tandem.specdec.events import Interrupt
from tandem.specdec.presets import PRESETS
from tandem.testing.context_engine import ContextSession
from tandem.testing.scripted import ScriptedEngine, scripted_probs
from tests.virtual_time.cases import preset, scheduled
from tests.virtual_time.edge_frames import drafts_in_flight, edge_of, verdict_of

LAYERS = 1000
VOCABULARY = 3


class LayeredEngine(ScriptedEngine):
    """Passes of many layers; in layer `pause_at` of a pass over one token it says so, and waits."""

    def __init__(self) -> None:
        super().__init__(VOCABULARY, scripted_probs(1, VOCABULARY))
        self.paused, self.go_on = threading.Event(), threading.Event()
        self.pause_at: int | None = None
        self.layers_after_pause = 0

    def forward(
        self, batch: Sequence[ForwardRequest], cancelled: Callable[[], bool] = never
    ) -> list[Logits]:
        pausing = self.pause_at
        for layer in range(LAYERS):
            if cancelled():
                raise ForwardCancelled("between two layers")
            if pausing is not None and layer >= pausing:
                self.layers_after_pause += layer > pausing
                if layer == pausing:
                    self.paused.set()
                    assert self.go_on.wait(10), "the event loop is held up by drafting"
        return super().forward(batch, cancelled)


async def drafted(
    edge: EdgeMachine, works: DraftTaskRunner, ready: asyncio.Queue[DraftsReady]
) -> None:
    """Draft and send one chunk."""
    while (work := edge.work(0.0)) is not None:
        works.start(work)
    happened = await ready.get()
    edge.drafted(happened.task, *happened.outcome(), 0.0)


async def test_a_verdict_stops_the_forward_pass_between_layers() -> None:
    engine = LayeredEngine()
    thread = EngineThread(engine, "draft-engine")
    ready: asyncio.Queue[DraftsReady] = asyncio.Queue()
    edge = edge_of(scheduled("coupled", Schedule(4, 2, True, bonus=False, token_by_token=True)))
    edge.connect(0.0)
    try:
        async with thread.session(32) as kv:
            works = DraftTaskRunner(edge, thread, kv, ready.put_nowait)
            while not edge.drafts_sent >= 2:
                await drafted(edge, works, ready)
            engine.pause_at = 7
            while (work := edge.work(0.0)) is not None:
                works.start(work)
            await asyncio.to_thread(engine.paused.wait, 10)
            # What follows runs on the event loop, while the engine's thread is inside layer 7.
            instead = (drafts_in_flight(edge)[0] + 1) % VOCABULARY
            outputs = edge.receive(verdict_of(edge, 0, True, instead), 0.0)
            (interrupt,) = [output for output in outputs if isinstance(output, Interrupt)]
            works.interrupt(interrupt.task)
            engine.pause_at = None
            engine.go_on.set()
            await thread.call(lambda: None)  # handed over like the next work: it is next
            assert engine.layers_after_pause == 0
            assert works.idle
    finally:
        await asyncio.to_thread(thread.stop)


async def test_forks_of_branches_are_freed_whatever_becomes_of_them() -> None:
    engine = ScriptedEngine(VOCABULARY, scripted_probs(1, VOCABULARY))
    thread = EngineThread(engine, "draft-engine")
    ready: asyncio.Queue[DraftsReady] = asyncio.Queue()
    edge = edge_of(preset("coupled", 3, predraft=Predraft.LIKELY_OUTCOMES), max_tokens=20)
    edge.connect(0.0)
    assert PRESETS["coupled"].spare_tokens(99) == 0 < edge.request.preset.spare_tokens(99)
    try:
        async with thread.session(32) as kv:
            works = DraftTaskRunner(edge, thread, kv, ready.put_nowait)
            for _ in range(6):
                await drafted(edge, works, ready)
            assert edge.stats.predrafted > 0
            works.close()
            await thread.call(lambda: None)
            assert engine.sessions_open == 1, "the request's own"
        assert engine.kv_bytes_in_use == 0
    finally:
        await asyncio.to_thread(thread.stop)


async def test_the_fork_of_a_branch_that_fails_is_freed() -> None:
    engine = FailingForks()
    thread = EngineThread(engine, "draft-engine")
    ready: asyncio.Queue[DraftsReady] = asyncio.Queue()
    edge = edge_of(preset("coupled", 3, predraft=Predraft.LIKELY_OUTCOMES), max_tokens=20)
    edge.connect(0.0)
    try:
        async with thread.session(32) as kv:
            works = DraftTaskRunner(edge, thread, kv, ready.put_nowait)
            while True:
                while (work := edge.work(0.0)) is not None:
                    works.start(work)
                happened = await ready.get()
                if happened.task.branch:
                    break
                edge.drafted(happened.task, *happened.outcome(), 0.0)
            with pytest.raises(RuntimeError, match="in a fork"):
                happened.outcome()
            works.close()
            await thread.call(lambda: None)
            assert engine.forks
            assert engine.sessions_open == 1, "the request's own"
        assert engine.kv_bytes_in_use == 0
    finally:
        await asyncio.to_thread(thread.stop)


class FailingForks(ScriptedEngine):
    """Passes over a fork fail."""

    def __init__(self) -> None:
        super().__init__(VOCABULARY, scripted_probs(1, VOCABULARY))
        self.forks: list[Session] = []

    def fork(self, parent: Session, length: int, capacity: int) -> ContextSession:
        fork = super().fork(parent, length, capacity)
        self.forks.append(fork)
        return fork

    def forward(
        self, batch: Sequence[ForwardRequest], cancelled: Callable[[], bool] = never
    ) -> list[Logits]:
        if any(request.session in self.forks for request in batch):
            raise RuntimeError("in a fork")
        return super().forward(batch, cancelled)
