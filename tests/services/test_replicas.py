"""A verifier with replicas: sessions are spread over them, stay where they began, and avoid one
that is leaving."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from tandem.generation.request import GenerationRequest
from tandem.net.access import ClientAccess
from tandem.net.channels import is_replicated
from tandem.net.connection import Connection
from tandem.net.lifecycle import RunningService
from tandem.services.verifier.servicer import VerifierLimits, VerifierServicer
from tandem.specdec.messages import GenerationParams
from tandem.telemetry.metrics import Metrics, new_registry
from tests.services.scripted_suite import (
    MESSAGE_BYTES,
    Suite,
    scripted_suite,
    serving,
    target_engine,
)

PASSES = "tandem_engine_pass_seconds_count"
SPREAD_S = 30.0
LABELS = {"model_name": "scripted", "side": "cloud"}


def passes(metrics: Metrics) -> float:
    return metrics.registry.get_sample_value(PASSES, LABELS) or 0.0


@asynccontextmanager
async def two_verifiers() -> AsyncIterator[tuple[Suite, RunningService, Metrics]]:
    """A suite whose drafter is told of two replicas, with the second one and its metrics."""
    metrics = Metrics(new_registry(), "cloud")

    @asynccontextmanager
    async def both(first: str) -> AsyncIterator[str]:
        yield f"ipv4:{first},{second.target}"

    servicer = VerifierServicer(target_engine(), VerifierLimits(), metrics)
    async with serving(servicer) as second, scripted_suite(path=both) as suite:
        yield suite, second, metrics


async def answers_until_both_served(suite: Suite, second: Metrics) -> list[str]:
    """Texts of one request, asked again until each replica had it: a channel takes replicas in turn
    as soon as it has reached them."""
    texts: list[str] = []
    request = GenerationRequest("m", "dssd", GenerationParams(seed=7, max_tokens=16))
    async with asyncio.timeout(SPREAD_S):
        while not (texts and passes(suite.cloud_metrics) and passes(second)):
            texts.append((await suite.client.generate(request)).text)
    return texts


async def test_sessions_are_spread_and_texts_are_the_same() -> None:
    async with two_verifiers() as (suite, _, second):
        assert len(set(await answers_until_both_served(suite, second))) == 1


async def test_a_name_may_stand_for_one() -> None:
    @asynccontextmanager
    async def by_name(address: str) -> AsyncIterator[str]:
        yield f"dns:///localhost:{address.rpartition(':')[2]}"

    async with scripted_suite(path=by_name) as suite:
        answer = await suite.client.generate(
            GenerationRequest("m", "dssd", GenerationParams(max_tokens=8))
        )
        assert len(answer.token_ids) == 8


async def test_a_replica_that_leaves_gets_no_new_sessions_and_fails_none() -> None:
    async with two_verifiers() as (suite, leaving, metrics):
        await answers_until_both_served(suite, metrics)
        requests = [
            GenerationRequest("m", "dssd", GenerationParams(seed=seed, max_tokens=200))
            for seed in range(6)
        ]
        under_way = [asyncio.create_task(suite.client.generate(request)) for request in requests]
        await leaving.drain(10.0)
        left_with = passes(metrics)
        moved = await asyncio.gather(*under_way)
        after = [await suite.client.generate(request) for request in requests]
        assert [answer.text for answer in moved] == [answer.text for answer in after]
        assert not any(answer.unverified for answer in (*moved, *after))
        assert passes(metrics) == left_with


@pytest.mark.parametrize(
    ("target", "replicas"),
    [
        ("dns:///verifier.tandem.svc:50051", True),
        ("ipv4:127.0.0.1:1,127.0.0.1:2", True),
        ("verifier:50051", False),
        ("127.0.0.1:50051", False),
    ],
)
async def test_only_a_connection_to_replicas_is_renewed_for_its_age(
    target: str, replicas: bool
) -> None:
    assert is_replicated(target) == replicas
    connection = Connection(target, MESSAGE_BYTES, ClientAccess(), fresh_for_s=0.0)
    first = connection.acquire()
    second = connection.acquire()
    assert (first is not second) == replicas
    await connection.release(second)
    await connection.release(first)
    await connection.close()
