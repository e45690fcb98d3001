"""Log-probabilities of an answer's tokens: those of the distributions that they were sampled
from."""

from __future__ import annotations

import math
from typing import Any

import grpc
import numpy as np
import pytest

from tandem.core.probs import SamplingParams, probs_from_logits
from tandem.generation.request import GenerationRequest
from tandem.net.status import Rejected
from tandem.netem.tcp_emulator import TcpLinkEmulator
from tandem.services.drafter.servicer import DrafterLimits
from tandem.specdec.liveness import LivenessTimes, LostCloud
from tandem.specdec.messages import GenerationParams
from tandem.specdec.presets import PRESETS
from tandem.testing.scripted import scripted_probs
from tests.services.scripted_suite import VOCABULARY, emulated, scripted_suite

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
