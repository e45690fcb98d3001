"""Decoding after several documents: one pass a token, the mixture's distribution, absolute
rollback."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest

from tandem.backends.interface import ForwardRequest, Logits, Session, never
from tandem.core.errors import InvalidArgument
from tandem.core.probs import Array, SamplingParams, probs_from_logits
from tandem.core.processors import LogitsProcessor, Mask, Processors
from tandem.core.randomness import SeededRandom
from tandem.runtime.engine_thread import EngineThread
from tandem.runtime.session_jobs import VerifyJob
from tandem.specdec.judge import Judge, chain_steps
from tandem.specdec.rules import GumbelCouplingRule, PayloadRule, Proposal
from tandem.specdec.verify_task import VerifyTask
from tandem.testing.scripted import ScriptedEngine, scripted_probs
from tandem.two_sided.decoding.document_jobs import (
    DecodeJob,
    DocumentGroup,
    group_kv_tokens,
)
from tandem.two_sided.protocol.decoder_machine import DecodeTask, LocalDraft, LocalMixture
from tandem.two_sided.protocol.mixture import document_weights
from tests.unit.backends.test_cross_vocabulary import expected, feed, spelt, translated_engine
from tests.unit.two_sided.document_checks import DOCUMENTS, PROMPT, ROOM, engine_thread

VOCABULARY = 32
RELEVANCES = (0.3, -1.0, 1.2)
WEIGHTS = document_weights(RELEVANCES)
SHARES = LocalMixture.of(RELEVANCES)
PROBS = scripted_probs(3, VOCABULARY, order=20)
WARM = SamplingParams()


class Batched(ScriptedEngine):
    """A scripted engine that tells how many sequences each pass had."""

    def __init__(self, context_length: int = 64) -> None:
        super().__init__(VOCABULARY, PROBS, context_length=context_length)
        self.batches: list[int] = []

    def forward(
        self, batch: Sequence[ForwardRequest], cancelled: Callable[[], bool] = never
    ) -> list[Logits]:
        self.batches.append(len(batch))
        return super().forward(batch, cancelled)


def documents_in(engine: ScriptedEngine, documents: Sequence[tuple[int, ...]]) -> list[Session]:
    sessions: list[Session] = [engine.open(len(document)) for document in documents]
    for session, document in zip(sessions, documents, strict=True):
        ScriptedEngine.forward(engine, [ForwardRequest(session, document, 0)])
    return sessions


def mixture_after(documents: Sequence[tuple[int, ...]], text: tuple[int, ...]) -> Array:
    """By the definition: the sum of shares times distributions."""
    found: Array = np.zeros(VOCABULARY)
    for share, document in zip(WEIGHTS, documents, strict=True):
        found += share * np.asarray(PROBS(document + text))
    return found


def likeliest(probs: Array, position: int) -> tuple[int, Array | None]:
    return int(probs.argmax()), probs


async def decoded(
    thread: EngineThread,
    group: DocumentGroup,
    work: DecodeTask,
    sampling: SamplingParams = WARM,
    processor: LogitsProcessor | None = None,
) -> list[LocalDraft]:
    """All drafts of a job, as they were handed over."""
    drafts: list[LocalDraft] = []

    def hear(draft: LocalDraft, took_s: float) -> None:
        assert took_s >= 0
        drafts.append(draft)

    job = DecodeJob(
        group, work=work, sampling=sampling, draw=likeliest, on_draft=hear, processor=processor
    )
    done = await thread.submit(job).future
    last, took_s = done.value
    assert last is not None
    hear(last, took_s)
    return drafts


async def test_every_draft_is_drawn_from_the_mixture_in_one_pass() -> None:
    engine = Batched()
    group = DocumentGroup(engine, documents_in(engine, DOCUMENTS), ROOM)
    async with engine_thread(engine) as thread:
        drafts = await decoded(thread, group, DecodeTask(0, PROMPT, 3, 4, SHARES))
    assert engine.batches == [3, 3, 3, 3]
    text: tuple[int, ...] = PROMPT
    for number, draft in enumerate(drafts):
        wanted = mixture_after(DOCUMENTS, text)
        assert draft.probs is not None
        assert np.abs(draft.probs - wanted).max() < 1e-6
        assert draft.token_id == wanted.argmax()
        assert draft.kept == len(PROMPT) + number
        text += (draft.token_id,)


PROCESSORS = Processors(
    logit_bias=((3, 2.5), (9, -4.0)), frequency_penalty=2.0, banned_token_ids=(0, 1, 30)
)


def processed_mixture(
    text: tuple[int, ...], temperature: float, repetition_penalty: float = 1.0
) -> tuple[Array, float]:
    """By the definition: the documents' distributions, mixed, then times the processors' factors;
    and the mass that is left."""
    processor = LogitsProcessor(replace(PROCESSORS, repetition_penalty=repetition_penalty), PROMPT)
    answer, mixed = text[len(PROMPT) :], np.zeros(VOCABULARY)
    for share, document in zip(WEIGHTS, DOCUMENTS, strict=True):
        logits = processor.repeated(np.log(np.asarray(PROBS(document + text))), answer)
        mixed += share * probs_from_logits(logits, SamplingParams(temperature))
    zeros = np.zeros(VOCABULARY, dtype=np.float32)
    mixed *= np.exp(processor.weighted(zeros, answer).astype(np.float64) / temperature)
    return mixed / mixed.sum(), float(np.log(mixed.sum()))


@pytest.mark.parametrize(("temperature", "penalty"), [(1.0, 1.0), (0.7, 1.0), (1.0, 1.4)])
async def test_processors_act_on_the_mixture_of_the_documents(
    temperature: float, penalty: float
) -> None:
    engine = Batched()
    group = DocumentGroup(engine, documents_in(engine, DOCUMENTS), ROOM)
    own = replace(PROCESSORS, repetition_penalty=penalty)
    work, sampling = DecodeTask(0, PROMPT, 3, 6, SHARES), SamplingParams(temperature)
    async with engine_thread(engine) as thread:
        drafts = await decoded(thread, group, work, sampling, LogitsProcessor(own, PROMPT))
    text: tuple[int, ...] = PROMPT
    for draft in drafts:
        wanted, log_left = processed_mixture(text, temperature, penalty)
        assert draft.probs is not None
        assert np.abs(draft.probs - wanted).max() < 1e-6
        assert draft.log_left == pytest.approx(log_left, abs=1e-5)
        text += (draft.token_id,)
    assert len(set(text[3:])) > 1, "the penalty of one token counts for the next"


async def test_one_document_s_text_is_that_of_the_processed_model() -> None:
    """Bit for bit, cuts included, as where there is no second side."""
    engine = Batched()
    group = DocumentGroup(engine, [], ROOM)
    sampling = SamplingParams(0.8, top_k=9, min_p=0.01)
    processor = LogitsProcessor(PROCESSORS, PROMPT)
    work = DecodeTask(0, PROMPT, 3, 4, LocalMixture.of(()))
    async with engine_thread(engine) as thread:
        drafts = await decoded(thread, group, work, sampling, processor)
    text: tuple[int, ...] = PROMPT
    for draft in drafts:
        logits = np.log(np.asarray(PROBS(text))).astype(np.float32)
        wanted = probs_from_logits(processor.processed(logits, text[3:]), sampling)
        assert isinstance(draft.probs, np.ndarray)
        assert np.array_equal(draft.probs, wanted)
        text += (draft.token_id,)


class FiveThenAnother:
    """A grammar of answers of two tokens, the first of which is 5."""

    vocabulary_size = VOCABULARY

    def allowed(self, answer: tuple[int, ...]) -> Mask | None:
        if len(answer) > 1:
            return None
        mask = np.zeros(VOCABULARY, dtype=np.bool_)
        mask[[5, 6] if answer else 5] = True
        return mask

    def prepare(self, answers: Sequence[tuple[int, ...]]) -> None:
        pass

    def forced(self, answer: tuple[int, ...]) -> int | None:
        return None if answer else 5


async def test_where_no_token_is_left_the_work_ends() -> None:
    engine = Batched()
    group = DocumentGroup(engine, documents_in(engine, DOCUMENTS), ROOM)
    processor = LogitsProcessor(Processors(), PROMPT, FiveThenAnother())
    drafts: list[LocalDraft] = []
    async with engine_thread(engine) as thread:
        work = DecodeTask(0, PROMPT, 3, 4, SHARES)
        job = DecodeJob(
            group,
            work=work,
            sampling=SamplingParams(),
            draw=likeliest,
            on_draft=lambda draft, took_s: drafts.append(draft),
            processor=processor,
        )
        last, _ = (await thread.submit(job).future).value
    assert last is None
    assert len(drafts) == 2
    assert drafts[0].token_id == 5


async def test_all_sequences_go_back_together() -> None:
    engine = Batched()
    group = DocumentGroup(engine, documents_in(engine, DOCUMENTS), ROOM)
    async with engine_thread(engine) as thread:
        await decoded(thread, group, DecodeTask(0, PROMPT, 3, 4, SHARES))
        (draft,) = await decoded(thread, group, DecodeTask(2, (PROMPT[2], 9), 4, 1, SHARES))
    assert draft.token_id == mixture_after(DOCUMENTS, (*PROMPT, 9)).argmax()
    assert group.length == 4
    group.rollback(1)
    assert group.length == 1
    with pytest.raises(InvalidArgument, match="length: 2 is outside"):
        group.rollback(2)


async def test_two_requests_share_a_pass_and_their_documents() -> None:
    engine = Batched()
    sessions = documents_in(engine, DOCUMENTS)
    groups = [DocumentGroup(engine, sessions, ROOM) for _ in range(2)]
    async with engine_thread(engine) as thread:
        await decoded(thread, groups[0], DecodeTask(0, PROMPT, 3, 1, SHARES))
        works = [DecodeTask(3, (7,), 4, 2, SHARES), DecodeTask(0, (*PROMPT, 7), 4, 2, SHARES)]
        engine.batches.clear()
        jobs = [
            DecodeJob(
                group,
                work=work,
                sampling=SamplingParams(),
                draw=likeliest,
                on_draft=lambda draft, took_s: None,
            )
            for group, work in zip(groups, works, strict=True)
        ]
        both_are_there = threading.Event()
        waiting = thread.call(lambda: both_are_there.wait(60))
        handles = [thread.submit(job) for job in jobs]
        both_are_there.set()
        first, second = [(await handle.future).value[0] for handle in handles]
        await waiting
    assert first is not None
    assert second is not None
    assert first.token_id == second.token_id
    assert engine.batches == [6, 6]


async def test_a_long_prompt_lets_others_have_their_turn() -> None:
    """Each sequence's beginning goes in chunks of its own, between the passes of others."""
    engine = Batched(context_length=1024)
    group = DocumentGroup(engine, documents_in(engine, DOCUMENTS), 600)
    prompt = tuple(number % VOCABULARY for number in range(520))
    alone = engine.open(ROOM)
    rule = GumbelCouplingRule(1)
    judge = Judge(2, chain_steps([Proposal((3,))]), rule, PayloadRule(rule, SeededRandom(0)))
    engine.batches.clear()
    async with engine_thread(engine) as thread:
        work = DecodeTask(0, prompt, 520, 3, SHARES)
        drafting = asyncio.create_task(decoded(thread, group, work))
        for _ in range(4):  # until the passes of the prompt have begun
            task = VerifyTask(0, (1, 2, 3), 2, 1, judge)
            await thread.submit(VerifyJob(alone, task, SamplingParams())).future
        drafts = await drafting
    assert max(engine.batches) <= 4
    assert drafts[0].token_id == mixture_after(DOCUMENTS, prompt).argmax()
    assert [draft.kept for draft in drafts] == [520, 521, 522]


async def test_a_pass_that_failed_is_repeated_from_where_all_sequences_were() -> None:
    """An engine may have fed some of them before it failed."""
    engine = Batched()
    group = DocumentGroup(engine, documents_in(engine, DOCUMENTS), ROOM)
    job = DecodeJob(
        group,
        work=DecodeTask(0, PROMPT, 3, 2, SHARES),
        sampling=WARM,
        draw=likeliest,
        on_draft=lambda draft, took_s: None,
    )
    engine.forward(job.requests()[:1])
    assert not job.take_all(engine.forward(job.requests()))
    engine.forward(job.requests()[:1])
    assert job.take_all(engine.forward(job.requests()))
    draft, _ = job.result()
    assert draft is not None
    assert draft.kept == group.length == 4
    first = int(mixture_after(DOCUMENTS, PROMPT).argmax())
    assert draft.token_id == mixture_after(DOCUMENTS, (*PROMPT, first)).argmax()


def test_closing_a_group_keeps_the_documents() -> None:
    engine = Batched()
    sessions = documents_in(engine, DOCUMENTS)
    before = engine.kv_bytes_in_use
    group = DocumentGroup(engine, sessions, ROOM)
    held = engine.kv_bytes_in_use - before
    assert held == group_kv_tokens(len(DOCUMENTS), ROOM) * engine.kv_bytes_per_token
    group.close()
    group.close()
    assert engine.kv_bytes_in_use == before


def test_a_group_that_cannot_be_opened_frees_what_it_had() -> None:
    engine = Batched()
    sessions = documents_in(engine, DOCUMENTS)
    before = engine.kv_bytes_in_use
    with pytest.raises(InvalidArgument, match="capacity"):
        DocumentGroup(engine, sessions, engine.context_length - 4)  # too much for the first only
    assert engine.kv_bytes_in_use == before


def test_a_draft_model_with_another_tokenizer_reads_documents_too() -> None:
    engine = translated_engine()
    document, prompt = (3, 202, 9, 205), (4, 201, 7)
    session = engine.open(len(document))
    feed(engine, session, document, 0)
    group = DocumentGroup(engine, [session, session], ROOM)
    for some in (prompt[:2], prompt[2:]):
        rows = engine.forward(group.requests(some))
    wanted = expected(engine, spelt(engine, document + prompt))
    assert all(np.array_equal(row[0], wanted) for row in rows)
    group.rollback(1)
    (row, _) = engine.forward(group.requests((206,)))
    assert np.array_equal(row[0], expected(engine, spelt(engine, (*document, 4, 206))))
