"""What the watchdog makes of passes that begin, go on, end, fail, and never end."""

from __future__ import annotations

from collections.abc import Sequence

from tandem.runtime.watchdog import (
    LATE_TICK_S,
    LEAST_ROWS,
    PROBE_EVERY_S,
    TICK_S,
    TIMES_AS_SILENT,
    UNKNOWN_S,
    EngineState,
    Watchdog,
)

STUCK_AFTER_S = 1.5
A_MINUTE_S = 60.0


class Clock:
    """Ticks a watchdog through the seconds."""

    def __init__(self, watchdog: Watchdog) -> None:
        self.watchdog, self.now = watchdog, 100.0
        watchdog.tick(self.now)

    def tick(self, seconds: float = TICK_S) -> EngineState:
        self.now += seconds
        return self.watchdog.tick(self.now)

    def passes(self, rows: int, silences_s: Sequence[float]) -> None:
        """A pass with so long silences between its signs, of which none is too long."""
        self.watchdog.began(rows, self.now)
        for silence_s in silences_s:
            ends_s = self.now + silence_s
            while self.now < ends_s:
                assert self.tick(min(TICK_S, ends_s - self.now)) == EngineState()
            self.watchdog.progressed(self.now)
        self.watchdog.passed(self.now)
        self.watchdog.ended()

    def until_stuck(self, most_s: float) -> float:
        """How long it takes, in ticks that are on time."""
        began_s = self.now
        while self.now - began_s < most_s:
            if self.tick().stuck:
                return self.now - began_s
        return most_s


def watched(row_s: float | None = 0.001, rows: int = 1) -> tuple[Watchdog, Clock]:
    """A watchdog that knows passes over so many rows, each of which takes `row_s`."""
    watchdog = Watchdog(STUCK_AFTER_S)
    if row_s is not None:
        watchdog.knows(rows, rows * row_s)
    return watchdog, Clock(watchdog)


def test_a_pass_that_shows_no_sign_is_stuck_and_one_sign_mends_it() -> None:
    watchdog, clock = watched(0.0001)
    watchdog.began(1, clock.now)
    assert STUCK_AFTER_S <= clock.until_stuck(9.0) <= STUCK_AFTER_S + 3 * TICK_S
    assert "stuck" in clock.tick().fault
    watchdog.progressed(clock.now)
    assert clock.tick() == EngineState()


def test_a_long_pass_with_signs_is_not_stuck_nor_is_an_idle_engine() -> None:
    watchdog, clock = watched()
    watchdog.began(1, clock.now)
    for _ in range(100):
        clock.tick(1.0)
        watchdog.progressed(clock.now)
        assert clock.tick() == EngineState()
    watchdog.ended()
    assert clock.until_stuck(2 * UNKNOWN_S) == 2 * UNKNOWN_S


def test_a_pass_of_a_minute_is_no_fault_of_an_engine_that_nobody_knows() -> None:
    watchdog, clock = watched(None)
    clock.passes(300, [A_MINUTE_S])
    watchdog.called(clock.now)
    assert A_MINUTE_S < clock.until_stuck(3 * UNKNOWN_S) <= UNKNOWN_S + 3 * TICK_S


def test_an_engine_that_never_ends_its_first_pass_is_found_out() -> None:
    watchdog, clock = watched(None)
    watchdog.began(1, clock.now)
    assert UNKNOWN_S <= clock.until_stuck(3 * UNKNOWN_S) <= UNKNOWN_S + 3 * TICK_S


def test_an_engine_that_reports_its_layers_is_judged_by_these() -> None:
    watchdog, clock = watched(None)
    clock.passes(LEAST_ROWS, [0.3] * 40)
    watchdog.began(LEAST_ROWS, clock.now)
    assert clock.until_stuck(99.0) <= TIMES_AS_SILENT * 0.3 + 3 * TICK_S


def test_a_process_that_was_paused_is_not_stuck_and_its_pause_teaches_nothing() -> None:
    watchdog, clock = watched(0.0001, rows=LEAST_ROWS)
    watchdog.began(1, clock.now)
    clock.tick()
    assert clock.tick(3600.0) == EngineState()
    watchdog.passed(clock.now)
    watchdog.ended()
    watchdog.began(1, clock.now)
    assert clock.tick(3600.0) == EngineState()
    assert STUCK_AFTER_S - LATE_TICK_S <= clock.until_stuck(99.0) <= STUCK_AFTER_S + 3 * TICK_S


def test_passes_that_fail_are_a_fault_only_if_probes_fail_too() -> None:
    watchdog, clock = watched()
    for _ in range(1000):
        watchdog.failed("IndexError")  # as a caller's request might bring about
    assert clock.tick() == EngineState(probe=True)
    watchdog.passed(clock.now)
    assert clock.tick() == EngineState()


def test_probes_are_spread_and_tell_within_a_second_or_so() -> None:
    watchdog, clock = watched()
    watchdog.failed("RuntimeError")
    began_s, probes = clock.now, 0
    while not (state := clock.tick()).fault:
        if state.probe:
            probes += 1
            watchdog.failed("RuntimeError", probe=True)
    assert probes == 2
    assert clock.now - began_s < 1.5
    assert "RuntimeError" in state.fault
    assert not state.stuck
    asked = [clock.tick().probe for _ in range(50)]
    assert 0 < sum(asked) <= 50 * TICK_S / PROBE_EVERY_S + 1, "it goes on asking, but not always"
    watchdog.passed(clock.now)
    assert clock.tick() == EngineState()
