"""Learning beside answers: what is adopted, refused, given back, and never in an answer's way."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest

from tandem.learning import schedule
from tandem.learning.examples import Example
from tandem.learning.learner import Learner
from tandem.learning.series import LearningSeries
from tandem.learning.store import (
    STATE,
    TEXTS,
    TRAINING,
    AdapterStore,
    read_state,
    tenant_folders,
)
from tandem.net.tenant import Tenant
from tandem.runtime.engine_thread import EngineThread
from tandem.telemetry.metrics import Metrics, new_registry
from tandem.testing.scripted import ScriptedEngine, scripted_probs
from tests.long_runs import with_long_cases
from tests.unit.learning.unigrams import (
    LIKELY,
    VOCABULARY,
    Unigrams,
    answers,
    nonsense,
    setup,
)

ME = Tenant("me")
YOU = Tenant("you")
COUNT = 60


@dataclass(slots=True)
class Drafter:
    """A learner with what stands around it."""

    learner: Learner
    metrics: Metrics
    unigrams: Unigrams
    thread: EngineThread
    busy: threading.Event = field(default_factory=threading.Event)

    async def hear(self, texts: Sequence[Example], tenant: Tenant = ME) -> None:
        """Have texts recorded, one after the other, and learned from."""
        for text in texts:
            self.learner.record(tenant, text)
            await asyncio.sleep(0)
            while self.learner.recording:
                await asyncio.sleep(0)
        await asyncio.wait_for(self.learner.settled(), 30)

    def told(self, name: str, **labels: str) -> float:
        more = {"side": "device", "model_name": "draft", **labels}
        return self.metrics.registry.get_sample_value(f"tandem_learning_{name}", more) or 0.0


@asynccontextmanager
async def drafter(root: Path, model_hash: str = "model") -> AsyncIterator[Drafter]:
    engine = ScriptedEngine(VOCABULARY, scripted_probs(1, VOCABULARY))
    thread, metrics = EngineThread(engine, "test"), Metrics(new_registry(), "device")
    unigrams, busy = Unigrams(), threading.Event()
    learner = Learner(
        thread,
        setup(unigrams, model_hash),
        root,
        metrics.series(LearningSeries, model_name="draft"),
        busy.is_set,
        idle_s=0.0,
        rest=0.0,
    )
    learner.start()
    try:
        yield Drafter(learner, metrics, unigrams, thread, busy)
    finally:
        await learner.close()
        await asyncio.to_thread(thread.stop)


async def test_what_raises_acceptance_is_used_by_the_next_answer(tmp_path: Path) -> None:
    async with drafter(tmp_path) as device:
        assert await device.learner.adapter_for(ME) is None
        await device.hear(answers(COUNT))
        used = await device.learner.adapter_for(ME)
        assert used is not None
        assert int(np.argmax(used.weights)) == LIKELY
        assert device.unigrams.merged is used.placed
        assert device.told("judgements_total", outcome="adopted") >= 1
        before, after = device.told("acceptance_before"), device.told("acceptance_after")
        assert before == pytest.approx(1 / VOCABULARY)
        assert after > 0.5
        assert device.told("cpu_seconds_total") > 0
        assert device.told("backlog_tokens") == 0
    (folder,) = tenant_folders(tmp_path)
    state = read_state(folder)
    assert state is not None
    version = state.versions[-1]
    assert version.number == state.used
    assert version.acceptance_after > version.acceptance_before
    assert version.trained_tokens > 0
    assert version.held_back_tokens > 100
    assert {path.stat().st_mode & 0o777 for path in folder.iterdir()} == {0o600}


async def test_nonsense_is_refused(tmp_path: Path) -> None:
    """A store that somebody filled with random pairs teaches nothing that counts."""
    async with drafter(tmp_path) as device:
        await device.hear(nonsense(COUNT))
        assert device.told("steps_total") > 0
        assert device.told("judgements_total", outcome="rejected") >= 1
        assert device.told("judgements_total", outcome="adopted") == 0
        assert await device.learner.adapter_for(ME) is None


async def test_an_adapter_that_has_fallen_behind_is_given_up(tmp_path: Path) -> None:
    async with drafter(tmp_path) as device:
        await device.hear(answers(COUNT))
        assert await device.learner.adapter_for(ME) is not None
        # The target says something else now: what was learned is worse than nothing, and the
        # texts that judge are soon of the new kind alone.
        await device.hear(answers(3 * COUNT, likely=9))
        used = await device.learner.adapter_for(ME)
        assert used is None or int(np.argmax(used.weights)) == 9


async def test_a_restart_goes_on_with_what_was_learned(tmp_path: Path) -> None:
    async with drafter(tmp_path) as device:
        await device.hear(answers(COUNT))
        before = await device.learner.adapter_for(ME)
    async with drafter(tmp_path) as device:
        after = await device.learner.adapter_for(ME)
        assert before is not None
        assert after is not None
        assert after.digest == before.digest
        assert device.unigrams.merged is after.placed
        assert device.told("steps_total") == 0
    async with drafter(tmp_path, model_hash="another model") as device:
        assert await device.learner.adapter_for(ME) is None


async def test_one_tenant_s_answers_change_nothing_for_another(tmp_path: Path) -> None:
    async with drafter(tmp_path) as device:
        await device.hear(answers(COUNT))
        await device.hear(answers(COUNT, likely=9), YOU)
        mine, yours = [await device.learner.adapter_for(tenant) for tenant in (ME, YOU)]
        nobody = await device.learner.adapter_for(Tenant("me", b"another"))
        assert mine is not None
        assert yours is not None
        assert nobody is None
        assert int(np.argmax(mine.weights)) == LIKELY
        assert int(np.argmax(yours.weights)) == 9
        assert mine.digest != yours.digest
    assert len([each for each in tenant_folders(tmp_path) if read_state(each)]) == 2


@pytest.mark.parametrize("change", ["roll_back", "reset"])
async def test_another_process_rolls_back_and_resets(change: str, tmp_path: Path) -> None:
    async with drafter(tmp_path) as device:
        await device.hear(answers(COUNT))
        used = await device.learner.adapter_for(ME)
        (folder,) = tenant_folders(tmp_path)
        state = read_state(folder)
        assert state is not None
        versions = AdapterStore(folder, state.model)
        for _ in range(state.used):
            getattr(versions, change)()
        after = await device.learner.adapter_for(ME)
        assert used is not None
        assert after is None
        assert (folder / TEXTS).exists() is (change == "roll_back")
        # Without new answers nothing is learned again.
        await asyncio.wait_for(device.learner.settled(), 30)
        assert await device.learner.adapter_for(ME) is None


async def test_nothing_is_trained_while_a_request_is_open(tmp_path: Path) -> None:
    async with drafter(tmp_path) as device:
        device.busy.set()
        for text in answers(COUNT):
            device.learner.record(ME, text)
        while device.learner.recording:
            await asyncio.sleep(0.001)
        for _ in range(20):  # what was woken would have had its turn on both threads
            await device.thread.call(lambda: None)
        assert device.told("steps_total") == 0
        device.busy.clear()
        await asyncio.wait_for(device.learner.settled(), 30)
        assert device.told("steps_total") > 0


async def test_a_request_stops_the_step_that_is_under_way(tmp_path: Path) -> None:
    async with drafter(tmp_path) as device:
        began, goes_on = threading.Event(), threading.Event()
        interrupted = device.learner.interrupted

        def cancelled() -> bool:
            began.set()
            goes_on.wait(10)
            return interrupted()

        device.learner.interrupted = cancelled  # type: ignore[method-assign]
        for text in answers(COUNT):
            device.learner.record(ME, text)
        await asyncio.to_thread(began.wait, 10)
        device.busy.set()
        goes_on.set()
        # The thread is free at once, and the step has changed nothing.
        await asyncio.wait_for(device.thread.call(lambda: None), 10)
        while not device.told("interrupted_total"):
            await asyncio.sleep(0.001)
        assert device.told("steps_total") == 0
        device.busy.clear()
        await asyncio.wait_for(device.learner.settled(), 30)
        assert await device.learner.adapter_for(ME) is not None


async def test_an_answer_keeps_the_adapter_that_it_began_with(tmp_path: Path) -> None:
    async with drafter(tmp_path) as device:
        await device.hear(answers(COUNT))
        used = await device.learner.adapter_for(ME)
        assert used is not None
        weights = used.weights.copy()
        await device.hear(answers(2 * COUNT)[COUNT:])
        assert (used.weights == weights).all()
        assert (np.asarray(used.placed) == weights).all()


def _cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


@pytest.mark.parametrize(
    "name", with_long_cases([TEXTS, TRAINING, "adapter-1.safetensors"], (TRAINING,))
)
async def test_a_file_that_a_kill_left_in_part_costs_no_more_than_itself(
    name: str,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(schedule, "MAX_FAILURES", 1000)  # what is in training is not given up
    async with drafter(tmp_path) as device:
        await device.hear(answers(COUNT))
    (folder,) = tenant_folders(tmp_path)
    state = read_state(folder)
    assert state is not None
    if name.startswith("adapter"):
        name = f"adapter-{state.used}.safetensors"
    _cut(folder / name)
    caplog.clear()
    with caplog.at_level(logging.WARNING):
        async with drafter(tmp_path) as device:
            used = await device.learner.adapter_for(ME)
            assert (used is None) is name.startswith("adapter")
            assert len(caplog.records) == 1
            await device.hear(answers(2 * COUNT)[COUNT:])
            assert await device.learner.adapter_for(ME) is not None


@pytest.mark.parametrize("at", ["texts", "adapter"])
async def test_a_full_disk_ends_learning_and_no_answer(
    at: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    places = {"texts": "tandem.learning.replay_buffer.append_privately", "adapter": ""}
    async with drafter(tmp_path) as device:
        await device.hear(answers(COUNT))
        used = await device.learner.adapter_for(ME)
        if at == "texts":
            monkeypatch.setattr(places[at], full)
        else:
            monkeypatch.setattr(AdapterStore, "add", full)
            monkeypatch.setattr(AdapterStore, "roll_back", full)
            monkeypatch.setattr(AdapterStore, "keep_training", full)
        with caplog.at_level(logging.WARNING):
            await device.hear(answers(3 * COUNT, likely=9))
            while not device.learner.failed:
                await asyncio.sleep(0.001)
        assert [record.levelno for record in caplog.records] == [logging.WARNING]
        after = await device.learner.adapter_for(ME)
        assert used is not None
        assert at == "adapter" or after is not None
        # With the adapter it is the kind of the texts that changes: it may be set aside.
        assert after is None or after.digest == used.digest
        assert (await device.thread.call(lambda: 5)) == 5


async def test_a_state_file_that_nests_deeply_fails_no_answer(tmp_path: Path) -> None:
    async with drafter(tmp_path) as device:
        await device.hear(answers(COUNT))
        assert await device.learner.adapter_for(ME) is not None
        (folder,) = tenant_folders(tmp_path)
        (folder / STATE).write_text("[" * 100_000)
        assert await device.learner.adapter_for(ME) is None
        assert not device.learner.failed, "others learn on"


@pytest.mark.parametrize("place", ["place", "merge"])
async def test_an_adapter_that_cannot_be_placed_fails_no_answer(
    place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with drafter(tmp_path) as device:
        await device.hear(answers(COUNT))

    def fails(self: Unigrams, weights: object) -> object:
        raise MemoryError("whatever")

    monkeypatch.setattr(Unigrams, place, fails)
    async with drafter(tmp_path) as device:
        assert await device.learner.adapter_for(ME) is None


async def test_an_adapter_whose_logits_are_no_numbers_is_set_aside(tmp_path: Path) -> None:
    async with drafter(tmp_path) as device:
        await device.hear(answers(COUNT))
        used = await device.learner.adapter_for(ME)
        assert used is not None
        used.set_aside()
        assert await device.learner.adapter_for(ME) is None
        await device.hear(answers(2 * COUNT)[COUNT:])


async def test_a_step_that_fails_ends_learning_and_no_answer(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with drafter(tmp_path) as device:
        device.unigrams.fails = MemoryError("no memory")
        with caplog.at_level(logging.WARNING):
            await device.hear(answers(COUNT))
        assert device.learner.failed
        assert len(caplog.records) == 1
        assert await device.learner.adapter_for(ME) is None
        assert (await device.thread.call(lambda: 5)) == 5
