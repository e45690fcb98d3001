"""A watchdog that judges from an engine's passes whether it still works. Invariant: pure; `now` is
an argument.

A pass that is stuck shows no sign for many times as long as passes of this engine have ever been
silent: an engine that reports each layer is silent for a layer, another one for a whole pass, which
takes milliseconds here and a minute there. What a pass over many rows may take is not known from
those over few, but bounded, in proportion to its rows; of several such bounds the lowest counts, so
that one pass that was held up proves little. Time counts in ticks, and a late tick counts
little: a process that was paused, or got no processor, is not stuck. A pass that fails says little
about the engine, since its job may be at fault. Probes, passes of the engine's own, say whether
others fail as well. So no caller's request can make an engine look broken.
"""

from __future__ import annotations

from dataclasses import dataclass

TICK_S = 0.2
LATE_TICK_S = 2 * TICK_S
"""The most that one tick may count."""
PROBE_EVERY_S = 0.5
FAILED_PROBES = 2
"""In a row. With the pass before them and the time between, a second tells."""

STUCK_AFTER_S = 1.5
"""No shorter silence says anything: a quick engine's passes vary by the machine's other work."""
TIMES_AS_SILENT = 10.0
"""Other programs, a longer text and memory that was swapped out make passes longer."""
UNKNOWN_S = 120.0
"""What is allowed before any pass has ended, and to a call between passes, where images are
embedded and documents copied: twice a minute, which a large model may take."""
LEAST_ROWS = 256
"""A pass may compute more than it is fed, as where an engine reads the end of a long text anew: so
many rows count at least."""


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
        """Start before the first pass. No silence shorter than `stuck_after_s` is a fault."""
        self._stuck_after_s = stuck_after_s
        self._silences = UsualSilences()
        self._rows = 0
        self._allowed_s: float | None = None
        self._signs = 0
        self._signed_s = 0.0
        self._longest_s = 0.0
        self._suspicion = ""
        self._failed_probes = 0
        self._seen = 0
        self._silent_s = 0.0
        self._ticked_s: float | None = None
        self._probed_s: float | None = None

    def knows(self, rows: int, pass_s: float) -> None:
        """Take in what a pass over `rows` rows took before this began to watch."""
        self._silences.add(rows, pass_s)

    def began(self, rows: int, now: float) -> None:
        """Record the start of a pass over `rows` rows."""
        self._begin(self._silences.bound_s(rows), now)
        self._rows = rows

    def called(self, now: float) -> None:
        """Record the start of a call between passes."""
        self._begin(None, now)

    def _begin(self, usual_s: float | None, now: float) -> None:
        self._signed_s = now
        self._longest_s = 0.0
        self._signs += 1
        known_s = UNKNOWN_S if usual_s is None else TIMES_AS_SILENT * usual_s
        self._allowed_s = max(self._stuck_after_s, known_s)

    def progressed(self, now: float) -> None:
        """Record the end of a layer, or of what follows the last one."""
        # By the clock, but no longer than the ticks saw: those of a paused process count little.
        silence_s = min(now - self._signed_s, self._silent_s + LATE_TICK_S)
        if silence_s > self._longest_s:
            self._longest_s = silence_s
        self._signed_s = now
        self._signs += 1

    def ended(self) -> None:
        """Record the end of a call or a pass, with results or without."""
        self._signs += 1
        self._allowed_s = None

    def passed(self, now: float) -> None:
        """Record that a pass of a job or a probe had results."""
        self.progressed(now)
        self._silences.add(self._rows, self._longest_s)
        self.works()

    def works(self) -> None:
        """Record that the engine works: a pass had results, here or elsewhere."""
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
        allowed_s = self._allowed_s
        if allowed_s is None or signs != self._seen:
            self._seen = signs
            self._silent_s = 0.0
        else:
            self._silent_s += min(since_s, LATE_TICK_S)
            if self._silent_s >= allowed_s:
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


class UsualSilences:
    """The longest silences of an engine's passes, by their rows."""

    def __init__(self) -> None:
        self._longest: dict[int, tuple[int, float]] = {}
        """By the rows' bits: the fewest rows of such a pass, and the seconds."""

    def add(self, rows: int, silence_s: float) -> None:
        """Record the longest silence of a pass over `rows` rows that had results."""
        rows = max(1, rows)
        fewest, longest_s = self._longest.get(rows.bit_length(), (rows, 0.0))
        self._longest[rows.bit_length()] = min(fewest, rows), max(silence_s, longest_s)

    def bound_s(self, rows: int) -> float | None:
        """Return what a pass over `rows` rows is silent for at most, as no row costs more than the
        first; None where nothing is known."""
        rows = max(LEAST_ROWS, rows)
        bounds_s = [
            longest_s * max(1.0, rows / fewest) for fewest, longest_s in self._longest.values()
        ]
        return min(bounds_s, default=None)
