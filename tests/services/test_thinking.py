"""Models that think, through the whole suite: a budget is as exact as every other processor, on
both ends and by every preset, and what is thinking is told."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import cycle
from typing import Any

import numpy as np
import pytest

from tandem.core.distribution import LogitsDistribution
from tandem.core.probs import SamplingParams, probs_from_logits
from tandem.core.processors import Grammar, GrammarKind, LogitsProcessor, Processors, Thinking
from tandem.core.prompt import Turn
from tandem.core.thinking import with_thinking
from tandem.generation.request import GenerationRequest
from tandem.net.status import Rejected
from tandem.netem.tcp_emulator import TcpLinkEmulator
from tandem.specdec.presets import PRESETS
from tandem.testing.scripted import ScriptedEngine, noisy_probs, scripted_probs
from tandem.text.thinking import ThinkingStart
from tandem.text.tokenizer import TextTokenizer
from tests.services.scripted_engines import speaking
from tests.services.scripted_suite import answer_over, emulated, scripted_suite, summary_of
from tests.services.test_processors import INVARIANT, TELLING
from tests.unit.text.family_tokenizers import deepseek_r1, harmony, qwen3

R1 = deepseek_r1()
SIZE = R1.vocabulary_size
TURNS = (Turn("user", "why?"),)
PROMPT = tuple(R1.chat([{"role": "user", "content": "why?"}]))
(END,) = R1.mark_ids("</think>")
PROBS = scripted_probs(1, SIZE, sharpness=9.0)
SAMPLING = SamplingParams(0.9)
LENGTH = 24


def thinker(noise: float = 0.0) -> ScriptedEngine:
    probs = noisy_probs(PROBS, scripted_probs(2, SIZE, sharpness=9.0), noise)
    return ScriptedEngine(SIZE, probs, context_length=512)


def asking(preset: str, **more: Any) -> GenerationRequest:
    own: dict[str, Any] = {"sampling": SAMPLING, "thinking_token_budget": 12}
    own |= {"max_tokens": LENGTH, "seed": 5, **more}
    return GenerationRequest(TURNS, preset).with_fields(**own)


def logits_after(answer: tuple[int, ...]) -> np.ndarray:
    """What the target gives under the budget: one-hot where it is spent."""
    logits = np.log(PROBS((*PROMPT, *answer)))
    processors = Processors(thinking=Thinking((END,), budget=12))
    mask = with_thinking(processors.thinking, None, vocabulary_size=SIZE, eos_token_ids=frozenset())
    return LogitsProcessor(processors, PROMPT, mask).processed(logits, answer)


def own_text(seed: int) -> tuple[int, ...]:
    answer: tuple[int, ...] = ()
    for _ in range(LENGTH):
        position = len(PROMPT) + len(answer)
        taken = LogitsDistribution(logits_after(answer), SAMPLING).coupled_token(seed, position)
        answer = (*answer, taken)
    return answer


async def test_under_coupling_the_text_is_that_of_the_target_under_the_budget() -> None:
    texts = {seed: own_text(seed) for seed in (1, 2)}
    async with scripted_suite(target=thinker(), draft=thinker(0.3), tokenizer=R1) as suite:
        for preset, seed in zip((*INVARIANT, "ar"), cycle(texts), strict=False):
            answer = await suite.client.generate(asking(preset, seed=seed))
            assert END in answer.token_ids[:13]
            if preset != "ar":
                assert tuple(answer.token_ids) == texts[seed], preset


async def test_every_exact_preset_samples_from_the_target_under_the_budget() -> None:
    async with scripted_suite(target=thinker(), draft=thinker(0.3), tokenizer=R1) as suite:
        for preset in TELLING:
            told = await suite.client.generate(asking(preset, logprobs=True))
            assert END in told.token_ids[:13], preset
            for index, token in enumerate(told.token_ids):
                probs = probs_from_logits(logits_after(tuple(told.token_ids[:index])), SAMPLING)
                assert told.logprobs[index] == pytest.approx(math.log(probs[token]), abs=1e-4)


async def test_edge_and_cloud_agree_where_the_thinking_is_ended() -> None:
    """The same model on both ends: a draft that did not know of the budget would be rejected."""
    async with scripted_suite(target=thinker(), draft=thinker(), tokenizer=R1) as suite:
        for name, preset in PRESETS.items():
            answer = await suite.client.generate(asking(name))
            assert answer.token_ids.index(END) <= 12, name
            exact = not preset.truncation.cuts and preset.uplink_precision == "float32"
            if preset.drafts and exact and preset.schedule.stop_and_wait:
                assert summary_of(answer).accepted == summary_of(answer).drafted, name


@pytest.mark.parametrize("preset", ["coupled", "stream", "ar"])
async def test_a_budget_outlasts_a_lost_link(preset: str) -> None:
    """The cloud that takes over counts the thinking in the committed text."""
    links: list[TcpLinkEmulator] = []
    way = lambda address: emulated(address, links, 0.005)  # noqa: E731
    suite_of = scripted_suite(target=thinker(), draft=thinker(0.3), tokenizer=R1, path=way)
    async with suite_of as suite:
        asked = asking(preset, thinking_token_budget=20)
        answer = await answer_over(links[0], suite.client, asked, every=4)
    assert answer.token_ids.index(END) <= 20
    assert summary_of(answer).resumes > 0


THOUGHT = "<think>\nso it is</think>\n\nyes"


@pytest.mark.parametrize("preset", ["ar", "coupled", "auto"])
@pytest.mark.parametrize(
    ("budget", "text", "thinking"),
    [
        (-1, THOUGHT, 11),
        (100, THOUGHT, 11),
        (3, "<think>\nso</think>it is</think>\n\nyes", 5),
        (0, "<think></think>so it is</think>\n\nyes", 2),
    ],
)
async def test_thinking_ends_where_its_budget_does(
    preset: str, budget: int, text: str, thinking: int
) -> None:
    tokenizer = qwen3()
    prompt = tokenizer.chat([{"role": "user", "content": "why?"}])
    draft, target = speaking(tokenizer, len(prompt), THOUGHT)
    sampling = SamplingParams(0)
    async with scripted_suite(draft=draft, target=target, tokenizer=tokenizer) as suite:
        asked = asking(preset, thinking_token_budget=budget, sampling=sampling)
        answer = await suite.client.generate(asked)
    assert answer.text == text
    assert (answer.family, answer.thinking_start) == ("qwen3", ThinkingStart.POSSIBLE)
    assert summary_of(answer).reasoning_tokens == thinking


@pytest.mark.parametrize("preset", ["ar", "coupled"])
@pytest.mark.parametrize(
    ("make", "said", "text"),
    [
        (qwen3, "<think>\nhm</think>b?", "<think>\nhm</think>b"),
        (deepseek_r1, "hm</think>b?", "hm</think>b"),
        (qwen3, "bb", "b"),
        (
            harmony,
            "<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>final<|message|>b",
            "<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>final<|message|>b",
        ),
    ],
)
async def test_a_grammar_holds_for_the_answer_and_not_for_its_thinking(
    make: Callable[[], TextTokenizer], said: str, text: str, preset: str
) -> None:
    tokenizer = make()
    prompt = tokenizer.chat([{"role": "user", "content": "why?"}])
    draft, target = speaking(tokenizer, len(prompt), said)
    grammar = Processors(grammar=Grammar(GrammarKind.REGEX, "a|b"))
    async with scripted_suite(draft=draft, target=target, tokenizer=tokenizer) as suite:
        asked = asking(
            preset,
            thinking_token_budget=-1,
            sampling=SamplingParams(0),
            processors=grammar,
            max_tokens=100,
        )
        answer = await suite.client.generate(asked)
    assert answer.text == text


async def test_a_budget_for_a_model_that_does_not_think_is_refused() -> None:
    async with scripted_suite() as suite:
        with pytest.raises(Rejected, match="thinking_token_budget: this model does not think"):
            await suite.client.generate(asking("coupled"))
