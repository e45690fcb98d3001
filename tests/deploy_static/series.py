"""Which series there are, and which ones an expression asks for."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import yaml
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from tandem.learning.series import LearningSeries
from tandem.telemetry.metric import metrics_of
from tandem.telemetry.metrics import ALL_METRICS, new_registry
from tests.programs import REPOSITORY

FOLDER = REPOSITORY / "deploy" / "prometheus" / "rules"
FILES = sorted(FOLDER.glob("*.yml"))

TARGET = frozenset(
    {"job", "instance", "service", "suite", "release", "cluster", "namespace", "pod"}
)
"""Labels that are added to everything that is scraped."""


def exported() -> dict[str, frozenset[str]]:
    """Labels by sample name: what the code declares, what the process itself reports, and what
    Prometheus adds."""
    series = {"up": TARGET, "ALERTS": TARGET | {"alertname", "alertstate", "severity"}}
    for metric in (*ALL_METRICS, *metrics_of(LearningSeries)):
        for name in metric.sample_names:
            bucket = {"le"} if name.endswith("_bucket") else set()
            series[name] = frozenset({*metric.labels, *bucket}) | TARGET
    for family in text_string_to_metric_families(generate_latest(new_registry()).decode()):
        series |= {sample.name: TARGET for sample in family.samples}
    return series


@cache
def rules() -> tuple[dict[str, Any], ...]:
    """Every recording and alert rule."""
    groups = [group for file in FILES for group in yaml.safe_load(file.read_text())["groups"]]
    return tuple(rule for group in groups for rule in group["rules"])


@cache
def recorded() -> dict[str, frozenset[str]]:
    """Recorded names with the labels that their own expression groups by."""
    groupings = {
        rule["record"]: re.findall(r"\bby \(([^)]*)\)", rule["expr"])
        for rule in rules()
        if "record" in rule
    }
    assert all(groupings.values()), "a recorded series must say by what it is grouped"
    return {
        name: frozenset(label.strip() for group in groups for label in group.split(",")) - {"le"}
        for name, groups in groupings.items()
    }


@dataclass(frozen=True, slots=True)
class Complaint:
    """What an expression asks for in vain."""

    asked: str
    why: str


def complaints(expression: str, series: Mapping[str, frozenset[str]]) -> Iterator[Complaint]:
    """Names that are not in `series`, labels that a selector's metric lacks, and labels grouped by
    that none of the expression's metrics has."""
    text = re.sub(r"\[[^\]]*\]", "", expression)
    groupings = re.findall(rf"\b(?:{_GROUPING})\s*\(([^)]*)\)", text)
    text = re.sub(rf"\b(?:{_GROUPING})\s*\([^)]*\)", " ", text)
    seen = set(re.findall(r'\blabel_replace\(\s*[\w:]+,\s*"(\w+)"', text))
    for name, _, matchers in _SELECTOR.findall(text):
        if name in _WORDS:
            continue
        if name not in series:
            yield Complaint(name, "is not exported")
            continue
        seen |= series[name]
        for label in re.findall(r"([a-zA-Z_]\w*)\s*(?:=~|!~|!=|=)", matchers):
            if label not in series[name]:
                yield Complaint(f"{name}{{{label}}}", "the metric has no such label")
    for label in (label.strip() for group in groupings for label in group.split(",")):
        if label and label not in seen:
            yield Complaint(label, "nothing here has such a label to group by")


_GROUPING = "by|without|on|ignoring|group_left|group_right"
_WORDS = frozenset({"and", "or", "unless", "bool", "offset", "inf", "nan"})
# A name that is not a function, with its matchers if it has any.
_SELECTOR = re.compile(r"(?<![\w:.$\"])([a-zA-Z_:][\w:]*)\b(?!\s*\()\s*(\{([^}]*)\})?")
