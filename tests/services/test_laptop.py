"""A target of 13 billion parameters on a laptop behind every door: nothing is refused, begun again
or cut short because it is slow."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import pairwise

import httpx2
import pytest

from tandem.backends.interface import KV_BLOCK
from tandem.generation.client import AggregatorClient
from tandem.generation.request import GenerationRequest
from tandem.net.status import Rejected
from tandem.netem.tcp_emulator import TcpLinkEmulator
from tandem.runtime.chunked_prefill import MOST_CHUNK_S, ChunkRows
from tandem.runtime.pass_times import PassTimes
from tandem.services.verifier.servicer import VerifierLimits, VerifierServicer
from tandem.specdec.liveness import LostCloud
from tandem.specdec.messages import GenerationParams
from tandem.suite.embedded import EmbeddedSuite
from tandem.telemetry.metrics import Metrics, new_registry
from tandem.testing.scripted import ScriptedEngine, scripted_probs
from tests.services.scripted_engines import PROMPT_TOKEN_S, TOKEN_S, LaptopEngine, laptop_pair
from tests.services.scripted_suite import (
    CONTEXT,
    VOCABULARY,
    emulated,
    health_of,
    scripted_suite,
    serving,
    summary_of,
    target_engine,
    until,
)

DEADLINE_S = 120.0
PROMPT = "the heron stands in the shallows and waits for what the river brings. " * 2
MEASURED = PassTimes(TOKEN_S, PROMPT_TOKEN_S, 16, TOKEN_S + 15 * PROMPT_TOKEN_S)
NAMED = frozenset({"SERVING"})


def asking(
    tokens: int = 4,
    preset: str = "coupled",
    prompt: str = PROMPT,
    lost_cloud: LostCloud = LostCloud.FAIL,
) -> GenerationRequest:
    params = GenerationParams(seed=3, max_tokens=tokens, ignore_eos=True)
    return GenerationRequest(prompt, preset, params, lost_cloud=lost_cloud)


async def quick_text(request: GenerationRequest) -> list[int]:
    """The answer of the same model where it is quick."""
    async with scripted_suite() as suite:
        return (await suite.client.generate(request)).token_ids


@asynccontextmanager
async def always_serving(*targets: str) -> AsyncIterator[None]:
    """No probe of these finds them not to serve meanwhile."""
    seen: set[str] = set()

    async def probe() -> None:
        while True:
            seen.update([await health_of(target) for target in targets])
            await asyncio.sleep(0.1)

    probing = asyncio.create_task(probe())
    try:
        yield
    finally:
        probing.cancel()
    assert seen == NAMED


async def streamed(url: str) -> list[str]:
    """What the page receives: the pieces of a chat's answer."""
    body = {
        "model": "scripted",
        "stream": True,
        "messages": [{"role": "user", "content": PROMPT}],
        "max_tokens": 4,
        "tandem": {"lost_cloud": "wait"},
    }
    pieces: list[str] = []
    async with (
        httpx2.AsyncClient(base_url=url, timeout=DEADLINE_S, verify=False) as client,
        client.stream("POST", "/v1/chat/completions", json=body) as answer,
    ):
        assert answer.status_code == 200
        async for line in answer.aiter_lines():
            if line.startswith("data: {"):
                told = json.loads(line.removeprefix("data: "))
                assert "error" not in told
                pieces += [each["delta"].get("content") or "" for each in told["choices"]]
            elif line == "data: [DONE]":
                return pieces
    raise AssertionError("the stream broke off")


async def test_every_caller_gets_its_answer_and_every_probe_is_content() -> None:
    pair = laptop_pair()
    async with EmbeddedSuite(pair, http=True) as suite, AggregatorClient(suite.target) as client:
        services = suite.target, suite.drafter_target, suite.verifier_target
        async with asyncio.timeout(DEADLINE_S), always_serving(*services):
            page, *answers = await asyncio.gather(
                streamed(suite.http_url),
                client.generate(asking(preset="auto")),
                client.generate(asking(preset="ar", tokens=3, prompt="short")),
            )
        assert "".join(page).count("<") == 4
        assert [len(each.token_ids) for each in answers] == [4, 3]
        assert [each.summary.resumes for each in answers if each.summary] == [0, 0]
    assert isinstance(pair.target, LaptopEngine)


async def test_a_long_prompt_keeps_others_waiting_for_a_quarter_of_a_second_at_most(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In a pass of their own. One between two of those, where they come late for it, may be longer;
    it is one at most."""
    # What passes take on a busy machine says little of the model.
    monkeypatch.setattr(ChunkRows, "passed", lambda chunks, rows, seconds: None)
    engine = LaptopEngine(target_engine())
    async with scripted_suite(target=engine, target_pass_times=MEASURED) as suite:
        decoding = asyncio.create_task(
            suite.client.generate(asking(tokens=8, preset="ar", prompt="short"), DEADLINE_S)
        )
        await until(lambda: engine.passes)
        (short,) = engine.by_session[0]
        answer = await suite.client.generate(asking(tokens=2), DEADLINE_S)
        shorter = await decoding
    assert (len(answer.token_ids), len(shorter.token_ids)) == (2, 8)
    own = [place for place, rows in enumerate(engine.by_session) if short in rows]
    assert max(later - earlier for earlier, later in pairwise(own)) <= 2
    beside = [
        sum(rows.values()) - rows.get(short, 0) for rows in engine.by_session[own[0] : own[-1] + 1]
    ]
    assert 0 < max(beside) * PROMPT_TOKEN_S <= MOST_CHUNK_S
    assert sum(beside) < len(PROMPT), "the long prompt takes longer than the short answer"


async def test_a_verifier_that_is_killed_costs_its_prompt_once_more_and_no_token() -> None:
    request = asking(tokens=8, lost_cloud=LostCloud.WAIT)
    expected = await quick_text(request)
    first, second = LaptopEngine(target_engine()), LaptopEngine(target_engine())
    links: list[TcpLinkEmulator] = []
    async with scripted_suite(
        target=first, target_pass_times=MEASURED, path=lambda to: emulated(to, links)
    ) as suite:
        answering = asyncio.create_task(suite.client.generate(request, DEADLINE_S))
        await until(lambda: len(first.passes) >= 6)
        links[0].cut()  # so that it says nothing at its end
        links[0].drop()
        await suite.verifier.drain(0.0)
        servicer = VerifierServicer(
            second, VerifierLimits(), Metrics(new_registry(), "cloud"), pass_times=MEASURED
        )
        async with serving(servicer, port=suite.verifier.port):
            links[0].restore()
            answer = await answering
    assert answer.token_ids == expected
    assert summary_of(answer).resumes >= 1
    assert second.rows_fed < 2 * len(PROMPT)


async def test_a_prompt_that_was_left_in_its_midst_is_not_computed_from_the_start() -> None:
    """Where the engine can keep what is computed."""
    probs = scripted_probs(1, VOCABULARY, sharpness=9.0)
    engine = LaptopEngine(ScriptedEngine(VOCABULARY, probs, context_length=CONTEXT, copies=True))
    request = asking(tokens=2, preset="ar")
    expected = await quick_text(request)
    async with scripted_suite(target=engine, target_pass_times=MEASURED) as suite:
        leaving = asyncio.create_task(suite.client.generate(request, DEADLINE_S))
        await until(lambda: len(engine.passes) >= 3)
        leaving.cancel()
        await suite.idle()
        engine.passes.clear()
        answer = await suite.client.generate(request, DEADLINE_S)
    assert answer.token_ids == expected
    assert engine.rows_fed <= len(PROMPT) - 2 * KV_BLOCK + 1


async def test_sessions_leave_a_verifier_that_drains_in_the_midst_of_a_prompt() -> None:
    request = asking(tokens=4)
    expected = await quick_text(request)
    staying = LaptopEngine(target_engine())
    leaving = LaptopEngine(target_engine())
    metrics = Metrics(new_registry(), "cloud")
    servicer = VerifierServicer(staying, VerifierLimits(), metrics, pass_times=MEASURED)

    @asynccontextmanager
    async def both(address: str) -> AsyncIterator[str]:
        yield f"{address},{other.target}"

    async with (
        serving(servicer) as other,
        scripted_suite(target=leaving, target_pass_times=MEASURED, path=both) as suite,
    ):
        answering = asyncio.create_task(suite.client.generate(request, DEADLINE_S))
        await until(lambda: leaving.passes or staying.passes)
        begun = suite.verifier if leaving.passes else other
        await begun.drain(1.0)
        answer = await answering
    assert answer.token_ids == expected
    assert not answer.unverified
    assert leaving.rows_fed + staying.rows_fed < 3 * len(PROMPT)


@pytest.mark.parametrize("policy", [LostCloud.EDGE, LostCloud.FAIL])
async def test_a_cloud_is_lost_when_its_link_is_and_not_while_it_computes(
    policy: LostCloud,
) -> None:
    links: list[TcpLinkEmulator] = []
    engine = LaptopEngine(target_engine())
    async with scripted_suite(
        target=engine, target_pass_times=MEASURED, path=lambda to: emulated(to, links)
    ) as suite:
        answer = await suite.client.generate(asking(tokens=2, lost_cloud=policy), DEADLINE_S)
        assert (len(answer.token_ids), answer.unverified) == (2, [])
        begun = len(engine.passes)
        answering = asyncio.create_task(
            suite.client.generate(asking(prompt=PROMPT[::-1], lost_cloud=policy), DEADLINE_S)
        )
        await until(lambda: len(engine.passes) != begun)
        cut_s = time.monotonic()
        links[0].cut()
        if policy is LostCloud.EDGE:
            answer = await answering
            assert len(answer.token_ids) == 4
            assert answer.unverified
        else:
            with pytest.raises(Rejected, match="lost"):
                await answering
        assert time.monotonic() - cut_s < 10.0
        links[0].restore()
