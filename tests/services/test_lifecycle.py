"""Drain in the middle of generations, when sessions are asked to leave, and what a service that is
leaving says."""

from __future__ import annotations

import asyncio
import threading
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2

from tandem.generation.client import Generated
from tandem.generation.request import GenerationRequest
from tandem.net.access import ServerAccess
from tandem.net.lifecycle import PortInUse, RunningService
from tandem.net.status import Rejected
from tandem.services.aggregator.config import AggregatorSettings
from tandem.services.drafter.servicer import DrafterLimits
from tandem.services.verifier.servicer import VerifierLimits, VerifierServicer, leaving_times
from tandem.specdec.liveness import LivenessTimes, LostCloud
from tandem.specdec.messages import GenerationParams
from tandem.specdec.presets import PRESETS
from tandem.telemetry.metrics import Metrics, new_registry
from tandem.testing.paced import PacedEngine
from tests.services.scripted_suite import (
    Suite,
    begun,
    cloud_draft_model,
    draft_engine,
    health_of,
    health_stub,
    scripted_suite,
    started,
    target_engine,
)
from tests.services.verifier_peer import control, edge_peer, honest_draft, opening

DRAIN_S = 60.0
TOKENS = 40


def paced(engine: object) -> PacedEngine:
    """Slow enough that a drain meets generations under way."""
    return PacedEngine(engine, 8e-3, 0.0)  # type: ignore[arg-type]


def request(preset: str, seed: int = 0) -> GenerationRequest:
    return GenerationRequest(
        f"drain {preset}",
        preset,
        GenerationParams(max_tokens=TOKENS, seed=seed, ignore_eos=True),
        lost_cloud=LostCloud.WAIT,
        overrides=("payload_top=8",),
    )


async def take_over(port: int) -> RunningService:
    """A second verifier on the port of one that is leaving, as soon as it is free."""
    while True:
        metrics = Metrics(new_registry(), "cloud")
        target = target_engine()
        small = cloud_draft_model(None, target)
        servicer = VerifierServicer(target, VerifierLimits(), metrics, cloud_draft=small)
        try:
            return await started(servicer, port)
        except PortInUse:
            await servicer.close()
            await asyncio.sleep(0.01)


def every_preset_at_once() -> AbstractAsyncContextManager[Suite]:
    """A suite of slow models that serves a request of each preset at the same time."""
    return scripted_suite(
        settings=AggregatorSettings(max_running=2 * len(PRESETS)),
        target=paced(target_engine()),
        draft=paced(draft_engine()),
        cloud_draft=paced(draft_engine()),
    )


@pytest.fixture(scope="module")
def known_alone() -> dict[str, Generated]:
    """The answer of each preset to `request`, once somebody asked for it."""
    return {}


async def answers_alone(
    requests: list[GenerationRequest], known: dict[str, Generated]
) -> list[Generated]:
    """One after the other, with nothing beside them."""
    async with scripted_suite() as suite:
        for wanted in requests:
            if wanted.preset not in known:
                known[wanted.preset] = await suite.client.generate(wanted)
    return [known[wanted.preset] for wanted in requests]


async def test_a_drained_verifier_s_generations_go_on_at_the_next_one(
    known_alone: dict[str, Generated],
) -> None:
    """Every exact preset at once, caught in the middle: nothing lost, repeated or changed."""
    requests = [request(name) for name, preset in PRESETS.items() if not preset.lossy]
    alone = await answers_alone(requests, known_alone)
    async with every_preset_at_once() as suite:
        generating = await asyncio.gather(*(begun(suite.client, wanted) for wanted in requests))
        draining = asyncio.create_task(suite.verifier.drain(DRAIN_S))
        successor = await take_over(suite.verifier.port)
        done = await asyncio.gather(*generating)
        await draining
        await successor.drain(0.0)
        await suite.idle()
    assert [generated.token_ids for generated in done] == [one.token_ids for one in alone]
    assert [generated.text for generated in done] == [one.text for one in alone]
    moved = [generated for generated in done if generated.summary and generated.summary.resumes]
    assert len(moved) == len(requests)


@pytest.mark.parametrize("name", ["verifier", "drafter", "aggregator"])
async def test_a_leaving_service_says_so_and_ends_with_its_last_request(name: str) -> None:
    limits = DrafterLimits(liveness=LivenessTimes(give_up_after_s=1.0))
    async with scripted_suite(
        target=paced(target_engine()), draft=paced(draft_engine()), drafter_limits=limits
    ) as suite:
        running: RunningService = getattr(suite, name)
        async with grpc.aio.insecure_channel(running.target) as channel:
            watch = health_stub(channel).Watch(health_pb2.HealthCheckRequest())
            assert (await watch.read()).status == health_pb2.HealthCheckResponse.SERVING
            wanted = replace(request("coupled"), lost_cloud=LostCloud.EDGE)
            generating = await begun(suite.client, wanted)
            drain_s = 1.0 if name == "verifier" else DRAIN_S
            draining = asyncio.create_task(running.drain(drain_s))
            assert (await watch.read()).status == health_pb2.HealthCheckResponse.NOT_SERVING
            await _refuses_new_requests(suite, name)
            if name != "verifier":  # which the edge leaves at once
                assert await health_of(running.target) == "NOT_SERVING"
                assert not draining.done()
            done = await generating
            await draining
        assert len(done.token_ids) == TOKENS
        assert await health_of(running.target) == "UNAVAILABLE"


async def _refuses_new_requests(suite: Suite, name: str) -> None:
    if name == "verifier":
        async with edge_peer(suite.verifier.target) as peer:
            await peer.send(opening())
            assert (await peer.ending()).code == "UNAVAILABLE"
        return
    with pytest.raises(Rejected) as refusal:
        await suite.client.generate(request("ar"))
    assert refusal.value.code is grpc.StatusCode.UNAVAILABLE


class GatedEngine:
    """A scripted engine whose passes wait until `gate` is set."""

    def __init__(self) -> None:
        self._engine = target_engine()
        self.gate = threading.Event()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def forward(self, *arguments: Any, **options: Any) -> Any:
        self.gate.wait()
        return self._engine.forward(*arguments, **options)


async def test_a_long_pass_silences_nobody() -> None:
    """Else an edge would take a busy cloud for a dead one, and open one stream after another."""
    engine: Any = GatedEngine()
    async with scripted_suite(target=engine) as suite:
        async with (
            edge_peer(suite.verifier.target) as busy,
            edge_peer(suite.verifier.target) as new,
        ):
            await busy.send(opening())
            await busy.answer("opened")
            await new.send(opening(), control("ping", nonce=5))
            await new.answer("opened")
            assert (await new.answer("pong")).pong.nonce == 5
            await busy.send(control("ping", nonce=6))
            assert (await busy.answer("pong")).pong.nonce == 6
            engine.gate.set()
            await new.send(honest_draft("dssd"))
            await new.answer("committed")
        await suite.idle()


async def test_an_idle_service_stops_at_once() -> None:
    async with scripted_suite() as suite, asyncio.timeout(DRAIN_S / 2):
        await suite.client.generate(request("coupled"))
        await suite.verifier.drain(DRAIN_S)


TURNS = 300
DEADLINE_S = 60.0


class Waiting:
    """A service with one method, which ends only with its call, and then takes a while to free what
    it holds."""

    full_name = "tests.Waiting"

    def __init__(self) -> None:
        self.open_requests = 0
        self.began = asyncio.Event()
        self.open_when_closed: list[int] = []

    def register(self, server: grpc.aio.Server) -> None:
        handler: Any = grpc.unary_unary_rpc_method_handler(self._wait)
        handlers = grpc.method_handlers_generic_handler(self.full_name, {"Wait": handler})
        server.add_generic_rpc_handlers((handlers,))

    async def _wait(self, request: bytes, context: object) -> bytes:
        self.open_requests += 1
        self.began.set()
        try:
            await asyncio.Event().wait()
            return b""
        finally:
            for _ in range(TURNS):
                await asyncio.sleep(0)
            self.open_requests -= 1

    def going_away(self, grace_s: float) -> None:
        pass

    async def close(self) -> None:
        self.open_when_closed.append(self.open_requests)


async def test_a_service_is_closed_once_its_handlers_have_freed_what_they_held() -> None:
    service = Waiting()
    running = RunningService(service, "127.0.0.1", 0, 2**16, ServerAccess())
    await running.start()
    async with grpc.aio.insecure_channel(running.target) as channel, asyncio.timeout(DEADLINE_S):
        method: Any = channel.unary_unary("/tests.Waiting/Wait")
        call = method(b"")
        await service.began.wait()
        await running.drain(0.0)
        assert service.open_when_closed == [0]
        assert await call.code() != grpc.StatusCode.OK


def test_sessions_are_asked_to_leave_while_others_compute_their_texts() -> None:
    """In half of their time; and all before the end."""
    assert leaving_times([100, 200, 50], 0.001, 10.0) == pytest.approx([0.0, 0.2, 0.6])
    assert leaving_times([100, 200, 50], 0.001, 0.35) == pytest.approx([0.0, 0.1, 0.3])


def test_sessions_leave_at_once_where_that_costs_nothing() -> None:
    assert leaving_times([100, 200], 0.0, 10.0) == [0.0, 0.0]
    assert leaving_times([100, 200], 0.001, 0.0) == [0.0, 0.0]
    assert leaving_times([100], 0.001, 10.0) == [0.0]
    assert leaving_times([], 0.001, 10.0) == []
