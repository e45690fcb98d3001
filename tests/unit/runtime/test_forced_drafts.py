"""What a grammar forces is drafted without a pass, and is what a pass would have drafted."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import pytest

from tandem.backends.interface import Engine
from tandem.core.probs import SamplingParams
from tandem.core.processors import LogitsProcessor, Mask, Processors, RowsAfter
from tandem.core.randomness import SeededRandom
from tandem.runtime.draft_tasks import DraftsReady, DraftTaskRunner
from tandem.runtime.engine_thread import EngineThread
from tandem.runtime.session_jobs import DraftJob, DraftRequest, VerifyJob
from tandem.specdec.events import Drafted, DraftTask
from tandem.specdec.judge import Judge, chain_steps
from tandem.specdec.predicted_text import PredictedText, PredictionProposer
from tandem.specdec.presets import PRESETS
from tandem.specdec.proposers import NO_TEXTS, DraftSource, TextDrafts
from tandem.specdec.rules import GumbelCouplingRule, PayloadRule, Proposal, acceptance_rule
from tandem.specdec.verify_task import VerifyTask
from tandem.testing.scripted import ScriptedEngine, scripted_probs
from tests.virtual_time.cases import preset
from tests.virtual_time.edge_frames import drafts_in_flight, edge_of

VOCABULARY = 8
PROMPT = (1, 2)


@dataclass(frozen=True)
class Decided:
    """A grammar of `token_ids`, in which None may be 3 or 4."""

    token_ids: tuple[int | None, ...]
    tells: bool = True
    vocabulary_size: int = VOCABULARY

    def allowed(self, answer: tuple[int, ...]) -> Mask | None:
        allowed = np.zeros(VOCABULARY, dtype=np.bool_)
        token_id = self.token_ids[len(answer)]
        allowed[[3, 4] if token_id is None else [token_id]] = True
        return allowed

    def prepare(self, answers: Sequence[tuple[int, ...]]) -> None:
        pass

    def forced(self, answer: tuple[int, ...]) -> int | None:
        return self.token_ids[len(answer)] if self.tells else None


def drafts_of(
    mask: Decided | None,
    name: str,
    work: DraftTask,
    handed: list[tuple[int, int]] | None = None,
    texts: TextDrafts = NO_TEXTS,
) -> tuple[list[Drafted], int, int]:
    """The result of a job, and how many passes it took."""
    engine: Engine = ScriptedEngine(VOCABULARY, scripted_probs(1, VOCABULARY))
    chosen, session, passes = PRESETS[name], engine.open(20), 0
    rule = acceptance_rule(chosen, 3, SeededRandom(3))
    rows = None if mask is None else RowsAfter(LogitsProcessor(Processors(), PROMPT, mask), ())
    told = handed if handed is not None else []
    request = DraftRequest(
        work,
        sampling=SamplingParams(),
        rule=rule,
        preset=chosen,
        on_draft=lambda drafted, kv_length, _: told.append((drafted.token_id, kv_length)),
        rows=rows,
        texts=texts,
    )
    job = DraftJob(session, request)
    while True:
        # A pass that failed for others may have fed this session, and is repeated.
        engine.forward([job.request()])
        (logits,) = engine.forward([job.request()])
        passes += 1
        if job.take(logits):
            return (*job.result(), passes)


def predicted(drafts: list[Drafted]) -> list[bool]:
    return [drafted.source is DraftSource.PREDICTION for drafted in drafts]


@pytest.mark.parametrize("name", ["coupled", "dsd", "dssd"])
@pytest.mark.parametrize(
    ("token_ids", "passes"),
    [
        ((None, 5, 6, None, 7, 1), 2),
        ((5, 6, None, None, 7, 1), 2),
        ((5, 6, 7, 1, 2, None), 1),
        ((None,) * 6, 6),
    ],
)
def test_forced_tokens_cost_no_pass_and_are_the_same(
    name: str, token_ids: tuple[int | None, ...], passes: int
) -> None:
    work = DraftTask(keep=0, token_ids=PROMPT, position=2, count=6)
    quick, quick_length, quick_passes = drafts_of(Decided(token_ids), name, work)
    slow, slow_length, slow_passes = drafts_of(Decided(token_ids, tells=False), name, work)
    assert (quick_passes, slow_passes) == (passes, 6)
    assert [drafted.token_id for drafted in quick] == [drafted.token_id for drafted in slow]
    for one, other in zip(quick, slow, strict=True):
        assert np.array_equal(one.draft_probs, other.draft_probs)
    assert quick_length <= slow_length == 2 + 5, "what was not fed is fed with the next work"


def test_step_by_step_each_is_handed_over_with_the_keys_before_it() -> None:
    work = DraftTask(keep=0, token_ids=PROMPT, position=2, count=6, stepwise=True)
    handed: list[tuple[int, int]] = []
    mask = Decided((5, None, 6, 7, None, 1))
    rest, kv_length, passes = drafts_of(mask, "coupled", work, handed)
    whole, _, _ = drafts_of(mask, "coupled", replace(work, stepwise=False))
    assert [token_id for token_id, _ in handed] + [drafted.token_id for drafted in rest] == [
        drafted.token_id for drafted in whole
    ]
    assert [length for _, length in handed] == [2, 3, 3, 3]
    assert (len(rest), kv_length, passes) == (2, 6, 2)


async def test_a_work_that_is_forced_as_a_whole_never_reaches_the_engine() -> None:
    engine = ScriptedEngine(3, scripted_probs(1, 3))
    thread = EngineThread(engine, "draft-engine")
    ready: asyncio.Queue[DraftsReady] = asyncio.Queue()
    edge = edge_of(preset("coupled", 4), max_tokens=20)
    edge.connect(0.0)
    mask = Decided((2, 1, 2, 2), vocabulary_size=3)
    processor = LogitsProcessor(Processors(), edge.request.prompt_ids, mask, strict=False)
    try:
        async with thread.session(32) as kv:
            works = DraftTaskRunner(edge, thread, kv, ready.put_nowait, processor)
            work = edge.work(0.0)
            assert work is not None
            works.start(work)
            assert not works.idle
            happened = await ready.get()
            edge.drafted(happened.task, *happened.outcome(), 0.0)
            assert drafts_in_flight(edge) == (2, 1, 2, 2)[: work.count]
            assert (edge.kv_length, kv.length) == (0, 0)
            assert works.idle
            edge._drafting.discard()
            again = edge.work(0.0)
            assert again is not None
            works.start(again)
            works.interrupt(again)
            await asyncio.sleep(0)
            assert ready.empty()
    finally:
        await asyncio.to_thread(thread.stop)


def after(predicted: tuple[int, ...], answer: tuple[int, ...] = ()) -> TextDrafts:
    texts = TextDrafts((PredictedText(predicted, VOCABULARY).begin(),), VOCABULARY)
    return texts.commit(*answer)


@pytest.mark.parametrize("name", ["coupled", "dsd", "dssd"])
def test_predicted_tokens_cost_no_pass_and_are_certain(name: str) -> None:
    """The model drafts where the prediction ends."""
    work = DraftTask(keep=0, token_ids=PROMPT, position=2, count=5)
    drafts, kv_length, passes = drafts_of(None, name, work, texts=after((5, 6, 7, 4)))
    assert [drafted.token_id for drafted in drafts][:4] == [5, 6, 7, 4]
    assert predicted(drafts) == [True] * 4 + [False]
    assert (passes, kv_length) == (1, 2 + 4)
    if name != "coupled":
        assert all(drafted.draft_probs[drafted.token_id] == 1 for drafted in drafts[:4])
    rest = replace(work, token_ids=(*PROMPT, 5, 6, 7, 4), position=6, count=1)
    assert drafts[4].token_id == drafts_of(None, name, rest)[0][0].token_id, "after that text"


def test_a_draft_of_the_model_s_own_may_lead_back_into_the_prediction() -> None:
    work = DraftTask(keep=0, token_ids=PROMPT, position=2, count=6)
    alone, _, passes = drafts_of(None, "coupled", work)
    first = alone[0].token_id
    others = [token_id for token_id in range(VOCABULARY) if token_id != first]
    prediction = PredictedText((*others, first, 0, 0), VOCABULARY)
    lost = TextDrafts((PredictionProposer(prediction, place=None),), VOCABULARY)
    drafts, _, passes = drafts_of(None, "coupled", work, texts=lost)
    assert [drafted.token_id for drafted in drafts][:3] == [first, 0, 0]
    assert predicted(drafts)[:3] == [False, True, True]
    assert passes < 6


def test_what_a_grammar_forbids_is_not_proposed() -> None:
    """It would be rejected, and so would all after it."""
    work = DraftTask(keep=0, token_ids=PROMPT, position=2, count=6)
    mask = Decided((None, 5, None, None, 7, 1))
    drafts, _, _ = drafts_of(mask, "coupled", work, texts=after((3, 5, 4, 6, 7, 1)))
    assert [drafted.token_id for drafted in drafts][:3] == [3, 5, 4]
    assert predicted(drafts)[:4] == [True, False, True, False]
    assert drafts[3].token_id in (3, 4)


class Told(Decided):
    """Tells which masks it was asked to have ready."""

    prepared: ClassVar[list[tuple[int, ...]]] = []

    def prepare(self, answers: Sequence[tuple[int, ...]]) -> None:
        self.prepared.extend(answers)


def test_the_masks_of_a_pass_are_begun_before_it() -> None:
    """All that the judge may ask for: of the text, and after each draft."""
    engine = ScriptedEngine(VOCABULARY, scripted_probs(1, VOCABULARY))
    rule = acceptance_rule(PRESETS["coupled"], 3, SeededRandom(3))
    judge = Judge(
        3, chain_steps([Proposal((4,)), Proposal((5,))]), rule, PayloadRule(rule, SeededRandom(0))
    )
    work = VerifyTask(0, (*PROMPT, 3, 4, 5), 3, 2, judge)
    mask = Told((3, None, 5, 6))
    rows = RowsAfter(LogitsProcessor(Processors(), PROMPT, mask), (), skipped=len(PROMPT))
    job = VerifyJob(engine.open(20), work, SamplingParams(), rows=rows)
    request = job.request()
    assert mask.prepared == [(3,), (3, 4), (3, 4, 5)]
    (logits,) = engine.forward([request])
    assert job.take(logits)


def test_without_processors_the_judge_sees_the_engine_s_own_rows() -> None:
    """No copy is made on the way."""
    logits = np.zeros((2, VOCABULARY), dtype=np.float32)
    seen: list[Any] = []

    class Looking(GumbelCouplingRule):
        def prepare(self, target: Any, position: int) -> Any:
            seen.append(target._logits)
            return super().prepare(target, position)

    rule = Looking(3)
    judge = Judge(2, chain_steps([Proposal((0,))]), rule, PayloadRule(rule, SeededRandom(0)))
    session = ScriptedEngine(VOCABULARY, scripted_probs(1, VOCABULARY)).open(20)
    job = VerifyJob(session, VerifyTask(0, (*PROMPT, 0), 2, 1, judge), SamplingParams())
    job.request()
    assert job.take(logits)
    assert seen
    assert all(np.shares_memory(row, logits) for row in seen)
