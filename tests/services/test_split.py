"""Split inference through the services, with scripted models whose hidden states name tokens."""

from __future__ import annotations

from typing import Any

import grpc
import pytest

from tandem.core.errors import FailedPrecondition
from tandem.core.probs import SamplingParams
from tandem.generation.request import GenerationRequest
from tandem.net.status import Rejected
from tandem.netem.tcp_emulator import TcpLinkEmulator
from tandem.services.drafter.split_edge import SplitEdge
from tandem.services.verifier.servicer import VerifierLimits
from tandem.specdec.messages import GenerationParams
from tandem.testing.scripted import (
    VOCABULARY_SIZE,
    ScriptedEngine,
    ScriptedLayers,
    scripted_pair,
)
from tests.services.scripted_suite import (
    CONTEXT,
    VOCABULARY,
    answer_over,
    draft_engine,
    emulated,
    scripted_suite,
    summary_of,
    target_engine,
)


def asking(preset: str = "split", prompt: str = "count to nine", **more: Any) -> GenerationRequest:
    params = GenerationParams(sampling=SamplingParams(), max_tokens=40, seed=5, ignore_eos=True)
    return GenerationRequest(prompt, preset, params).with_fields(**more)


async def test_the_text_is_the_cloud_s_own_and_every_token_brings_its_state() -> None:
    async with scripted_suite() as suite:
        alone = await suite.client.generate(asking("ar"))
        split = await suite.client.generate(asking())
        await suite.idle()
    assert split.token_ids == alone.token_ids
    assert (summary_of(split).drafted, summary_of(split).target_passes) == (0, 40)
    states = 4 * (len("count to nine") + 39)  # the last token's is not needed
    assert summary_of(split).uplink_bytes - summary_of(alone).uplink_bytes > states


async def test_a_text_goes_on_behind_a_link_that_breaks() -> None:
    links: list[TcpLinkEmulator] = []
    way = lambda address: emulated(address, links, 0.005)  # noqa: E731
    async with scripted_suite() as suite:
        alone = await suite.client.generate(asking("ar"))
    async with scripted_suite(path=way) as suite:
        answer = await answer_over(links[0], suite.client, asking())
    assert answer.token_ids == alone.token_ids
    assert summary_of(answer).resumes > 0


async def test_nothing_of_a_split_text_is_kept() -> None:
    """Its keys and values lack layers, and are of what an edge sent."""
    prompt, cached = "x" * 200, []
    _, target = scripted_pair(0.3)
    draft = ScriptedEngine(VOCABULARY_SIZE, lambda _: [1 / VOCABULARY_SIZE] * VOCABULARY_SIZE)
    async with scripted_suite(target=target, draft=draft) as suite:
        for preset in ("split", "ar", "split", "ar"):
            answer = await suite.client.generate(asking(preset, prompt))
            cached.append(summary_of(answer).cached_tokens > 0)
    assert cached == [False, False, False, True]


async def test_a_drafter_without_the_target_s_layers_says_so() -> None:
    async with scripted_suite(splits=False) as suite:
        with pytest.raises(Rejected, match="--split-model") as refused:
            await suite.client.generate(asking())
    assert refused.value.code is grpc.StatusCode.FAILED_PRECONDITION


async def test_another_cut_than_the_drafter_s_is_refused() -> None:
    async with scripted_suite() as suite:
        with pytest.raises(Rejected, match="split_layers: this drafter runs") as refused:
            await suite.client.generate(asking(overrides=("split_layers=2",)))
    assert refused.value.code is grpc.StatusCode.INVALID_ARGUMENT


async def test_layers_of_another_vocabulary_are_refused() -> None:
    edge = SplitEdge(3, lambda: ScriptedLayers(VOCABULARY + 1, CONTEXT))
    with pytest.raises(FailedPrecondition, match="vocabulary"):
        await edge.thread(draft_engine().vocabulary_hash)
    await edge.close()


async def test_states_that_wait_are_part_of_what_a_session_takes() -> None:
    """A verifier whose memory holds the keys and values, but not the states of the prompt."""
    room = (13 + 40) * target_engine().kv_bytes_per_token
    limits = VerifierLimits(kv_budget_bytes=room + 20)
    async with scripted_suite(verifier_limits=limits) as suite:
        assert (await suite.client.generate(asking("ar"))).token_ids
        with pytest.raises(Rejected) as refused:
            await suite.client.generate(asking())
    assert refused.value.code is grpc.StatusCode.RESOURCE_EXHAUSTED
