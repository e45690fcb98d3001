"""A draft that learns, through real services: texts stay the same while drafts change between
answers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tandem.backends.context_engine import ContextEngine
from tandem.backends.interface import Engine
from tandem.backends.torch.loading import load_engine
from tandem.core.errors import InvalidArgument
from tandem.core.probs import SamplingParams
from tandem.generation.client import Generated
from tandem.generation.request import GenerationRequest
from tandem.learning.tenant_folders import tenant_folders
from tandem.learning.versions import read_state
from tandem.services.drafter.learning import LearningPlace
from tandem.services.drafter.servicer import DrafterLimits, DrafterServicer
from tandem.specdec.messages import GenerationParams
from tandem.telemetry.metrics import Metrics, new_registry
from tandem.testing.scripted import ScriptedTokenizer, scripted_probs
from tests.services.scripted_suite import CONTEXT, VOCABULARY, Suite, draft_engine, scripted_suite
from tests.services.test_kept_prefixes import tiny_model

TOKENS = 24
QUESTIONS = 45
TOLD = 12


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
async def learning_suite(draft: Engine, folder: Path | None) -> AsyncIterator[Suite]:
    place = folder and LearningPlace(folder, 2**20, "tiny", idle_s=0.0)
    async with scripted_suite(target=target(draft), draft=draft, learning=place) as suite:
        yield suite


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
    servicer = suite.drafter.service
    assert isinstance(servicer, DrafterServicer)
    learner = servicer.learner
    assert learner is not None
    await suite.idle()
    await asyncio.wait_for(learner.settled(), 60)


def texts(answers: Sequence[Generated]) -> list[tuple[int, ...]]:
    return [tuple(answer.token_ids) for answer in answers]


def acceptance(answers: Sequence[Generated]) -> float:
    summaries = [answer.summary for answer in answers if answer.summary is not None]
    return sum(each.accepted for each in summaries) / sum(each.drafted for each in summaries)


@pytest.mark.parametrize("preset", ["coupled", "dssd"])
async def test_answers_stay_and_acceptance_rises(
    preset: str, draft: Engine, tmp_path: Path
) -> None:
    later = range(1000, 1000 + TOLD)
    async with learning_suite(draft, None) as suite:
        frozen = await ask(suite, later, preset)
        greedy = await ask(suite, later, "coupled", temperature=0.0)
    async with learning_suite(draft, tmp_path) as suite:
        for first in range(0, QUESTIONS, 15):
            await ask(suite, range(first, first + 15), preset)
        await learned(suite)
        adapted = await ask(suite, later, preset)
        assert texts(await ask(suite, later, "coupled", temperature=0.0)) == texts(greedy)
    assert acceptance(adapted) > acceptance(frozen) + 0.1
    if preset == "coupled":
        assert texts(adapted) == texts(frozen), "the target's own texts, whatever drafts"
    (folder,) = tenant_folders(tmp_path)
    state = read_state(folder)
    assert state is not None
    assert state.version is not None
    assert {path.stat().st_mode & 0o777 for path in folder.iterdir()} == {0o600}


async def test_keys_and_values_of_another_adapter_are_not_found(
    draft: Engine, tmp_path: Path
) -> None:
    long = "abcdefghijklmnop" * 16  # four blocks of keys and values

    async def hits(suite: Suite) -> float:
        params = GenerationParams(max_tokens=8, seed=1, ignore_eos=True)
        await suite.client.generate(GenerationRequest(long, "coupled", params))
        await suite.idle()
        labels = {"side": "device", "model_name": draft.model_name}
        told = suite.edge_metrics.registry.get_sample_value
        return told("tandem_prefix_hit_tokens_total", labels) or 0.0

    async with learning_suite(draft, tmp_path) as suite:
        first, again = await hits(suite), await hits(suite)
        assert first == 0 < again
        for begin in range(0, QUESTIONS, 15):
            await ask(suite, range(begin, begin + 15))
        await learned(suite)
        before = await hits(suite)
        (folder,) = tenant_folders(tmp_path)
        state = read_state(folder)
        assert state is not None
        assert state.used
        adapted = await hits(suite)
    assert before == again, "those of the draft without an adapter are not found with one"
    assert adapted > before, "its own are"


def test_a_draft_that_cannot_learn_is_refused_at_the_start(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match=r"learn: .*engine torch"):
        DrafterServicer(
            draft_engine(),
            ScriptedTokenizer(VOCABULARY),
            "127.0.0.1:1",
            DrafterLimits(),
            Metrics(new_registry(), "device"),
            learning=LearningPlace(tmp_path, 2**20, "scripted"),
        )
