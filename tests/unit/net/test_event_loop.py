"""What holds up an event loop: how its metric tells, and what the garbage collector looks at."""

from __future__ import annotations

import asyncio
import time

from tandem.net.process import watch_event_loop
from tandem.telemetry.metrics import Metrics, new_registry


async def test_a_loop_that_was_held_up_is_seen() -> None:
    metrics = Metrics(new_registry(), "cloud")
    watching = asyncio.create_task(watch_event_loop(metrics.loop(), every_s=0.01))

    def value(what: str, **labels: str) -> float:
        name = f"tandem_event_loop_lag_seconds_{what}"
        return metrics.registry.get_sample_value(name, {"side": "cloud", **labels}) or 0.0

    while value("count") < 3:
        await asyncio.sleep(0.001)
    before = value("sum")
    time.sleep(0.2)  # as a handler would that computes on the loop
    seen = value("count")
    while value("count") == seen:
        await asyncio.sleep(0.001)
    assert value("sum") - before > 0.15
    watching.cancel()
