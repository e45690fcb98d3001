"""Sessions of one verifier whose frames go out slowly."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from tandem.backends.interface import ForwardRequest, Logits, never
from tandem.generation.request import GenerationRequest
from tandem.net.stream_limits import ServedStream
from tandem.runtime.batching_delay import BatchingDelay
from tandem.specdec.messages import GenerationParams
from tandem.testing.scripted import ScriptedEngine
from tests.services.scripted_suite import scripted_suite, target_engine

TOKENS = 40
TURNS = 30
PASS_S = 0.003


class _Counting:
    """How many sessions each pass of an engine had."""

    def __init__(self, engine: ScriptedEngine) -> None:
        self.engine, self.batches = engine, list[int]()
        self._forward = engine.forward
        engine.forward = self.forward  # type: ignore[method-assign]

    def forward(
        self, batch: Sequence[ForwardRequest], cancelled: Callable[[], bool] = never
    ) -> list[Logits]:
        self.batches.append(len(batch))
        time.sleep(PASS_S)
        return self._forward(batch, cancelled)


async def test_sessions_that_decode_alone_share_passes_again_after_they_fell_out_of_step(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What follows from a pass is handed over before its verdict is sent: a pass over one session,
    while the other waits, is followed by one over both."""
    write = ServedStream.write

    async def slow(stream: ServedStream[Any, Any], message: Any) -> None:
        for _ in range(TURNS):
            await asyncio.sleep(0)
        await write(stream, message)

    monkeypatch.setattr(ServedStream, "write", slow)
    # Until the loop has reacted:
    monkeypatch.setattr(BatchingDelay, "wait_s", lambda delay, ended, waiting: 60.0)
    counting = _Counting(target_engine())
    async with scripted_suite(target=counting.engine) as suite:
        asked = [
            GenerationRequest(
                "m", "ar", GenerationParams(seed=seed, max_tokens=TOKENS, ignore_eos=True)
            )
            for seed in range(2)
        ]
        await asyncio.gather(*map(suite.client.generate, asked))
    assert counting.batches.count(2) >= TOKENS // 4
