"""Metrics: each is declared once as an attribute of a series, and exported under its labels.
Invariant: label values are bounded; beyond the limit a name is counted as "other", so no caller can
make the number of series grow without end."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from contextlib import suppress
from typing import Any, ClassVar, Generic, Self, TypeVar, cast, overload

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

PREFIX = "tandem_"
OTHER = "other"
MAX_LABEL_VALUES = 64
"""Distinct values one label may take before further ones are counted as "other"."""

TOKEN_BUCKETS_S = (
    *(0.0005, 0.001, 0.002, 0.003, 0.005, 0.0075, 0.01, 0.015, 0.02, 0.03),
    *(0.04, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 0.75, 1.0, 2.5, 5.0),
)
"""One token, one forward pass or one round trip: half a millisecond to a stalled link."""

COUNT_BUCKETS = (0.0, 1.0, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0, 16.0, 24.0, 32.0, 64.0)
"""Small whole numbers: tokens of a window, jobs of a pass."""

REQUEST_BUCKETS_S = (
    *(0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0),
    *(7.5, 10.0, 15.0, 20.0, 30.0, 60.0, 120.0, 300.0, 600.0),
)
"""A whole request, or its time to the first token."""

Family = TypeVar("Family", Histogram, Counter, Gauge)


class Metric(Generic[Family]):
    """One declared metric. As an attribute of a series it is that series' child, made on first use.
    `more` names labels beyond the series' own; such a metric is reached with `child`."""

    labels: tuple[str, ...]
    """Every label it is exported with."""

    def __init__(
        self,
        kind: type[Family],
        name: str,
        meaning: str,
        *,
        buckets: tuple[float, ...] | None = None,
        more: tuple[str, ...] = (),
    ) -> None:
        self.name = PREFIX + name
        self.kind: type[Family] = kind
        self._meaning = meaning
        self._options: dict[str, Any] = {} if buckets is None else {"buckets": buckets}
        self._more = more

    def __set_name__(self, owner: type[Series], attribute: str) -> None:
        self._attribute = attribute
        self.labels = (*owner.LABELS, *self._more)

    @overload
    def __get__(self, series: None, owner: type[Series]) -> Self: ...
    @overload
    def __get__(self, series: Series, owner: type[Series]) -> Family: ...
    def __get__(self, series: Series | None, owner: type[Series]) -> Self | Family:
        if series is None:
            return self
        child = self.child(series)
        # The instance's own attribute shadows this descriptor from now on: no further look-ups.
        series.__dict__[self._attribute] = child
        return child

    def child(self, series: Series, **more: str) -> Family:
        """Return the child for the series' labels and `more`, which replaces a label of the same
        name."""
        return cast(Family, series.exported.families[self.name]).labels(**series.labels | more)

    def drop(self, series: Series, **more: str) -> None:
        """Export that child no more."""
        labels = series.labels | more
        family = cast(Family, series.exported.families[self.name])
        with suppress(KeyError):
            family.remove(*(labels[name] for name in self.labels))

    def make_family(self, registry: CollectorRegistry) -> Family:
        return self.kind(self.name, self._meaning, self.labels, registry=registry, **self._options)

    @property
    def sample_names(self) -> tuple[str, ...]:
        """The names of what is scraped."""
        if self.kind is Histogram:
            return tuple(f"{self.name}_{part}" for part in ("bucket", "count", "sum"))
        return (self.name,)


class Exported:
    """The metrics of one process, registered once, and the label values they have taken."""

    def __init__(self, registry: CollectorRegistry, metrics: Iterable[Metric[Any]]) -> None:
        self._registry = registry
        self.families: dict[str, object] = {}
        self.add(metrics)
        self._admitted: dict[str, set[str]] = {}
        self._admitting = threading.Lock()

    def add(self, metrics: Iterable[Metric[Any]]) -> None:
        """Export these as well."""
        for metric in metrics:
            if metric.name not in self.families:
                self.families[metric.name] = metric.make_family(self._registry)

    def admit(self, label: str, name: str) -> str:
        """Return `name` while `label` has taken fewer than `MAX_LABEL_VALUES` values, else
        "other"."""
        with self._admitting:
            admitted = self._admitted.setdefault(label, set())
            if name not in admitted and len(admitted) >= MAX_LABEL_VALUES:
                return OTHER
            admitted.add(name)
            return name


class Series:
    """The metrics of one label set; those there are stand in `metrics`."""

    LABELS: ClassVar[tuple[str, ...]]

    def __init__(self, exported: Exported, labels: dict[str, str]) -> None:
        self.exported = exported
        self.labels = labels

    def count(self, metric: Metric[Counter], label: str, name: str) -> None:
        """Count one under `name`: a fixed word, never free text."""
        metric.child(self, **{label: self.exported.admit(label, name)}).inc()


def metrics_of(series: type[Series]) -> list[Metric[Any]]:
    """Return the metrics that a kind of series declares."""
    return [each for each in vars(series).values() if isinstance(each, Metric)]
