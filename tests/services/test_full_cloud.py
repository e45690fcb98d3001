"""What others notice of one whose requests a cloud has no memory for."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress

from tandem.generation.request import GenerationRequest
from tandem.net.status import Rejected
from tandem.netem.tcp_emulator import TcpLinkEmulator
from tandem.services.verifier.servicer import VerifierLimits
from tandem.specdec.messages import GenerationParams
from tests.services.scripted_suite import Suite, emulated, scripted_suite

DELAY_S = 0.2
"""Each way."""
ROOM = 64
"""Tokens of keys and values that the cloud has memory for."""
REFUSED_AT_ONCE = 6


def asking(max_tokens: int) -> GenerationRequest:
    params = GenerationParams(max_tokens=max_tokens, seed=1, ignore_eos=True)
    return GenerationRequest("ab", preset="ar", params=params)


async def first_tokens_s(suite: Suite, count: int) -> list[float]:
    """How long the first tokens of requests took that were sent one after the other, in order of
    length."""
    took_s = list[float]()
    for _ in range(count):
        began_s = time.monotonic()
        async for answer in suite.client.stream(asking(4)):
            if answer.token_ids:
                break
        took_s.append(time.monotonic() - began_s)
    return sorted(took_s)


async def test_who_is_refused_costs_others_no_round_trips() -> None:
    """Each refusal took the connection that all share: the next request waited for a new one."""
    links: list[TcpLinkEmulator] = []

    async def press() -> None:
        while True:
            with suppress(Rejected):
                await suite.client.generate(asking(2 * ROOM))

    way = lambda address: emulated(address, links, DELAY_S)  # noqa: E731
    async with scripted_suite(VerifierLimits(kv_budget_bytes=ROOM), path=way) as suite:
        alone_s = await first_tokens_s(suite, 3)
        pressing = [asyncio.create_task(press()) for _ in range(REFUSED_AT_ONCE)]
        try:
            beside_s = await first_tokens_s(suite, 6)
        finally:
            for task in pressing:
                task.cancel()
            await asyncio.gather(*pressing, return_exceptions=True)
    round_trip_s = 2 * DELAY_S
    assert beside_s[4] < alone_s[1] + 0.75 * round_trip_s
