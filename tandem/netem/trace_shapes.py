"""Traces in the shape of common access networks: `lte`, `wifi`, `satellite`.

They are drawn from a seed and are no recordings: each has the features by which its kind of network
is known to differ from a constant link, in round numbers. What a certain network does, a recorded
trace says (`tandem.netem.link_trace.read_trace`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from math import exp, sin, tau
from random import Random
from types import MappingProxyType

from tandem.core.errors import unknown_name
from tandem.netem.link_trace import LinkTrace, TraceRow

DEFAULT_S = 120


def shaped_trace(name: str, seed: int = 0, seconds: int = DEFAULT_S) -> LinkTrace:
    """Return a trace of that shape. Raises InvalidArgument("trace"), which lists the names."""
    if name not in SHAPES:
        raise unknown_name("trace", name, SHAPES)
    # The name is part of the seed: two shapes of one seed do not fade at the same moments.
    return LinkTrace(tuple(SHAPES[name](Random(f"{name}/{seed}"), seconds)))


def _lte(source: Random, seconds: int) -> Iterator[TraceRow]:
    """Yield the trace of a phone that moves: bandwidth wanders over a factor of ten, most of it
    downwards; every 20 to 40 seconds a handover brings half a second of little bandwidth and a long
    round trip."""
    fading = 0.0
    handover_s = source.uniform(20, 40)
    step_s = 0.5
    for number in range(int(seconds / step_s)):
        time_s = number * step_s
        fading = 0.9 * fading + source.gauss(0, 0.25)
        if time_s >= handover_s:
            handover_s = time_s + source.uniform(20, 40)
            yield TraceRow(time_s, 0.3, 1.0, 300.0)
            continue
        strength = exp(max(-1.5, min(1.0, fading)))
        waiting_ms = 20 / strength  # queues are longer where the radio is slower
        yield TraceRow(
            time_s,
            up_mbps=round(6 * strength, 3),
            down_mbps=round(25 * strength, 3),
            rtt_ms=round(35 + waiting_ms + source.uniform(0, 10), 1),
        )


def _wifi(source: Random, seconds: int) -> Iterator[TraceRow]:
    """Yield the trace of Wi-Fi in a shared room: fast and near, but for bursts of others' traffic
    of one to three seconds, in which the bandwidth is divided."""
    busy_until_s = 0.0
    for number in range(seconds * 2):
        time_s = number / 2
        if time_s >= busy_until_s and source.random() < 0.06:
            busy_until_s = time_s + source.uniform(1, 3)
        busy = time_s < busy_until_s
        share = source.uniform(0.05, 0.2) if busy else source.uniform(0.7, 1.0)
        rtt_ms = source.uniform(20, 80) if busy else source.uniform(3, 8)
        yield TraceRow(time_s, round(60 * share, 3), round(90 * share, 3), round(rtt_ms, 1))


def _satellite(source: Random, seconds: int) -> Iterator[TraceRow]:
    """Yield the trace of a satellite link in low orbit: every 15 seconds another satellite and
    path, so that the round trip jumps; in between, the distance changes slowly. The uplink is a
    tenth of the downlink."""
    path_ms = strength = 0.0
    for time_s in range(seconds):
        if time_s % 15 == 0:
            path_ms = source.uniform(25, 60)
            strength = source.uniform(0.4, 1.0)
            yield TraceRow(float(time_s), 0.5, 5.0, round(path_ms + 80, 1))
            continue
        drift_ms = 4 * sin(tau * (time_s % 15) / 30)
        yield TraceRow(
            float(time_s),
            up_mbps=round(10 * strength * source.uniform(0.8, 1.0), 3),
            down_mbps=round(100 * strength * source.uniform(0.8, 1.0), 3),
            rtt_ms=round(path_ms + drift_ms + source.uniform(0, 8), 1),
        )


SHAPES: Mapping[str, Callable[[Random, int], Iterator[TraceRow]]] = MappingProxyType(
    {"lte": _lte, "wifi": _wifi, "satellite": _satellite}
)
