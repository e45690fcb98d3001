"""A draft model whose context is shorter than the target's: longer texts are answered exactly, with
drafts that follow from the text's end, and the answer says so."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tandem.commands.ask_suite import ask
from tandem.core.errors import TandemError
from tandem.core.probs import SamplingParams
from tandem.core.prompt import Truncate
from tandem.generation.client import Generated
from tandem.generation.figures import answer_figures, figures_line
from tandem.generation.request import GenerationRequest
from tandem.services.drafter.servicer import DrafterLimits
from tandem.specdec.messages import GenerationParams
from tandem.suite.embedded import EmbeddedSuite
from tandem.suite.models import ModelPair
from tandem.testing.scripted import ScriptedEngine, ScriptedTokenizer, noisy_probs, scripted_probs
from tests.services.scripted_suite import summary_of

VOCABULARY = 64
CONTEXT = 512
SHORT = 80
PROMPT = tuple(token * 7 % VOCABULARY for token in range(150))
TIMEOUT_S = 60.0


def pair(draft_context: int = SHORT) -> ModelPair:
    """The target forgets all but the last tokens, so a draft that reads the end is as good."""
    target = scripted_probs(1, VOCABULARY, sharpness=9.0, order=2)
    other = scripted_probs(2, VOCABULARY, sharpness=9.0, order=2)
    draft = noisy_probs(target, other, 0.2)
    return ModelPair(
        draft=ScriptedEngine(VOCABULARY, draft, context_length=draft_context, copies=True),
        target=ScriptedEngine(VOCABULARY, target, context_length=CONTEXT, copies=True),
        tokenizer=ScriptedTokenizer(VOCABULARY),
    )


def asking(preset: str, prompt: tuple[int, ...] = PROMPT, **params: Any) -> GenerationRequest:
    wanted = GenerationParams(max_tokens=90, seed=3, ignore_eos=True)
    return GenerationRequest(prompt, params=replace(wanted, **params), preset=preset)


async def answered(suite: EmbeddedSuite, request: GenerationRequest) -> Generated:
    return await ask(suite.target, request, TIMEOUT_S)


async def test_a_prompt_longer_than_the_draft_s_context_is_drafted_for_exactly() -> None:
    cold = SamplingParams(temperature=0.0)
    async with EmbeddedSuite(pair()) as suite:
        warm_text = (await answered(suite, asking("ar"))).token_ids
        cold_text = (await answered(suite, asking("ar", sampling=cold))).token_ids
        for preset in ("coupled", "stream", "auto"):
            result = await answered(suite, asking(preset))
            assert result.token_ids == warm_text, preset
        for preset in ("dssd", "dsd", "mc-dsd"):
            result = await answered(suite, asking(preset, sampling=cold))
            assert result.token_ids == cold_text, preset
            assert summary_of(result).draft_context == SHORT
            assert summary_of(result).accepted > 30, preset


async def test_an_answer_that_grows_beyond_it_says_so_and_a_short_one_does_not() -> None:
    async with EmbeddedSuite(pair()) as suite:
        grown = await answered(suite, asking("coupled", PROMPT[:20]))
        alone = await answered(suite, asking("ar", PROMPT[:20]))
        short = await answered(suite, asking("coupled", PROMPT[:20], max_tokens=20))
    assert grown.token_ids == alone.token_ids
    lines = []
    for result in (grown, alone, short):
        lines.append(figures_line(answer_figures(result), summary_of(result).finish_reason))
    says = f"drafted after the text's end: the draft model reads {SHORT} tokens"
    assert [says in line for line in lines] == [True, False, False]


async def test_a_session_takes_no_more_of_the_budget_than_the_draft_s_context() -> None:
    models = pair()
    limits = DrafterLimits(kv_budget_bytes=SHORT * models.draft.kv_bytes_per_token)
    async with EmbeddedSuite(models, drafter_limits=limits) as suite:
        result = await answered(suite, asking("coupled"))
    assert len(result.token_ids) == 90
    assert models.draft.sessions_open == 0


async def test_the_target_s_context_is_the_limit() -> None:
    async with EmbeddedSuite(pair()) as suite:
        longer = tuple(token % VOCABULARY for token in range(CONTEXT + 1))
        with pytest.raises(TandemError, match=f"{CONTEXT + 1} tokens; the context holds {CONTEXT}"):
            await answered(suite, asking("coupled", longer))
        most = await answered(suite, asking("coupled", longer[: CONTEXT - 10]))
        assert len(most.token_ids) == 10
        cut = replace(asking("coupled", longer), truncate=Truncate.OLDEST)
        assert len((await answered(suite, cut)).token_ids) == 90
