"""Back ends without trees and forks: chains run, what needs more is refused at the opening."""

from __future__ import annotations

import grpc
import pytest

from tandem.core.probs import SamplingParams
from tandem.generation.request import GenerationRequest
from tandem.net.status import Rejected
from tandem.specdec.messages import GenerationParams
from tandem.specdec.presets import PRESETS
from tests.howto.bigram_backend import BigramEngine
from tests.services.scripted_suite import Suite, draft_engine, scripted_suite
from tests.unit.backends.test_requirements import CHAINS

LENGTH = 20


def request(preset: str) -> GenerationRequest:
    greedy = SamplingParams(temperature=0.0)
    return GenerationRequest(
        "chain", preset, GenerationParams(sampling=greedy, max_tokens=LENGTH, ignore_eos=True)
    )


async def refused(suite: Suite, preset: str) -> str:
    with pytest.raises(Rejected) as refusal:
        await suite.client.generate(request(preset))
    assert refusal.value.code is grpc.StatusCode.FAILED_PRECONDITION
    return str(refusal.value)


async def test_chains_run_and_the_text_is_the_target_s_own() -> None:
    draft, target = BigramEngine(1), BigramEngine(2)
    expected: list[int] = [ord("n")]
    for _ in range(LENGTH):
        expected.append(int(target._table[expected[-1] % 64].argmax()))
    async with scripted_suite(draft=draft, target=target, cloud_draft=BigramEngine(3)) as suite:
        for preset in (name for name in CHAINS if not PRESETS[name].split_layers):
            assert [*(await suite.client.generate(request(preset))).token_ids] == expected[1:]


async def test_the_drafter_refuses_what_its_draft_model_cannot_do() -> None:
    async with scripted_suite(draft=BigramEngine(1), target=BigramEngine(2)) as suite:
        why = await refused(suite, "stream")
        assert "preset 'stream' needs forks of the draft model" in why
        assert "preset 'mc-dsd' needs trees of the draft model" in await refused(suite, "mc-dsd")
        await suite.idle()


async def test_the_verifier_refuses_what_its_target_cannot_do() -> None:
    draft, target = draft_engine(), BigramEngine(2)
    draft.vocabulary_hash = target.vocabulary_hash
    async with scripted_suite(draft=draft, target=target) as suite:
        assert "preset 'mc-dsd' needs trees of the target model" in await refused(suite, "mc-dsd")
        assert len((await suite.client.generate(request("fsd"))).token_ids) == LENGTH
        await suite.idle()
