"""How long an engine's passes took during a run, as its service's own metrics tell.

Invariant: passes that were cut short do not count.
"""

from __future__ import annotations

from dataclasses import dataclass
from urllib.request import urlopen

from prometheus_client.parser import text_string_to_metric_families

from tandem.telemetry.engine_series import EngineSeries

TIMEOUT_S = 5.0


@dataclass(frozen=True, slots=True)
class PassSums:
    """Passes so far, and their seconds."""

    passes: float
    seconds: float

    def __add__(self, other: PassSums) -> PassSums:
        return PassSums(self.passes + other.passes, self.seconds + other.seconds)

    def __sub__(self, before: PassSums) -> PassSums:
        return PassSums(self.passes - before.passes, self.seconds - before.seconds)

    @property
    def mean_s(self) -> float | None:
        """The mean of the passes; None where there were none."""
        return self.seconds / self.passes if self.passes else None


def pass_sums(metrics_address: str) -> PassSums:
    """Return the sums of the engine whose service has its metrics at `metrics_address`,
    HOST:PORT."""
    with urlopen(f"http://{metrics_address}/metrics", timeout=TIMEOUT_S) as answer:
        exposition = answer.read().decode()
    sums = {"_count": 0.0, "_sum": 0.0}
    name = EngineSeries.engine_pass.name
    for family in text_string_to_metric_families(exposition):
        for sample in family.samples:
            for ending in sums:
                if sample.name == name + ending:
                    sums[ending] += sample.value
    return PassSums(sums["_count"], sums["_sum"])
