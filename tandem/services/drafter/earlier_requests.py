"""What a request of the drafter knows as it begins: what this process's last requests measured, or
what a Prometheus server knows of all edges and replicas. Invariant: of two that know a number, the
fresher is believed, wherever it comes from."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tandem.specdec.profile import NOTHING_EARLIER, Earlier, Profile
from tandem.telemetry.prometheus_server import (
    ACCEPTANCE,
    DRAFT_STEP,
    QUEUE,
    ROUND_TRIP,
    VERIFY_STEP,
    Aged,
    Sample,
    freshest,
    mean_of,
)

_SURE_TRIPS = 8
"""Of fewer round trips the shortest may have waited for a pass."""
_KEEP = 0.8
"""What an earlier request counts for beside the next one."""


class EarlierRequests:
    """Of the draft model `engine`, at the target the drafter heard last. `samples` are the
    server's; `instance` is how it calls this process, "" where nobody said."""

    def __init__(
        self,
        engine: str,
        instance: str = "",
        samples: Callable[[], Sequence[Sample]] = lambda: (),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._engine, self._instance = engine, instance
        self._samples, self._clock = samples, clock
        self._target_name = ""
        self._forget()

    def _forget(self) -> None:
        self._draft, self._pass, self._trip, self._queue = _Mean(), _Mean(), _Mean(), _Mean()
        self._acceptance: dict[str, _Mean] = {}
        self._last = NOTHING_EARLIER
        """Of the last request that chose its schedule."""

    def ended(self, preset: str, target_name: str, profile: Profile) -> None:
        """A request ended that measured this; `preset` is the name of one that is listed."""
        if target_name != self._target_name:
            self._forget()
            self._target_name = target_name
        now, own = self._clock(), profile.own
        self._draft.add(own.draft_s, now)
        self._pass.add(own.verify_s, now)
        self._trip.add(own.rtt_s, now, min(1.0, len(profile.trips_s) / _SURE_TRIPS))
        self._queue.add(own.queue_s, now)
        acceptance = self._acceptance.setdefault(preset, _Mean())
        acceptance.add(own.acceptance_rate, now, profile.judged_tokens)
        if own.seen:
            self._last = own

    def known(self, preset: str) -> Earlier:
        """As of now, for a request of this preset."""
        now, samples = self._clock(), self._samples()
        pair = {"engine": self._engine, "model_name": self._target_name, "preset": preset}
        target = {"model_name": self._target_name}
        here = {"instance": self._instance}
        own = self._acceptance.get(preset, _Mean())
        return Earlier(
            freshest(
                self._draft.aged(now),
                mean_of(samples, DRAFT_STEP, {"engine": self._engine, "side": "device"}, here),
            ),
            freshest(self._pass.aged(now), mean_of(samples, VERIFY_STEP, target)),
            freshest(self._trip.aged(now), mean_of(samples, ROUND_TRIP, target, here)),
            freshest(own.aged(now), mean_of(samples, ACCEPTANCE, pair)),
            freshest(self._queue.aged(now), mean_of(samples, QUEUE, target)),
            self._last.branching,
            self._last.undrafted,
            self._last.further_share,
            self._last.trips,
            self._last.seen,
        )


@dataclass(slots=True)
class _Mean:
    """Of the last requests; nothing before the first."""

    total: float = 0.0
    weight: float = 0.0
    at_s: float = 0.0

    def add(self, value: float | None, now: float, weight: float = 1.0) -> None:
        if value is not None and weight > 0:
            self.total = _KEEP * self.total + weight * value
            self.weight = _KEEP * self.weight + weight
            self.at_s = now

    def aged(self, now: float) -> Aged | None:
        return Aged(self.total / self.weight, now - self.at_s) if self.weight else None
