"""What holds up an event loop: how its metric tells, and what the garbage collector looks at."""

from __future__ import annotations

import asyncio
import gc
import signal
import time
from typing import Any

import pytest

from tandem.core.errors import TandemError
from tandem.net.process import run_service, watch_event_loop
from tandem.settings import ServiceSettings
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


def test_what_is_loaded_is_out_of_the_collectors_sight_before_calls_come() -> None:
    """A pass over torch's modules takes a quarter of a second, and comes so seldom that memory
    grows meanwhile."""
    kept: list[int] = []

    class Loaded:
        full_name = "a.service"

        def register(self, server: object) -> None:
            assert gc.isenabled()
            before = gc.get_stats()[2]["collections"]
            for _ in range(300):  # calls that come and go, of which little stays
                assert len([[number] for number in range(800)]) == 800
            kept.extend((gc.get_freeze_count(), gc.get_stats()[2]["collections"] - before))
            raise TandemError("that is all")

    def build(settings: ServiceSettings, metrics: Metrics) -> Any:
        assert not gc.isenabled(), "it would look through all that is being loaded, again and again"
        return Loaded()

    gc.unfreeze()
    threshold = gc.get_threshold()
    gc.set_threshold(700, 10, 10)  # as in a service; tests' collectors look less often
    handlers = {each: signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)}
    try:
        with pytest.raises(SystemExit) as ended:
            run_service(ServiceSettings, build, "cloud", ["--port", "0", "--insecure", "true"])
    finally:
        gc.set_threshold(*threshold)
        gc.unfreeze()
        for number, handler in handlers.items():
            signal.signal(number, handler)
    assert ended.value.code == 1
    assert kept[0] > 10_000
    assert kept[1] > 0
