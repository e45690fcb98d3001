"""Virtual time: events in order, without a clock, and the faults of a link among them. Invariant:
events of the same moment run in the order they were scheduled in."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass

from tandem.core.errors import ProtocolError
from tandem.netem.link_model import LinkPair

MAX_EVENTS = 1_000_000


class VirtualTime:
    """Seconds since the simulation began, and the scheduled events."""

    def __init__(self) -> None:
        self.now = 0.0
        self._scheduled: list[tuple[float, int, Callable[[], None]]] = []
        self._count = 0

    def at(self, moment: float, event: Callable[[], None]) -> None:
        """Schedule `event`; `moment` is not before now."""
        self._count += 1
        heapq.heappush(self._scheduled, (moment, self._count, event))

    def run_next(self, state: str) -> None:
        """Run the next event. ProtocolError names `state` when there is none, or after
        MAX_EVENTS."""
        if not self._scheduled or self._count > MAX_EVENTS:
            raise ProtocolError(f"{state} at {self.now:.3f} s", "no further event")
        self.now, _, event = heapq.heappop(self._scheduled)
        event()


@dataclass(frozen=True, slots=True)
class Faults:
    """`cuts`: (start, end) while the link carries nothing; `resets`: the stream breaks;
    `departures`: the cloud says GoingAway."""

    cuts: tuple[tuple[float, float], ...] = ()
    resets: tuple[float, ...] = ()
    departures: tuple[float, ...] = ()

    def plan(
        self,
        time: VirtualTime,
        link: LinkPair,
        reset: Callable[[], None],
        depart: Callable[[], None],
    ) -> None:
        """Schedule them: cuts at `link`, the others as calls."""
        for start, end in self.cuts:
            link.cut(start)
            link.restore(end)
        for moment in self.resets:
            time.at(moment, reset)
        for moment in self.departures:
            time.at(moment, depart)
