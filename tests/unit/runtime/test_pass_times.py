"""What a pass takes over one token and over several, before anybody asks."""

from __future__ import annotations

from typing import Any

import pytest

from tandem.backends.interface import never
from tandem.runtime.pass_times import PassTimes, measure_pass_times
from tandem.testing.paced import PacedEngine
from tandem.testing.scripted import ScriptedEngine, scripted_probs


class Clock:
    """Seconds that pass while an engine sleeps, and a few microseconds with each look at it."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        self.now += 5e-6
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


def measured(first_s: float, further_s: float, context: int = 64) -> tuple[PassTimes | None, float]:
    """The times, and how long it took to measure them."""
    clock = Clock()
    inner = ScriptedEngine(16, scripted_probs(3, 16), context_length=context)
    engine = PacedEngine(inner, first_s, further_s, clock=clock, sleep=clock.sleep)
    found = measure_pass_times(engine, clock)
    assert (engine.sessions_open, engine.kv_bytes_in_use) == (0, 0)
    return found, clock.now


@pytest.mark.parametrize("row_share", [0.0, 0.05, 0.375, 1.0])
def test_a_further_row_costs_what_the_engine_takes_for_it(row_share: float) -> None:
    """0.375: five rows cost 2.5 times as much as one, as with llama.cpp on two cores."""
    found, _ = measured(0.02, 0.02 * row_share)
    assert found is not None
    assert found.first_s == pytest.approx(0.02, rel=0.02)
    assert found.row_share == pytest.approx(row_share, abs=0.02)


@pytest.mark.parametrize(
    ("first_s", "further_s", "prompt_row_s", "took_s"),
    [(0.5, 0.025, 0.025, 3.1), (0.02, 0.001, 0.001, 1.0), (0.001, 0.0, 0.0, 0.1)],
)
def test_a_prompt_is_measured_until_its_rows_tell(
    first_s: float, further_s: float, prompt_row_s: float, took_s: float
) -> None:
    found, seconds = measured(first_s, further_s, context=512)
    assert found is not None
    assert found.prompt_row_s == pytest.approx(prompt_row_s, rel=0.02, abs=1e-6)
    assert seconds < took_s


def test_the_dearest_further_row_counts() -> None:
    """llama.cpp computes one row of quantised weights by other code than several: the first
    further one costs most."""
    clock = Clock()

    class Jumping(ScriptedEngine):
        def forward(self, batch: Any, *rest: Any) -> Any:
            rows = sum(len(request.token_ids) for request in batch)
            clock.sleep(0.02 * (1 + 0.7 * (rows > 1) + 0.1 * max(0, rows - 2)))
            return super().forward(batch, *rest)

    found = measure_pass_times(Jumping(16, scripted_probs(3, 16), context_length=64), clock)
    assert found is not None
    assert found.row_share == pytest.approx(0.7, abs=0.02)


class Elsewhere(PacedEngine):
    """Computed by a server: a request takes `request_s` besides, and a token that follows what the
    server wrote is read from its stream."""

    def __init__(self, token_s: float, row_s: float, request_s: float, clock: Clock) -> None:
        inner = ScriptedEngine(16, scripted_probs(3, 16), context_length=64)
        super().__init__(inner, 0.0, 0.0, clock=clock, sleep=clock.sleep)
        self._times = token_s, row_s, request_s
        self._waits = clock.sleep

    def begin(self, batch: Any) -> Any:
        raise NotImplementedError

    def forward(self, batch: Any, cancelled: Any = never) -> Any:
        token_s, row_s, request_s = self._times
        (request,) = batch
        rows = len(request.token_ids)
        follows = rows == 1 and request.session.length > 0
        self._waits(token_s if follows else request_s + token_s + (rows - 1) * row_s)
        return super().forward(batch, cancelled)


@pytest.mark.parametrize(
    ("token_s", "row_s", "request_s", "pays"),
    [(0.020, 0.0002, 0.005, True), (0.0035, 0.0005, 0.008, False), (0.02, 0.019, 0.0, False)],
)
def test_where_passes_are_requests_drafts_pay_only_where_these_are_short(
    token_s: float, row_s: float, request_s: float, pays: bool
) -> None:
    """As on a GPU, on a CPU, and with rows that cost what tokens cost."""
    clock = Clock()
    found = measure_pass_times(Elsewhere(token_s, row_s, request_s, clock), clock)
    assert found is not None
    assert found.first_s == pytest.approx(token_s, rel=0.05)
    assert found.drafts_never_pay is not pays
