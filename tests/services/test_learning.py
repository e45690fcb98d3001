"""A draft that learns, through real services: texts stay the same while drafts change between
answers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tandem.backends.interface import Engine
from tandem.backends.torch.loading import load_engine
from tandem.core.probs import SamplingParams
from tandem.generation.client import Generated
from tandem.generation.request import GenerationRequest
from tandem.learning import schedule
from tandem.learning.drafter import DraftLearning
from tandem.learning.replay_buffer import ReplayBuffer
from tandem.learning.store import TEXTS, read_state, tenant_folders
from tandem.learning.torch import training
from tandem.specdec.messages import GenerationParams
from tandem.telemetry.metrics import Metrics
from tandem.testing.context_engine import ContextEngine
from tandem.testing.scripted import scripted_probs
from tests.services.scripted_suite import CONTEXT, VOCABULARY, Suite, sample, scripted_suite
from tests.services.scripted_suite import Path as Link
from tests.services.test_kept_prefixes import tiny_model

TOKENS = 24
QUESTIONS = 36
TOLD = 6
LONG_PROMPT = "abcdefghijklmnop" * 16
"""Four blocks of keys and values."""


@pytest.fixture(scope="module")
def draft(tmp_path_factory: pytest.TempPathFactory) -> Engine:
    return load_engine(tiny_model(tmp_path_factory.mktemp("draft")), drafts=True)


def target(draft: Engine) -> Engine:
    """Likes the same few tokens whatever came before, which a draft can learn."""
    return ContextEngine(
        VOCABULARY,
        scripted_probs(4, VOCABULARY, order=0, sharpness=25.0),
        model_name="target",
        vocabulary_hash=draft.vocabulary_hash,
        context_length=CONTEXT,
    )


@asynccontextmanager
async def learning_suite(
    draft: Engine, folder: Path | None, top_logprobs: int = 0, path: Link | None = None
) -> AsyncIterator[Suite]:
    """A suite whose drafter learns in `folder`; None: not at all."""

    def hook(metrics: Metrics) -> DraftLearning | None:
        return None if folder is None else learning(draft, metrics, folder, top_logprobs)

    async with scripted_suite(target=target(draft), draft=draft, hook=hook, path=path) as suite:
        yield suite


def learning(draft: Engine, metrics: Metrics, folder: Path, top_logprobs: int = 0) -> DraftLearning:
    return DraftLearning(
        *(draft, metrics, folder),
        max_bytes=2**20,
        model_hash="tiny",
        idle_s=0.0,
        top_logprobs=top_logprobs,
    )


async def ask(
    suite: Suite, numbers: Sequence[int], preset: str = "coupled", temperature: float = 1.0
) -> list[Generated]:
    """Answers to questions that are all different."""

    async def one(number: int) -> Generated:
        params = GenerationParams(
            sampling=SamplingParams(temperature=temperature),
            max_tokens=TOKENS,
            seed=number,
            ignore_eos=True,
        )
        prompt = f"question {number * number} of {number}"
        return await suite.client.generate(GenerationRequest(prompt, preset, params))

    return list(await asyncio.gather(*map(one, numbers)))


async def learned(suite: Suite) -> None:
    assert isinstance(suite.hook, DraftLearning)
    await suite.idle()
    await asyncio.wait_for(suite.hook.settled(), 60)


def texts(answers: Sequence[Generated]) -> list[tuple[int, ...]]:
    return [tuple(answer.token_ids) for answer in answers]


def acceptance(answers: Sequence[Generated]) -> float:
    summaries = [answer.summary for answer in answers if answer.summary is not None]
    return sum(each.accepted for each in summaries) / sum(each.drafted for each in summaries)


async def prefix_hits(suite: Suite, draft: Engine) -> float:
    """Tokens found in the prefix cache so far, after one more answer to a long prompt."""
    params = GenerationParams(max_tokens=8, seed=1, ignore_eos=True)
    await suite.client.generate(GenerationRequest(LONG_PROMPT, "coupled", params))
    await suite.idle()
    name = "tandem_prefix_hit_tokens_total"
    return sample(suite.edge_metrics, name, model_name=draft.model_name)


async def test_answers_stay_and_acceptance_rises(
    draft: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A tiny model that knows nothing learns with larger steps, and more of them.
    monkeypatch.setattr(training, "LEARNING_RATE", 4e-3)
    monkeypatch.setattr(training, "BATCH_TOKENS", 32)
    monkeypatch.setattr(schedule, "EPOCHS", 4)
    later = range(1000, 1000 + TOLD)
    async with learning_suite(draft, None) as suite:
        frozen = await ask(suite, later)
        greedy = await ask(suite, later, temperature=0.0)
    async with learning_suite(draft, tmp_path) as suite:
        first, again = [await prefix_hits(suite, draft) for _ in range(2)]
        for begin in range(0, QUESTIONS, 12):
            await ask(suite, range(begin, begin + 12), "dssd" if begin else "coupled")
        await learned(suite)
        (folder,) = tenant_folders(tmp_path)
        state = read_state(folder)
        assert state is not None
        assert state.used
        kept = ReplayBuffer(folder / TEXTS, 2**20, draft.vocabulary_hash, VOCABULARY).read()
        told = [text for text in kept if text.target_probs]
        assert len(told) > QUESTIONS / 2, "rejections tell of the target's distribution"
        assert {text.seed is None for text in told} == {True}, "no noise couples these"
        for text in told:
            for index, known in text.target_probs.items():
                place = np.flatnonzero(known.ids == text.token_ids[index])
                assert (known.residual[place] > 0).all(), "what took the rejected draft's place"
        assert {path.stat().st_mode & 0o777 for path in folder.iterdir()} == {0o600}

        before, adapted_hits = [await prefix_hits(suite, draft) for _ in range(2)]
        adapted = await ask(suite, later)
        assert texts(await ask(suite, later, temperature=0.0)) == texts(greedy)
    assert texts(adapted) == texts(frozen), "the target's own texts, whatever drafts"
    assert acceptance(adapted) > acceptance(frozen) + 0.1
    assert first == 0 < again
    assert before == again, "keys and values without an adapter are not found with one"
    assert adapted_hits > before, "those with the same adapter are"


async def test_an_answer_that_is_not_to_be_kept_is_not_learned_from(
    draft: Engine, tmp_path: Path
) -> None:
    params = GenerationParams(max_tokens=TOKENS, seed=1, ignore_eos=True)
    kept, not_kept = (
        GenerationRequest("a question", "coupled", params, no_memory=no_memory)
        for no_memory in (False, True)
    )
    async with learning_suite(draft, tmp_path) as suite:
        await suite.client.generate(not_kept)
        await learned(suite)
        assert kept_texts(tmp_path, draft) == 0
        await suite.client.generate(kept)
        await learned(suite)
        assert kept_texts(tmp_path, draft) == 1


def kept_texts(folder: Path, draft: Engine) -> int:
    stores = (
        ReplayBuffer(tenant / TEXTS, 2**20, draft.vocabulary_hash, VOCABULARY)
        for tenant in tenant_folders(folder)
    )
    return sum(len(store.read()) for store in stores)


async def test_what_the_cloud_tells_of_each_token_is_learned_from_and_not_handed_on(
    draft: Engine, tmp_path: Path
) -> None:
    asked = GenerationParams(max_tokens=TOKENS, seed=1, ignore_eos=True)
    greedy = replace(asked, sampling=SamplingParams(temperature=0.0))
    wanted = replace(asked, logprobs=True, top_logprobs=2)
    async with learning_suite(draft, None) as suite:
        plain = await suite.client.generate(GenerationRequest("a question", "coupled", asked))
    async with learning_suite(draft, tmp_path, top_logprobs=3) as suite:
        answers = [
            await suite.client.generate(GenerationRequest("a question", preset, params))
            for preset, params in (
                *(("coupled", asked), ("dssd", asked)),
                *(("coupled", greedy), ("coupled", wanted)),
            )
        ]
        await learned(suite)
    told, rejecting, _, likely = answers
    assert texts([told, likely]) == texts([plain, plain])
    assert not told.logprobs
    assert not rejecting.logprobs
    assert not told.token_texts
    assert len(likely.logprobs) == TOKENS
    assert {len(top) for top in likely.top_logprobs} == {2}
    (folder,) = tenant_folders(tmp_path)
    kept = ReplayBuffer(folder / TEXTS, 2**20, draft.vocabulary_hash, VOCABULARY).read()
    assert [text.has_all_probs for text in kept] == [True, True, False, True]
    sizes = [{len(known.ids) for known in text.target_probs.values()} for text in kept]
    assert sizes == [{3}, {3}, set(), {2}]
    said = np.asarray(scripted_probs(4, VOCABULARY, order=0, sharpness=25.0)(()))
    for known in kept[0].target_probs.values():
        assert known.ids.tolist() == np.argsort(-said)[:3].tolist()
        assert known.probs == pytest.approx(said[known.ids], rel=1e-4)


async def test_a_caller_whose_texts_are_not_kept_costs_the_link_nothing_more(
    draft: Engine, tmp_path: Path
) -> None:
    params = GenerationParams(max_tokens=TOKENS, seed=1, ignore_eos=True)
    async with learning_suite(draft, tmp_path, top_logprobs=8) as suite:
        answers = [
            await suite.client.generate(
                GenerationRequest("a question", "coupled", params, no_memory=no_memory)
            )
            for no_memory in (False, True)
        ]
    down = [answer.summary.downlink_bytes for answer in answers if answer.summary is not None]
    assert down[0] > down[1] + 8 * 8 * TOKENS / 2
