"""An engine that hangs or fails: health says so, callers are told, and both mend."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Sequence

import pytest

from tandem.backends.interface import EngineFailed, ForwardRequest, Logits, never
from tandem.generation.request import GenerationRequest
from tandem.net.status import engine_silent_s
from tandem.runtime.pass_times import measure_pass_times
from tandem.runtime.watchdog import STUCK_AFTER_S
from tandem.services.verifier.servicer import VerifierLimits, VerifierServicer
from tandem.specdec.liveness import LostCloud
from tandem.specdec.messages import GenerationParams
from tandem.telemetry.metrics import Metrics, new_registry
from tandem.testing.scripted import ScriptedEngine, scripted_probs
from tests.services.scripted_suite import (
    CONTEXT,
    VOCABULARY,
    health_of,
    scripted_suite,
    serving,
    summary_of,
)
from tests.services.verifier_peer import edge_peer, honest_draft, opening

TOLD_WITHIN_S = 3.0
DEADLINE_S = 60.0


class Breakable(ScriptedEngine):
    """Hangs in a pass, or raises, while it is told to."""

    def __init__(self) -> None:
        super().__init__(
            VOCABULARY, scripted_probs(1, VOCABULARY, sharpness=9.0), context_length=CONTEXT
        )
        self.go_on = threading.Event()
        self.go_on.set()
        self.raises: Exception | None = None

    def forward(
        self, batch: Sequence[ForwardRequest], cancelled: Callable[[], bool] = never
    ) -> list[Logits]:
        self.go_on.wait(DEADLINE_S)
        if self.raises:
            raise self.raises
        return super().forward(batch, cancelled)


async def becomes(target: str, wanted: str) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while await health_of(target) != wanted:
            await asyncio.sleep(0.05)


GONE = {
    "hangs": (None, "UNAVAILABLE"),
    "raises": (RuntimeError("the device is gone"), "INTERNAL"),
    "fails": (EngineFailed("a worker is gone"), "UNAVAILABLE"),
}
"""What a pass raises, and how the stream ends that waits for it."""


@pytest.mark.parametrize("way", GONE)
async def test_health_and_the_caller_are_told_in_time(way: str) -> None:
    engine, metrics = Breakable(), Metrics(new_registry(), "cloud")
    pass_times = measure_pass_times(engine)
    servicer = VerifierServicer(engine, VerifierLimits(), metrics, pass_times=pass_times)
    async with serving(servicer) as running:
        assert await health_of(running.target) == "SERVING"
        if way == "hangs":
            engine.go_on.clear()
        engine.raises, code = GONE[way]
        began_s = time.monotonic()
        async with edge_peer(running.target) as peer:
            await peer.send(opening(), honest_draft("dssd"))
            ending = await peer.ending()
            stuck_s = engine_silent_s(await peer.call.trailing_metadata())
            await becomes(running.target, "NOT_SERVING")
        assert time.monotonic() - began_s < TOLD_WITHIN_S
        assert ending.code == code
        assert (stuck_s >= STUCK_AFTER_S) is (way == "hangs"), "the edge counts from the beginning"
        working = "tandem_engine_working"
        labels = {"model_name": engine.model_name, "side": "cloud"}
        assert metrics.registry.get_sample_value(working, labels) == 0.0
        engine.raises = None
        engine.go_on.set()
        await becomes(running.target, "SERVING")
        assert metrics.registry.get_sample_value(working, labels) == 1.0
        assert engine.sessions_open == 0


async def test_pongs_of_a_stuck_verifier_are_no_reason_to_wait_longer() -> None:
    """Its drafter counts the outage from when the engine fell silent, and goes on alone."""
    engine = Breakable()
    async with scripted_suite(target=engine) as suite:
        request = GenerationRequest(
            "ab",
            preset="coupled",
            params=GenerationParams(max_tokens=100, ignore_eos=True),
            lost_cloud=LostCloud.EDGE,
        )
        async for result in suite.client.stream(request, DEADLINE_S):
            if result.token_ids:
                engine.go_on.clear()
        assert result.unverified
        assert summary_of(result).loss_noticed_s >= STUCK_AFTER_S
        engine.go_on.set()
