"""How many sessions a service holds, and how many bytes of keys and values they may take.

Invariant: what is reserved is given back exactly once. Must not import torch.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from tandem.core.errors import ResourceExhausted


class Admission:
    """Counts reservations of sessions; used on the event loop only."""

    def __init__(self, max_sessions: int, kv_budget_bytes: int) -> None:
        self.sessions = 0
        self.kv_bytes = 0
        self.kv_budget_bytes = kv_budget_bytes
        self._max_sessions = max_sessions

    @contextmanager
    def reserve(self, kv_bytes: int) -> Iterator[None]:
        """Room for one session, or ResourceExhausted saying which limit was met."""
        if self.sessions >= self._max_sessions:
            raise ResourceExhausted(f"sessions: all {self._max_sessions} are taken; try again")
        if self.kv_bytes + kv_bytes > self.kv_budget_bytes:
            raise ResourceExhausted(
                f"kv budget: {kv_bytes} bytes wanted, "
                f"{self.kv_budget_bytes - self.kv_bytes} of {self.kv_budget_bytes} free"
            )
        self.sessions += 1
        self.kv_bytes += kv_bytes
        try:
            yield
        finally:
            self.sessions -= 1
            self.kv_bytes -= kv_bytes
