"""Requests leave nothing behind in any service: neither objects of Python's, nor memory of the
libraries', which no figure of Python's shows."""

from __future__ import annotations

import asyncio
import gc
from itertools import count

import pytest

from tandem.generation.request import GenerationRequest
from tandem.runtime.tenant_memories import MemoryLimits
from tandem.specdec.messages import GenerationParams
from tests.long_runs import LONG
from tests.native_memory import bytes_in_use
from tests.services.scripted_suite import Suite, scripted_suite

PRESETS = ("ar", "coupled", "stream", "auto")
AT_ONCE = 4
WARM_UP = 600
REQUESTS = 1000
MOST_OBJECTS = 1.0
MOST_BYTES = 120.0
"""A request, of all three services: measured 40 to 60, and 220 to 400 with two reads cancelled."""
REMEMBERED = MemoryLimits(1000, 1000)
"""So few tokens that they are full after the warm-up."""


@LONG  # the reads themselves: tests/unit/net/test_memory_of_calls.py
@pytest.mark.timeout(300)
@pytest.mark.skipif(bytes_in_use() is None, reason="only glibc counts its heap")
async def test_requests_leave_no_memory_behind() -> None:
    async with scripted_suite(memory=REMEMBERED, splits=False) as suite:
        numbers = count()
        await answer(suite, numbers, WARM_UP)
        objects, size_bytes = held()
        await answer(suite, numbers, REQUESTS)
        more_objects, more_bytes = held()
    assert (more_objects - objects) / REQUESTS < MOST_OBJECTS
    assert (more_bytes - size_bytes) / REQUESTS < MOST_BYTES


async def answer(suite: Suite, numbers: count[int], requests: int) -> None:
    """Have so many requests answered, a few at a time."""

    async def caller() -> None:
        for _ in range(requests // AT_ONCE):
            number = next(numbers)
            params = GenerationParams(max_tokens=8, seed=number)
            preset = PRESETS[number % len(PRESETS)]
            await suite.client.generate(GenerationRequest(f"text {number % 60}", preset, params))

    await asyncio.gather(*(caller() for _ in range(AT_ONCE)))
    await suite.idle()


def held() -> tuple[int, int]:
    """Return the objects and bytes that this process holds."""
    gc.collect()
    return len(gc.get_objects()), bytes_in_use() or 0
