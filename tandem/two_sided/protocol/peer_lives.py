"""Signs of life of all other sides of one request, each on its own link. Invariant: the request
needs every one of them, so it is as lost as the one that is missed longest."""

from collections.abc import Sequence

from tandem.specdec.liveness import Liveness, LostCloud


class PeerLives:
    """`lives`: by link; none where nobody is waited for."""

    def __init__(self, lives: Sequence[Liveness]) -> None:
        self._lives = tuple(lives)

    @property
    def goes_on_alone(self) -> bool:
        """Whether the device goes on once a side is given up."""
        return any(life.policy is LostCloud.EDGE for life in self._lives)

    def connected(self, now: float) -> None:
        """There are fresh streams to all."""
        for life in self._lives:
            life.connected(now)

    def received(self, link: int, now: float) -> None:
        """The side at that link sent a frame."""
        if self._lives:
            self._lives[link].received(now)

    def lost(self, now: float, stuck_s: float) -> float:
        """The streams are gone, since one of them is; returns how long the most silent side had
        been silent. For `stuck_s` see `Liveness.lost`."""
        return max((life.lost(now, stuck_s) for life in self._lives), default=0.0)

    def tick(self, now: float) -> None:
        for life in self._lives:
            life.tick(now)

    def pings_due(self, now: float) -> list[tuple[int, int]]:
        """Link and nonce of each ping that is due."""
        due = [(link, life.ping_due(now)) for link, life in enumerate(self._lives)]
        return [(link, nonce) for link, nonce in due if nonce is not None]

    def is_dead(self, now: float) -> bool:
        """Whether a side is, or was given up meanwhile."""
        return self.is_given_up(now) or any(life.is_dead(now) for life in self._lives)

    def is_given_up(self, now: float) -> bool:
        return any(life.is_given_up(now) for life in self._lives)
