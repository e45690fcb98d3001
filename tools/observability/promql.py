"""PromQL over declared metrics.

Invariant: a label that a metric does not have, or a rate of something that is no counter, is
a ValueError here, and not an empty panel later.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from prometheus_client import Counter, Gauge, Histogram

from tandem.telemetry.metric import Metric

ChosenLabels = Mapping[str, str]

PRESET: ChosenLabels = {"preset": "$preset"}
MODEL: ChosenLabels = {"model_name": "$model"}
PRESET_AND_MODEL: ChosenLabels = {**PRESET, **MODEL}

SCOPE = {
    "cluster": "$cluster",
    "namespace": "$namespace",
    "instance": "$instance",
}
"""What every query is narrowed to: labels that Prometheus adds where it scrapes. One that a series
lacks, as outside of Kubernetes, is matched by "All"."""

RANGE = "$__rate_interval"
"""Grafana's: at least four scrapes, at most what the width of the graph shows anyhow."""


def rate(metric: Metric[Any], by: str = "", where: ChosenLabels = PRESET_AND_MODEL) -> str:
    """Per second, summed over all labels but `by` (comma-separated)."""
    _check(metric, Counter, by, where)
    return _sum(f"rate({metric.name}{_matching(where)}[{RANGE}])", by)


def total(metric: Metric[Any], by: str = "", where: ChosenLabels = PRESET_AND_MODEL) -> str:
    """The sum of a gauge over all labels but `by`."""
    _check(metric, Gauge, by, where)
    return _sum(f"{metric.name}{_matching(where)}", by)


def average(metric: Metric[Any], by: str, where: ChosenLabels = PRESET_AND_MODEL) -> str:
    """The average of a gauge over all labels but `by`."""
    _check(metric, Gauge, by, where)
    return f"avg by ({by}) ({metric.name}{_matching(where)})"


def quantile(
    share: float, metric: Metric[Any], by: str = "", where: ChosenLabels = PRESET_AND_MODEL
) -> str:
    """A quantile of a histogram's observations."""
    _check(metric, Histogram, by, where)
    by_bucket = f"{by}, le" if by else "le"
    buckets = _sum(f"rate({metric.name}_bucket{_matching(where)}[{RANGE}])", by_bucket)
    return f"histogram_quantile({share:g}, {buckets})"


def mean(metric: Metric[Any], by: str = "", where: ChosenLabels = PRESET_AND_MODEL) -> str:
    """The mean of a histogram's observations."""
    return ratio(time_share(metric, by, where), observations(metric, by, where))


def observations(metric: Metric[Any], by: str = "", where: ChosenLabels = PRESET_AND_MODEL) -> str:
    """A histogram's observations per second."""
    _check(metric, Histogram, by, where)
    return _sum(f"rate({metric.name}_count{_matching(where)}[{RANGE}])", by)


def time_share(metric: Metric[Any], by: str = "", where: ChosenLabels = PRESET_AND_MODEL) -> str:
    """The sum of a histogram's observations per second: of durations, the share of time."""
    _check(metric, Histogram, by, where)
    return _sum(f"rate({metric.name}_sum{_matching(where)}[{RANGE}])", by)


def ratio(part: str, whole: str) -> str:
    """One divided by the other, label by label."""
    return f"{part} / {whole}"


def scoped(name: str, where: ChosenLabels) -> str:
    """A series by its full name, narrowed like all others."""
    return f"{name}{_matching(where)}"


def or_zero(expression: str) -> str:
    """0 where there is nothing, as before the first of something that is counted."""
    return f"({expression} or vector(0))"


def _sum(inner: str, by: str) -> str:
    return f"sum by ({by}) ({inner})" if by else f"sum({inner})"


def _matching(where: ChosenLabels) -> str:
    """A leading ! stands for not."""
    terms = [
        f'{label}!~"{wanted[1:]}"' if wanted.startswith("!") else f'{label}=~"{wanted}"'
        for label, wanted in (SCOPE | dict(where)).items()
    ]
    return "{" + ",".join(terms) + "}"


def _check(metric: Metric[Any], kind: type, by: str, where: ChosenLabels) -> None:
    if metric.kind is not kind:
        raise ValueError(f"{metric.name}: is a {metric.kind.__name__}, not a {kind.__name__}")
    named = {label.strip() for label in by.split(",") if label} | set(where)
    if unknown := named - {*metric.labels, *TARGET_LABELS}:
        raise ValueError(f"{metric.name}: has no label {', '.join(sorted(unknown))}")


TARGET_LABELS = ("job", "instance", "service", "cluster", "namespace")
"""Added to everything that is scraped: the first two by Prometheus, `service` by deploy/prometheus
and, in Kubernetes, by the Prometheus operator, as `namespace`; `cluster` by the chart."""
