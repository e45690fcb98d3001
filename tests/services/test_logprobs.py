"""Log-probabilities of an answer's tokens, and of its prompt's: those of the distributions that
they were sampled from, and the target's own, whatever becomes of the stream meanwhile."""

from __future__ import annotations

import math
from typing import Any

import grpc
import numpy as np
import pytest

from tandem.core.probs import SamplingParams, probs_from_logits
from tandem.core.processors import Processors
from tandem.generation.client import Generated
from tandem.generation.request import GenerationRequest
from tandem.net.status import Rejected
from tandem.netem.tcp_emulator import TcpLinkEmulator
from tandem.services.drafter.servicer import DrafterLimits
from tandem.specdec.liveness import LivenessTimes, LostCloud
from tandem.specdec.messages import GenerationParams
from tandem.specdec.presets import PRESETS
from tandem.testing.scripted import ScriptedEngine, scripted_probs
from tests.services.scripted_suite import CONTEXT, VOCABULARY, emulated, scripted_suite, summary_of

PROBS = scripted_probs(1, VOCABULARY, sharpness=9.0)
"""The scripted target's."""

SAMPLING = SamplingParams(0.8, 0, 0.95)
TELLING = [name for name in PRESETS if name != "picospec-top-k"]

TOKENS = 24


def expected(prompt: str, token_ids: list[int]) -> list[float]:
    context = tuple(ord(letter) % VOCABULARY for letter in prompt)
    found = []
    for token in token_ids:
        probs = probs_from_logits(np.log(PROBS(context)), SAMPLING)
        found.append(math.log(probs[token]))
        context = (*context, token)
    return found


def asking(preset: str, **more: Any) -> GenerationRequest:
    params = GenerationParams(sampling=SAMPLING, max_tokens=TOKENS, seed=3, logprobs=True)
    return GenerationRequest("tell", preset, params).with_fields(**more)


async def test_every_exact_preset_tells_them_and_changes_no_text() -> None:
    assert set(TELLING) >= {name for name, preset in PRESETS.items() if not preset.lossy}
    async with scripted_suite() as suite:
        for preset in TELLING:
            told = await suite.client.generate(asking(preset))
            assert told.token_ids, preset
            assert told.logprobs == pytest.approx(expected("tell", told.token_ids), abs=1e-4)
            assert "".join(told.token_texts) == told.text
            plain = GenerationRequest(
                "tell", preset, GenerationParams(sampling=SAMPLING, max_tokens=TOKENS, seed=3)
            )
            untold = await suite.client.generate(plain)
            assert untold.token_ids == told.token_ids
            assert untold.logprobs == []


@pytest.mark.parametrize(
    "preset", ["ar", "dsd", "mc-dsd", "coupled", "stream", "dssd", "dssd-full", "fsd", "picospec"]
)
async def test_the_likeliest_tokens_go_with_them_and_change_no_text(preset: str) -> None:
    async with scripted_suite() as suite:
        told = await suite.client.generate(asking(preset, top_logprobs=3))
    assert told.logprobs == pytest.approx(expected("tell", told.token_ids), abs=1e-4)
    context = tuple(ord(letter) % VOCABULARY for letter in "tell")
    for token, top in zip(told.token_ids, told.top_logprobs, strict=True):
        probs = probs_from_logits(np.log(PROBS(context)), SAMPLING)
        ids = [token_id for token_id in np.argsort(-probs, kind="stable")[:3] if probs[token_id]]
        assert [token_id for token_id, _, _ in top] == ids
        assert [text for _, text, _ in top] == [f"<{token_id}>" for token_id in ids]
        likely = [logprob for _, _, logprob in top]
        assert likely == pytest.approx(np.log(probs[ids]).tolist(), abs=1e-4)
        context = (*context, token)


async def test_a_preset_that_draws_at_the_edge_from_something_else_says_so() -> None:
    async with scripted_suite() as suite:
        for preset in set(PRESETS) - set(TELLING):
            with pytest.raises(Rejected, match=f"logprobs: the preset '{preset}'") as refused:
                await suite.client.generate(asking(preset))
            assert refused.value.code is grpc.StatusCode.INVALID_ARGUMENT


async def test_a_lost_cloud_leaves_tokens_without_them() -> None:
    """Cut for good in the middle: what the edge adds alone, no distribution of the target's
    made."""
    links: list[TcpLinkEmulator] = []
    way = lambda address: emulated(address, links, 0.005)  # noqa: E731
    limits = DrafterLimits(liveness=LivenessTimes(0.1, 0.3, 0.6))
    request = asking("dsd", lost_cloud=LostCloud.EDGE, ignore_eos=True)
    async with scripted_suite(drafter_limits=limits, path=way) as suite:
        async for answer in suite.client.stream(request):
            if answer.token_ids:
                links[0].cut()
        known = len(answer.token_ids) - len(answer.unverified)
        assert answer.unverified == list(range(known, TOKENS))
    assert known > 0
    assert answer.logprobs[:known] == pytest.approx(
        expected("tell", answer.token_ids[:known]), abs=1e-4
    )
    assert all(math.isnan(logprob) for logprob in answer.logprobs[known:])


PROMPT = tuple(7 * number % (VOCABULARY - 1) + 1 for number in range(300))
"""More than a chunk of a prompt."""


def asking_of_prompt(
    preset: str = "ar", prompt: tuple[int, ...] = PROMPT, **more: Any
) -> GenerationRequest:
    params = GenerationParams(
        sampling=SamplingParams(0.3, 4, 0.5),
        max_tokens=4,
        seed=3,
        logprobs=True,
        top_logprobs=2,
        prompt_logprobs=True,
    )
    return GenerationRequest(prompt, preset, params).with_fields(**more)


def check_prompt(told: Generated, prompt: tuple[int, ...] = PROMPT) -> None:
    """The target's own, with the two likeliest tokens and what each spells."""
    assert told.prompt.token_ids == list(prompt)
    assert told.prompt.token_texts == [f"<{token}>" for token in prompt]
    assert told.prompt.token_bytes == [f"<{token}>".encode() for token in prompt]
    first, *others = told.prompt.logprobs
    assert math.isnan(first)
    rows = [np.log(PROBS(prompt[:place])) for place in range(1, len(prompt))]
    expected = [row[token] for row, token in zip(rows, prompt[1:], strict=True)]
    assert others == pytest.approx(expected, abs=1e-5)
    assert told.prompt.top_logprobs[0] == ()
    for row, top in zip(rows, told.prompt.top_logprobs[1:], strict=True):
        best = np.argsort(-row, kind="stable")[:2]
        assert [token for token, _, _ in top] == best.tolist()
        assert [text for _, text, _ in top] == [f"<{token}>" for token in best]
        assert [value for _, _, value in top] == pytest.approx(row[best].tolist(), abs=1e-5)


async def test_every_preset_that_tells_logprobs_tells_the_prompts_and_changes_no_text() -> None:
    async with scripted_suite() as suite:
        for preset in TELLING:
            told = await suite.client.generate(asking_of_prompt(preset))
            check_prompt(told)
            plain = await suite.client.generate(asking_of_prompt(preset, prompt_logprobs=False))
            assert plain.prompt.token_ids == []
            assert plain.token_ids == told.token_ids, preset
            assert plain.logprobs == pytest.approx(told.logprobs, abs=1e-5)


async def test_they_are_whole_though_the_prompt_is_kept_and_are_kept_for_others() -> None:
    target = ScriptedEngine(VOCABULARY, PROBS, context_length=CONTEXT, copies=True)
    async with scripted_suite(target=target) as suite:
        for cached in (0, 0):
            told = await suite.client.generate(asking_of_prompt())
            check_prompt(told)
            assert summary_of(told).cached_tokens == cached
        plain = await suite.client.generate(asking_of_prompt(prompt_logprobs=False))
        assert summary_of(plain).cached_tokens == 256


async def test_no_sampling_setting_and_no_processor_has_a_part_in_them() -> None:
    processors = Processors(logit_bias=((5, 4.0),), banned_token_ids=(1, 2), repetition_penalty=1.5)
    async with scripted_suite() as suite:
        for more in ({"temperature": 0.0}, {"processors": processors}):
            check_prompt(await suite.client.generate(asking_of_prompt("coupled", **more)))


async def test_short_prompts_have_theirs_too() -> None:
    async with scripted_suite() as suite:
        for prompt in ((5,), (5, 6)):
            check_prompt(await suite.client.generate(asking_of_prompt(prompt=prompt)), prompt)


async def test_a_stream_that_breaks_before_they_came_is_asked_again() -> None:
    links: list[TcpLinkEmulator] = []
    way = lambda address: emulated(address, links, 0.005)  # noqa: E731
    limits = DrafterLimits(liveness=LivenessTimes(0.1, 0.3, 60.0))
    async with scripted_suite(drafter_limits=limits, path=way) as suite:
        expected = (await suite.client.generate(asking_of_prompt())).token_ids
        told = None
        async for answer in suite.client.stream(asking_of_prompt(lost_cloud=LostCloud.WAIT)):
            if told is None:
                links[0].drop()
            told = answer
        assert told is not None
        check_prompt(told)
        assert told.token_ids == expected


async def test_a_cloud_that_never_comes_back_leaves_them_unknown() -> None:
    links: list[TcpLinkEmulator] = []
    way = lambda address: emulated(address, links, 0.005)  # noqa: E731
    limits = DrafterLimits(liveness=LivenessTimes(0.1, 0.3, 0.6))
    async with scripted_suite(drafter_limits=limits, path=way) as suite:
        links[0].cut()
        answer = await suite.client.generate(asking_of_prompt("dsd", lost_cloud=LostCloud.EDGE))
    assert answer.unverified == list(range(len(answer.token_ids)))
    assert answer.prompt.token_ids == list(PROMPT)
    assert all(map(math.isnan, answer.prompt.logprobs))
