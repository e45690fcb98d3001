"""A watchdog that judges from an engine's passes whether it still works. Invariant: pure; `now` is
an argument.

A pass that is stuck shows no sign: `progressed` is called between layers. Time counts in ticks, and
a late tick counts little: a process that was paused, or got no processor, is not stuck. A pass that
fails says little about the engine, since its job may be at fault. Probes, passes of the engine's
own, say whether others fail as well. So no caller's request can make an engine look broken.
"""

from __future__ import annotations

from dataclasses import dataclass

TICK_S = 0.2
LATE_TICK_S = 2 * TICK_S
"""The most that one tick may count."""
ROWS_AS_LONG = 256
"""A pass over this many rows may be silent as long again as a pass over none."""
CALL_ROWS = 20 * ROWS_AS_LONG
"""What a call between passes counts for: images are embedded and documents copied there."""
PROBE_EVERY_S = 0.5
FAILED_PROBES = 2
"""In a row. With the pass before them and the time between, a second tells."""

STUCK_AFTER_S = 1.5


@dataclass(frozen=True, slots=True)
class EngineState:
    """`fault` says what is wrong, and is empty for an engine that works. `stuck`: nothing that is
    handed over will run, for `silent_s` already. `probe`: run one now."""

    fault: str = ""
    stuck: bool = False
    probe: bool = False
    silent_s: float = 0.0


class Watchdog:
    """The engine's thread reports what it does, another thread ticks. Each field has one writer, so
    no lock is needed."""

    def __init__(self, stuck_after_s: float = STUCK_AFTER_S) -> None:
        """Start before the first pass. `stuck_after_s`: how long a pass over few rows may be
        silent."""
        self._stuck_after_s = stuck_after_s
        self._rows: int | None = None
        self._signs = 0
        self._suspicion = ""
        self._failed_probes = 0
        self._seen = 0
        self._silent_s = 0.0
        self._ticked_s: float | None = None
        self._probed_s: float | None = None

    def began(self, rows: int) -> None:
        """Record the start of a pass over `rows` rows, or of a call (`CALL_ROWS`)."""
        self._signs += 1
        self._rows = rows

    def progressed(self) -> None:
        """Record the end of a layer, or of what follows the last one."""
        self._signs += 1

    def ended(self) -> None:
        """Record the end of a call or a pass, with results or without."""
        self._signs += 1
        self._rows = None

    def passed(self) -> None:
        """Record that a pass of a job or a probe had results."""
        self._suspicion = ""
        self._failed_probes = 0

    def failed(self, why: str, probe: bool = False) -> None:
        """Record that a pass raised."""
        self._suspicion = why
        self._failed_probes += probe

    def tick(self, now: float) -> EngineState:
        """Update the state at `now` (seconds of any clock that never goes back)."""
        since_s = 0.0 if self._ticked_s is None else now - self._ticked_s
        self._ticked_s = now
        signs = self._signs
        rows = self._rows
        if rows is None or signs != self._seen:
            self._seen = signs
            self._silent_s = 0.0
        else:
            self._silent_s += min(since_s, LATE_TICK_S)
            if self._silent_s >= self._stuck_after_s * (1 + rows / ROWS_AS_LONG):
                why = f"a pass has been stuck for {self._silent_s:.1f} s"
                return EngineState(why, stuck=True, silent_s=self._silent_s)
        return self._judged(now)

    def _judged(self, now: float) -> EngineState:
        why = self._suspicion
        if not why:
            self._probed_s = None
            return EngineState()
        probe = self._probed_s is None or now - self._probed_s >= PROBE_EVERY_S
        if probe:
            self._probed_s = now
        fault = f"every pass fails: {why}" if self._failed_probes >= FAILED_PROBES else ""
        return EngineState(fault, probe=probe)
