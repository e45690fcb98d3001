"""The metrics of a drafter that knows several clouds: where its sessions are, and why they move."""

from prometheus_client import Counter, Gauge

from tandem.telemetry.metric import OTHER, Metric, Series

MOVE_REASONS = ("draining", "lost", "refused")
"""Why sessions move to another cloud."""


class CloudSeries(Series):
    """The clouds of one drafter; its settings name them."""

    LABELS = ("side",)

    cloud_sessions = Metric(
        Gauge, "cloud_sessions", "Sessions of this drafter, by cloud.", more=("cloud",)
    )
    cloud_round_trip = Metric(
        Gauge,
        "cloud_round_trip_seconds",
        "Last measured round-trip time to each cloud, without model time.",
        more=("cloud",),
    )
    cloud_usable = Metric(
        Gauge,
        "cloud_usable",
        "1 if the cloud is serving, 0 if it is not serving or not reachable.",
        more=("cloud",),
    )
    cloud_moves = Metric(
        Counter,
        "cloud_moves_total",
        "Sessions moved to another cloud, by reason: draining, lost, or refused.",
        more=("reason",),
    )

    def knows(self, cloud: str) -> None:
        """Begin the series of a cloud that is named to the drafter."""
        self.holds(cloud, 0)
        self.works(cloud, False)
        for reason in MOVE_REASONS:  # at 0 from the start, so that the first move is a change
            CloudSeries.cloud_moves.child(self, reason=reason)

    def forgets(self, cloud: str) -> None:
        """End the series of a cloud that is named no more."""
        if (name := self._admitted(cloud)) != OTHER:
            for metric in (CloudSeries.cloud_round_trip, CloudSeries.cloud_usable):
                metric.drop(self, cloud=name)

    def holds(self, cloud: str, sessions: int) -> None:
        CloudSeries.cloud_sessions.child(self, cloud=self._admitted(cloud)).set(sessions)

    def asked(self, cloud: str, round_trip_s: float) -> None:
        CloudSeries.cloud_round_trip.child(self, cloud=self._admitted(cloud)).set(round_trip_s)

    def works(self, cloud: str, usable: bool) -> None:
        CloudSeries.cloud_usable.child(self, cloud=self._admitted(cloud)).set(usable)

    def moved(self, reason: str) -> None:
        """Count one move; `reason` is one of MOVE_REASONS."""
        CloudSeries.cloud_moves.child(self, reason=reason).inc()

    def _admitted(self, cloud: str) -> str:
        return self.exported.admit("cloud", cloud)
