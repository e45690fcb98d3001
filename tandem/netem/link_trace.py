"""A link that changes as a recording says: bandwidth up and down, and round trip, over time.

A trace file is CSV with the columns `time_s`, `up_mbps`, `down_mbps`, `rtt_ms` in any order, times
from 0 upwards; further columns are passed over. A row holds until the next one. At its end a trace
begins again, a row's time after the last row.

Invariant: pure; nothing here reads a clock or, but for `read_trace`, a file.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import count, pairwise
from math import isfinite
from pathlib import Path

from tandem.core.errors import InvalidArgument
from tandem.netem.link_model import LinkShape

COLUMNS = ("time_s", "up_mbps", "down_mbps", "rtt_ms")
MAX_ROWS = 1_000_000
MIN_STEP_S = 0.001
"""Rows closer than this would keep an emulator, or virtual time, busy with nothing else."""
MIN_MBPS = 0.001
MAX_MBPS = 100_000.0
MAX_RTT_MS = 60_000.0


@dataclass(frozen=True, slots=True)
class TraceRow:
    """The link from `time_s` seconds after its start on."""

    time_s: float
    up_mbps: float
    down_mbps: float
    rtt_ms: float

    def applied_to(self, shape: LinkShape) -> LinkShape:
        """Return `shape` with this bandwidth, and half of this round trip as each delay."""
        delay_s = self.rtt_ms / 2e3
        return LinkShape(
            replace(shape.up, delay_s=delay_s, bytes_per_s=self.up_mbps * 1e6 / 8),
            replace(shape.down, delay_s=delay_s, bytes_per_s=self.down_mbps * 1e6 / 8),
        )


@dataclass(frozen=True, slots=True)
class LinkTrace:
    """At least one row, times rising from 0."""

    rows: tuple[TraceRow, ...]

    def __post_init__(self) -> None:
        if not self.rows:
            raise InvalidArgument("trace", "has no rows")
        if self.rows[0].time_s != 0:
            raise InvalidArgument("trace", f"must begin at time 0, not {self.rows[0].time_s:g}")
        for before, row in pairwise(self.rows):
            if not row.time_s >= before.time_s + MIN_STEP_S:
                why = f"time {row.time_s:g} does not follow {before.time_s:g} by {MIN_STEP_S:g} s"
                raise InvalidArgument("trace", why)
        for row in self.rows:
            for name in ("up_mbps", "down_mbps"):
                if not MIN_MBPS <= getattr(row, name) <= MAX_MBPS:
                    why = f"{name} at {row.time_s:g} s must be {MIN_MBPS:g} to {MAX_MBPS:g}"
                    raise InvalidArgument("trace", why)
            if not 0 <= row.rtt_ms <= MAX_RTT_MS:
                why = f"rtt_ms at {row.time_s:g} s must be 0 to {MAX_RTT_MS:g}"
                raise InvalidArgument("trace", why)

    @property
    def period_s(self) -> float:
        """The time after which it begins again."""
        times_s = [row.time_s for row in self.rows]
        return times_s[-1] + (times_s[-1] - times_s[-2] if len(times_s) > 1 else 1.0)

    def moments(self) -> Iterator[tuple[float, TraceRow]]:
        """Yield without end which row begins when."""
        for turn in count():
            for row in self.rows:
                yield turn * self.period_s + row.time_s, row


def read_trace(path: Path) -> LinkTrace:
    """Read a trace file. Raises InvalidArgument("trace") naming the file or the line."""
    try:
        with path.open(encoding="utf-8", newline="") as file:
            return LinkTrace(tuple(_rows(csv.reader(file))))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise InvalidArgument("trace", f"{path} cannot be read: {error}") from error


def _rows(lines: Iterator[list[str]]) -> Iterator[TraceRow]:
    header = [name.strip() for name in next(lines, [])]
    missing = [name for name in COLUMNS if name not in header]
    if missing:
        raise InvalidArgument("trace", f"has no column {', '.join(missing)}")
    places = [header.index(name) for name in COLUMNS]
    for number, line in enumerate(lines, start=2):
        if not line:
            continue
        if number > MAX_ROWS:
            raise InvalidArgument("trace", f"has more than {MAX_ROWS} lines")
        yield TraceRow(*_numbers(line, places, number))


def _numbers(line: Sequence[str], places: Sequence[int], number: int) -> list[float]:
    try:
        values = [float(line[place]) for place in places]
    except (ValueError, IndexError):
        why = f"line {number} must have a number in each of {', '.join(COLUMNS)}"
        raise InvalidArgument("trace", why) from None
    if not all(map(isfinite, values)):
        raise InvalidArgument("trace", f"line {number} has a number that is not finite")
    return values
