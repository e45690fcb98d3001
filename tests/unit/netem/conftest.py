"""Event loops of each kind for the emulator's tests, and a yardstick for how late a machine is."""

import asyncio
import importlib.util
import statistics
import time
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

Run = Callable[[Coroutine[Any, Any, None]], None]


@pytest.fixture(
    params=[
        "asyncio",
        pytest.param(
            "uvloop",
            marks=pytest.mark.skipif(
                importlib.util.find_spec("uvloop") is None, reason="uvloop is not installed"
            ),
        ),
    ]
)
def run(request: pytest.FixtureRequest) -> Run:
    """Runs a coroutine to its end on each kind of loop; one that hangs fails after 20 s."""

    def run_on_loop(test: Coroutine[Any, Any, None]) -> None:
        factory = None
        if request.param == "uvloop":
            import uvloop

            factory = uvloop.new_event_loop
        with asyncio.Runner(loop_factory=factory) as runner:
            runner.run(asyncio.wait_for(test, 20))

    return run_on_loop


@pytest.fixture
def machine_lateness() -> Callable[[], float]:
    """How many seconds this machine is late, as a rule, to wake a process now.

    Nothing on a busy machine can be more punctual, so tolerances grow with it.
    """

    def late_s() -> float:
        start = time.monotonic()
        time.sleep(0.005)
        return time.monotonic() - start - 0.005

    return lambda: statistics.median(late_s() for _ in range(20))
