"""What the watchdog makes of passes that begin, go on, end, fail, and never end."""

from __future__ import annotations

from tandem.runtime.watchdog import (
    CALL_ROWS,
    LATE_TICK_S,
    PROBE_EVERY_S,
    ROWS_AS_LONG,
    TICK_S,
    EngineState,
    Watchdog,
)

STUCK_AFTER_S = 1.5


class Clock:
    """Ticks a watchdog through the seconds."""

    def __init__(self, watchdog: Watchdog) -> None:
        self.watchdog, self.now = watchdog, 100.0
        watchdog.tick(self.now)

    def tick(self, seconds: float = TICK_S) -> EngineState:
        self.now += seconds
        return self.watchdog.tick(self.now)

    def until_stuck(self, most_s: float) -> float:
        """How long it takes, in ticks that are on time."""
        began_s = self.now
        while self.now - began_s < most_s:
            if self.tick().stuck:
                return self.now - began_s
        return most_s


def watched() -> tuple[Watchdog, Clock]:
    watchdog = Watchdog(STUCK_AFTER_S)
    return watchdog, Clock(watchdog)


def test_a_pass_that_shows_no_sign_is_stuck_and_one_sign_mends_it() -> None:
    watchdog, clock = watched()
    watchdog.began(1)
    assert STUCK_AFTER_S <= clock.until_stuck(9.0) <= STUCK_AFTER_S + 3 * TICK_S
    assert "stuck" in clock.tick().fault
    watchdog.progressed()
    assert clock.tick() == EngineState()


def test_a_long_pass_with_signs_is_not_stuck_nor_is_an_idle_engine() -> None:
    watchdog, clock = watched()
    watchdog.began(1)
    for _ in range(100):
        clock.tick(1.0)
        watchdog.progressed()
        assert clock.tick() == EngineState()
    watchdog.ended()
    assert clock.until_stuck(60.0) == 60.0


def test_many_rows_may_be_silent_longer() -> None:
    watchdog, clock = watched()
    watchdog.began(2 * ROWS_AS_LONG)
    assert 3 * STUCK_AFTER_S <= clock.until_stuck(60.0) <= 3 * STUCK_AFTER_S + 3 * TICK_S
    watchdog.began(CALL_ROWS)
    assert clock.until_stuck(60.0) > 20 * STUCK_AFTER_S


def test_a_process_that_was_paused_is_not_stuck() -> None:
    watchdog, clock = watched()
    watchdog.began(1)
    clock.tick()
    assert clock.tick(3600.0) == EngineState()
    assert clock.until_stuck(9.0) >= STUCK_AFTER_S - LATE_TICK_S


def test_passes_that_fail_are_a_fault_only_if_probes_fail_too() -> None:
    watchdog, clock = watched()
    for _ in range(1000):
        watchdog.failed("IndexError")  # as a caller's request might bring about
    assert clock.tick() == EngineState(probe=True)
    watchdog.passed()
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
    watchdog.passed()
    assert clock.tick() == EngineState()
