"""A simulation's time: what is to happen, in order, without a clock.

Invariant: what is due at the same moment happens in the order it was planned in. Must not import
asyncio, grpc, torch or time.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable

from tandem.core.errors import ProtocolError

MAX_EVENTS = 1_000_000


class VirtualTime:
    """Seconds since the simulation began, and all that is planned."""

    def __init__(self) -> None:
        self.now = 0.0
        self._planned: list[tuple[float, int, Callable[[], None]]] = []
        self._count = 0

    def at(self, moment: float, happen: Callable[[], None]) -> None:
        """Plan `happen`; `moment` is not before now."""
        self._count += 1
        heapq.heappush(self._planned, (moment, self._count, happen))

    def go_on(self, state: str) -> None:
        """Let the next thing happen. Raises ProtocolError in `state` where nothing is planned, or
        far too much has been."""
        if not self._planned or self._count > MAX_EVENTS:
            raise ProtocolError(f"{state} at {self.now:.3f} s", "no further event")
        self.now, _, happen = heapq.heappop(self._planned)
        happen()
