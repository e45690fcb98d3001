"""What a drafter remembers: drafted from in later answers of the same tenant alone."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest

from tandem.core.ngram_index import BETWEEN
from tandem.core.probs import SamplingParams
from tandem.generation.client import Generated
from tandem.generation.request import GenerationRequest
from tandem.net.tenant import Tenant
from tandem.runtime.tenant_memories import MemoryLimits, TenantMemories
from tandem.services.drafter.servicer import DrafterLimits
from tandem.specdec.liveness import LivenessTimes, LostCloud
from tandem.specdec.messages import GenerationParams
from tandem.testing.paced import PacedEngine
from tandem.testing.scripted import ScriptedEngine, scripted_probs
from tests.long_runs import with_long_cases
from tests.services.scripted_suite import (
    CONTEXT,
    EOS,
    VOCABULARY,
    Suite,
    scripted_suite,
    summary_of,
    target_engine,
)

GREEDY = SamplingParams(temperature=0.0)
ACROSS = ("auto", "stream", "coupled", "dssd", "fsd", "picospec", "mc-dsd")
"""Presets of each kind: those whose schedule is chosen, chains by each rule, a tree."""
PARAMS = GenerationParams(max_tokens=60, seed=3, ignore_eos=True)


async def asked(suite: Suite, preset: str = "coupled", **more: Any) -> Generated:
    """An answer, once it is remembered."""
    request = GenerationRequest("tell me this", preset, PARAMS)
    answer = await suite.client.generate(replace(request, **more))
    await suite.idle()
    if suite.memory is not None:
        await suite.memory.learned()
    return answer


def counts(answer: Generated) -> tuple[int, int]:
    return summary_of(answer).accepted_memory_tokens, summary_of(answer).rejected_memory_tokens


def accepted_a_round(answer: Generated) -> float:
    return summary_of(answer).accepted / max(1, summary_of(answer).rounds)


def passes(answer: Generated) -> int:
    return summary_of(answer).target_passes


@asynccontextmanager
async def remembering(**limits: int) -> AsyncIterator[Suite]:
    async with scripted_suite(memory=MemoryLimits(**limits)) as suite:
        yield suite


@pytest.mark.parametrize(
    "preset", with_long_cases(ACROSS, ("auto", "stream", "coupled", "dssd", "mc-dsd"))
)
async def test_the_same_question_is_answered_with_more_accepted_tokens_a_round(preset: str) -> None:
    """At temperature 0 the same text by every method; it takes fewer passes of the target."""
    params = replace(PARAMS, sampling=GREEDY, max_tokens=40)
    # Presets that measure draft nothing for a target that takes no time.
    target = PacedEngine(target_engine(), 0.004, 0.0)
    async with scripted_suite(target=target, memory=MemoryLimits()) as suite:
        plain = await asked(suite, preset, params=params, no_memory=True)
        await asked(suite, preset, params=params)
        again = await asked(suite, preset, params=params)
    assert again.token_ids == plain.token_ids
    assert counts(plain) == (0, 0)
    assert counts(again)[0] > 14
    assert accepted_a_round(again) > accepted_a_round(plain)
    assert passes(again) < passes(plain)


@pytest.mark.parametrize("preset", ["coupled", "stream"])
async def test_a_coupled_text_is_the_same_whatever_is_remembered(preset: str) -> None:
    async with remembering() as suite:
        texts = [await asked(suite, preset, no_memory=number == 0) for number in range(3)]
        other = replace(PARAMS, seed=4)
        await asked(suite, preset, params=other)
        texts.append(await asked(suite, preset))
    assert len({tuple(answer.token_ids) for answer in texts}) == 1
    assert counts(texts[2])[0] > 20


async def test_where_drafts_decide_the_text_a_seed_gives_the_same_text_again() -> None:
    """Under rejection sampling; whoever wants the speed instead says so."""
    async with remembering() as suite:
        first, again = [await asked(suite, "dssd") for _ in range(2)]
        assert first.token_ids == again.token_ids
        assert counts(again) == (0, 0)
        faster = await asked(suite, "dssd", overrides=("recalls=true",))
        assert sum(counts(faster)) > 0, "tried, and right as often as the target says it again"


async def test_where_drafting_does_not_pay_the_memory_goes_on() -> None:
    """`auto` leaves a slow draft model alone, but drafts what it has heard before."""
    probs = scripted_probs(2, VOCABULARY, sharpness=9.0)
    draft = ScriptedEngine(VOCABULARY, probs, context_length=CONTEXT, eos_token_ids=EOS)
    target = PacedEngine(target_engine(), 0.01, 0.0)
    slow = PacedEngine(draft, 0.05, 0.0)
    async with scripted_suite(target=target, draft=slow, memory=MemoryLimits()) as suite:
        first = await asked(suite, "auto")
        again = await asked(suite, "auto")
    assert again.token_ids == first.token_ids
    assert counts(again)[0] > 30
    assert passes(again) < 0.7 * passes(first)


async def test_tenants_share_nothing() -> None:
    """What one has said before helps the other as little as if it had not been said."""
    async with remembering() as suite:
        first = await asked(suite, tenant=b"alice")
        again = await asked(suite, tenant=b"alice")
        other = await asked(suite, tenant=b"bob")
        nobody = await asked(suite)
    assert counts(again)[0] > counts(first)[0]
    assert counts(other) == counts(nobody) == counts(first)
    assert {tuple(each.token_ids) for each in (first, again, other, nobody)} == {
        tuple(first.token_ids)
    }


async def test_what_is_not_to_be_remembered_is_not() -> None:
    async with remembering() as suite:
        await asked(suite, no_memory=True)
        first = await asked(suite)
        assert counts(await asked(suite, no_memory=True)) == (0, 0)
        assert counts(await asked(suite))[0] > counts(first)[0]
    async with scripted_suite() as suite:
        await asked(suite)
        assert counts(await asked(suite)) == (0, 0)


async def test_of_a_cancelled_answer_what_was_final_is_remembered() -> None:
    target = PacedEngine(target_engine(), 0.01, 0.0)
    async with scripted_suite(target=target, memory=MemoryLimits()) as suite:
        request = GenerationRequest("tell me this", "coupled", PARAMS)
        tokens = 0
        async for growing in suite.client.stream(request, 60.0):
            tokens = len(growing.token_ids)
            if tokens >= 30:
                break
        await suite.idle()
        assert suite.memory is not None
        await suite.memory.learned()
        again = await asked(suite)
    assert counts(again)[0] >= 15


async def test_tokens_that_nobody_verified_are_not_remembered() -> None:
    limits = DrafterLimits(liveness=LivenessTimes(0.1, 0.2, 0.3))
    async with scripted_suite(drafter_limits=limits, memory=MemoryLimits()) as suite:
        await suite.verifier.drain(0.0)
        lost = await asked(suite, lost_cloud=LostCloud.EDGE)
        assert lost.unverified == [*range(60)]
        assert suite.memory is not None
        (memory,) = [each.memory for each in suite.memory._tenants.values()]
        assert len(memory) == len("tell me this")


async def test_nothing_remembered_is_in_a_log_line(capsys: pytest.CaptureFixture[str]) -> None:
    async with remembering() as suite:
        for _ in range(2):
            await asked(suite, prompt="xyzzy" * 10)
    captured = capsys.readouterr()
    assert "xyzzy" not in captured.out + captured.err


ALICE, BOB, CAROL = (Tenant("edge", name) for name in (b"alice", b"bob", b"carol"))


async def heard(memory: TenantMemories, tenant: Tenant, first: int) -> int:
    """How many tokens of earlier texts there are."""
    return len((await memory.texts_for(tenant, range(first, first + 20))).earlier)


async def test_tenants_that_were_longest_away_are_forgotten_first() -> None:
    memory = TenantMemories(MemoryLimits(tokens=100, total_tokens=250), 1000)
    for tenant in (ALICE, BOB):
        memory.learn(tenant, range(100), ())
        await memory.learned()
    assert await heard(memory, ALICE, 0) > 0
    memory.learn(CAROL, range(100), ())
    await memory.learned()
    assert [await heard(memory, tenant, 0) > 0 for tenant in (ALICE, BOB, CAROL)] == [
        True,
        False,
        True,
    ]
    await memory.close()


async def test_texts_beyond_what_may_wait_are_not_learned() -> None:
    memory = TenantMemories(MemoryLimits(), 1000)
    for number in range(100):
        memory.learn(ALICE, range(number, number + 20), ())
    await memory.learned()
    earlier = (await memory.texts_for(ALICE, (1, 2, 3))).earlier
    assert list(earlier.tokens).count(BETWEEN) == 64
    await memory.close()
