"""One greedy holder of a key against others, at a verifier and in an aggregator's queue."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any

import grpc
import pytest

from tandem.core.errors import ResourceExhausted
from tandem.net.access import ServerAccess
from tandem.net.admission import Admission, Slots
from tandem.net.quotas import NO_QUOTA, HolderRefused, Quota
from tandem.net.scopes import Caller, Scope, note_caller
from tandem.net.tenant import Tenant
from tandem.services.verifier.servicer import VerifierLimits, VerifierServicer
from tandem.telemetry.metrics import Metrics, new_registry
from tandem_api.verifier.v1 import verifier_pb2_grpc
from tests.services.scripted_suite import sample, serving, target_engine, until
from tests.services.verifier_peer import opening

WAIT_S = 30.0


class _Naming(grpc.aio.ServerInterceptor):
    """Takes the word of a call for who makes it, as the guard does after it has seen a key."""

    async def intercept_service(
        self, continuation: Callable[[Any], Awaitable[Any]], handler_call_details: Any
    ) -> Any:
        named = dict(handler_call_details.invocation_metadata)
        note_caller(Caller(named["holder"], frozenset(Scope)))
        return await continuation(handler_call_details)


class Unguarded(ServerAccess):
    """Callers say who they are."""

    def interceptors(self) -> list[grpc.aio.ServerInterceptor]:
        return [_Naming()]


def slots_of(running: int, waiting: int, quota: Quota = NO_QUOTA) -> Slots:
    return Slots(Admission({}, quota=quota), "slots", running, waiting)


async def sessions_of(
    holder: str, target: str, most: int, stack: AsyncExitStack
) -> tuple[int, grpc.aio.AioRpcError | None]:
    """How many sessions it got, and what it was refused with."""
    channel = await stack.enter_async_context(grpc.aio.insecure_channel(target))
    for count in range(most):
        stub: Any = verifier_pb2_grpc.VerifierServiceStub(channel)
        call = stub.Verify(timeout=WAIT_S, metadata=(("holder", holder),))
        stack.callback(call.cancel)
        await call.write(opening())
        try:
            assert (await call.read()).HasField("opened")
        except grpc.aio.AioRpcError as error:
            return count, error
    return most, None


@pytest.fixture
def metrics() -> Metrics:
    return Metrics(new_registry(), "cloud")


async def test_one_edge_alone_has_every_session_of_a_verifier(metrics: Metrics) -> None:
    servicer = VerifierServicer(target_engine(), VerifierLimits(max_sessions=8), metrics)
    async with serving(servicer, access=Unguarded()) as running, AsyncExitStack() as stack:
        count, error = await sessions_of("edge-1", running.target, 9, stack)
        assert count == 8
        assert error is not None
        assert "all 8 sessions are in use; try again" in str(error.details())


async def test_one_edge_cannot_take_all_sessions_that_others_want(metrics: Metrics) -> None:
    servicer = VerifierServicer(target_engine(), VerifierLimits(max_sessions=8), metrics)
    async with serving(servicer, access=Unguarded()) as running, AsyncExitStack() as stack:
        assert (await sessions_of("honest", running.target, 1, stack))[0] == 1
        count, error = await sessions_of("greedy", running.target, 9, stack)
        assert count == 5
        assert error is not None
        assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        words = "fair-share limit reached: 'greedy' holds 5 of 8 sessions"
        assert words in str(error.details())
        assert dict(error.trailing_metadata() or ())["retry-after"] == "1"
        assert (await sessions_of("honest", running.target, 2, stack))[0] == 2
        assert held(metrics, "greedy") == 5
        await until(lambda: not running.service.open_requests)
        assert held(metrics, "greedy") == 0
        assert refusals(metrics, holder="greedy", limit="sessions") == 1


async def test_one_edge_alone_has_all_of_a_verifier_s_kv_cache(metrics: Metrics) -> None:
    budget = 4 * session_bytes()
    limits = VerifierLimits(max_sessions=64, kv_budget_bytes=budget)
    async with (
        serving(VerifierServicer(target_engine(), limits, metrics), access=Unguarded()) as running,
        AsyncExitStack() as stack,
    ):
        count, error = await sessions_of("edge-1", running.target, 9, stack)
        assert count == 4
        assert error is not None
        assert "bytes of KV cache needed, 0 of" in str(error.details())


def session_bytes() -> int:
    """Return what a session of `opening` reserves."""
    message = opening().open
    return (
        len(message.prompt_ids) + message.params.max_tokens
    ) * target_engine().kv_bytes_per_token


def held(metrics: Metrics, holder: str) -> float:
    return sample(metrics, "tandem_holder_sessions", holder=holder)


def refusals(metrics: Metrics, **labels: str) -> float:
    return sample(metrics, "tandem_holder_refusals_total", **labels)


async def test_a_verifier_keeps_to_requests_a_minute() -> None:
    limits = VerifierLimits(quota=Quota(requests_per_minute=2))
    servicer = VerifierServicer(target_engine(), limits, Metrics(new_registry(), "cloud"))
    async with serving(servicer, access=Unguarded()) as running, AsyncExitStack() as stack:
        count, error = await sessions_of("edge-1", running.target, 9, stack)
        assert count == 2
        assert error is not None
        assert "'edge-1' has used its 2 requests per minute" in str(error.details())
        assert (await sessions_of("edge-2", running.target, 1, stack))[0] == 1


async def test_long_answers_of_one_holder_leave_slots_to_others() -> None:
    """Answers that were never read held every slot, and nobody else was served until they ended."""
    slots, leave = slots_of(4, 8), asyncio.Event()
    await _hold(slots, "honest")
    greedy = [asyncio.create_task(_hold(slots, "greedy", until=leave)) for _ in range(6)]
    while slots.waiting < 3:
        await asyncio.sleep(0)
    assert slots.running == 3
    for _ in range(2):
        await asyncio.wait_for(_hold(slots, "honest"), WAIT_S)
        assert (slots.running, slots.waiting) == (3, 3)  # what the honest one left stays free
    leave.set()
    await asyncio.gather(*greedy)
    nameless = [asyncio.create_task(_hold(slots, "")) for _ in range(4)]
    await asyncio.gather(*nameless)
    assert (slots.running, slots.waiting) == (0, 0)


@pytest.mark.parametrize(("running", "waiting"), [(16, 16), (4, 16), (1, 2)])
async def test_a_queue_full_of_one_holder_s_requests_refuses_nobody_else(
    running: int, waiting: int
) -> None:
    """With 64 of its requests, one of nine honest ones was refused, or four, or of two both."""
    slots, leave = slots_of(running, waiting), asyncio.Event()
    refused: Counter[str] = Counter()

    async def asks(holder: str) -> None:
        note_caller(Caller(holder, frozenset(Scope)))
        try:
            async with slots.slot(WAIT_S):
                await leave.wait()
        except ResourceExhausted:
            refused[holder] += 1

    greedy = [asyncio.create_task(asks("greedy")) for _ in range(64)]
    await asyncio.sleep(0)
    assert refused["greedy"] == 64 - running - waiting
    honest = [f"honest-{number}" for number in range(min(9, waiting))]
    asking = [asyncio.create_task(asks(holder)) for holder in honest]
    while slots.running + slots.waiting + refused.total() < 64 + len(honest):
        await asyncio.sleep(0)
    leave.set()
    await asyncio.gather(*greedy, *asking)
    assert refused == {"greedy": 64 - (running + waiting - len(honest))}
    assert (slots.running, slots.waiting) == (0, 0)


async def test_who_has_used_its_quota_takes_no_place_of_another() -> None:
    slots, leave = slots_of(1, 2, Quota(requests_per_minute=3)), asyncio.Event()
    waiting = [asyncio.create_task(_hold(slots, "a", until=leave)) for _ in range(3)]
    spent = Tenant("spent")
    for _ in range(3):
        with slots._admission.reserve(tenant=spent, place="slots"):
            pass
    await asyncio.sleep(0)
    for _ in range(3):
        with pytest.raises(HolderRefused, match="'spent' has used its 3 requests per minute"):
            await _hold(slots, "spent")
    assert (slots.running, slots.waiting) == (1, 2)
    leave.set()
    await asyncio.gather(*waiting)


async def test_who_has_its_share_takes_no_place_of_another() -> None:
    slots, leave = slots_of(1, 3), asyncio.Event()
    others = [asyncio.create_task(_hold(slots, name, until=leave)) for name in ("a", "a", "b", "b")]
    while slots.running + slots.waiting < 4:
        await asyncio.sleep(0)
    with pytest.raises(HolderRefused, match="'b' holds 2 of 4 slots"):
        await _hold(slots, "b")
    series = Metrics(new_registry(), "device")
    full = Slots(Admission({}, series=series.holders()), "slots", 1, 1)
    two = [asyncio.create_task(_hold(full, "a", until=leave)) for _ in range(2)]
    await asyncio.sleep(0)
    await_third = asyncio.create_task(_hold(full, "b"))
    with pytest.raises(HolderRefused, match="'a' holds the most slots, and others are waiting"):
        await two[1]
    assert refusals(series, holder="a", limit="queue") == 1
    leave.set()
    await asyncio.gather(two[0], await_third, *others)


async def test_a_slot_is_not_lost_to_who_leaves_while_it_is_given() -> None:
    slots = slots_of(1, 4)
    held = slots.slot(WAIT_S)
    await held.__aenter__()
    waiting = [asyncio.create_task(_hold(slots, "")) for _ in range(3)]
    while slots.waiting < 3:
        await asyncio.sleep(0)
    for task in waiting:
        task.cancel()  # they hear of it after the slot came free
    await held.__aexit__(None, None, None)
    await asyncio.gather(*waiting, return_exceptions=True)
    assert (slots.running, slots.waiting) == (0, 0)
    await _hold(slots, "")


async def _hold(
    slots: Slots,
    holder: str,
    order: list[str] | None = None,
    priority: int = 0,
    until: asyncio.Event | None = None,
) -> None:
    note_caller(Caller(holder, frozenset(Scope)))
    async with slots.slot(WAIT_S, priority=priority):
        if until is not None:
            await until.wait()
        if order is not None:
            order.append(f"{holder}{priority}" if priority else holder)
        await asyncio.sleep(0)
