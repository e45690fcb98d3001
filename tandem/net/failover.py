"""Several services of which any will do, in the order in which their owner wants them used: calls
go to the first healthy one. Pure: times are the caller's `now`."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

FAILURES = 2
SUCCESSES = 2
"""Health checks in a row without an answer that make a service unhealthy, and answers after a loss
that make it healthy again."""


@dataclass(slots=True)
class _Health:
    serving: bool | None = None
    """What it answered last; None before the first answer."""
    down: bool = False
    """Whether it was lost, and has not answered often enough since."""
    failures: int = 0
    successes: int = 0
    failed_s: float = float("-inf")

    @property
    def healthy(self) -> bool:
        return self.serving is True and not self.down

    @property
    def doubt(self) -> tuple[bool, float]:
        """Order among services that are not healthy: one that does not answer, or says that it
        does not serve, is worse than one that was just lost."""
        return self.serving is False or self.failures >= FAILURES, self.failed_s


class Failover:
    """The order of the services, by address, and the health of each."""

    def __init__(self, addresses: Sequence[str]) -> None:
        """Begin with services of which nothing is known. `addresses`: at least one."""
        self._health = {address: _Health() for address in addresses}

    @property
    def addresses(self) -> tuple[str, ...]:
        return tuple(self._health)

    def replace(self, addresses: Sequence[str]) -> None:
        """Use these services from now on; what is known of those that stay is kept."""
        known = self._health
        self._health = {address: known.get(address) or _Health() for address in addresses}

    def is_healthy(self, address: str) -> bool:
        health = self._health.get(address)
        return health is not None and health.healthy

    def choose(self, refused: Collection[str] = ()) -> str:
        """Return the first healthy service that is none of `refused`. Where none is, one of which
        nothing is known, else the one that failed the longest ago."""
        left = [address for address in self._health if address not in refused]
        return self._ranked(left or self.addresses)[0]

    def ranked(self) -> list[str]:
        """Return every service in the order in which they would be used."""
        return self._ranked(self.addresses)

    def answered(self, address: str, serving: bool) -> None:
        """Record the answer to a health check."""
        if (health := self._health.get(address)) is None:
            return
        health.serving = serving
        health.failures = 0
        health.successes = health.successes + 1 if serving else 0
        if health.successes >= SUCCESSES:
            health.down = False

    def unanswered(self, address: str, now: float) -> None:
        """Record that a health check got no answer."""
        if (health := self._health.get(address)) is None:
            return
        health.failures += 1
        health.successes = 0
        if health.failures >= FAILURES or not health.serving:
            self.lost(address, now)

    def lost(self, address: str, now: float) -> None:
        """Record that a call to it broke, that it was silent for too long, or asked to be left."""
        if (health := self._health.get(address)) is not None:
            health.down = True
            health.successes = 0
            health.failed_s = now

    def _ranked(self, addresses: Sequence[str]) -> list[str]:
        healthy = [address for address in addresses if self._health[address].healthy]
        others = [address for address in addresses if not self._health[address].healthy]
        return healthy + sorted(others, key=lambda address: self._health[address].doubt)
