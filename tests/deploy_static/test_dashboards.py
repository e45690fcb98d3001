"""Dashboards: current, laid out without overlap, and asking only for what is exported."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tandem.learning.series import LearningSeries
from tandem.telemetry.metric import metrics_of
from tandem.telemetry.metrics import ALL_METRICS
from tests.deploy_static.series import complaints, exported
from tests.programs import REPOSITORY, output
from tools.observability.dashboards import DASHBOARDS, substituted
from tools.observability.grafana import (
    SCOPE_VARIABLES,
    Dashboard,
    to_json,
)

FOLDER = REPOSITORY / "deploy" / "dashboards"

every_dashboard = pytest.mark.parametrize("dashboard", DASHBOARDS, ids=lambda d: d.uid)


def panels(dashboard: Dashboard) -> list[dict[str, Any]]:
    model = json.loads(to_json(dashboard))
    return [panel for panel in model["panels"] if panel["type"] != "row"]


def test_what_is_checked_in_is_what_the_code_makes() -> None:
    made = {f"{dashboard.uid}.json": to_json(dashboard) for dashboard in DASHBOARDS}
    found = {path.name: path.read_text(encoding="utf-8") for path in FOLDER.glob("*.json")}
    assert found == made, "run 'make dashboards'"


@every_dashboard
def test_only_what_is_exported_is_asked_for(dashboard: Dashboard) -> None:
    series = exported()
    for panel in panels(dashboard):
        for target in panel["targets"]:
            assert list(complaints(target["expr"], series)) == [], panel["title"]
    for variable in (*SCOPE_VARIABLES, *dashboard.variables):
        assert variable.label in series[variable.metric], variable.name
        assert re.compile(variable.among).groups == 0, "Grafana takes a group for the value"


@every_dashboard
def test_every_variable_is_used_and_every_used_one_declared(dashboard: Dashboard) -> None:
    text = " ".join(target["expr"] for panel in panels(dashboard) for target in panel["targets"])
    declared = {choice.name for choice in dashboard.choices}
    used = set(re.findall(r"\$([a-z]\w*)", text)) - {"__rate_interval"}
    assert used == declared


@every_dashboard
def test_every_query_is_narrowed_to_what_is_chosen_at_the_top(dashboard: Dashboard) -> None:
    """Cluster, namespace and instance, whatever else a panel shows."""
    for panel in panels(dashboard):
        for target in panel["targets"]:
            for name, matchers in re.findall(
                r"\b((?:tandem|process)_\w+|up|ALERTS)(\{[^}]*\})?", target["expr"]
            ):
                for label in ("cluster", "namespace", "instance"):
                    assert f'{label}=~"${label}"' in matchers, (panel["title"], name)


def test_every_metric_is_shown_somewhere() -> None:
    queries = [query for dashboard in DASHBOARDS for query in substituted(dashboard)]
    asked = set(re.findall(r"\btandem_\w+", " ".join(queries)))
    every = (*ALL_METRICS, *metrics_of(LearningSeries))
    hidden = {metric.name for metric in every if not asked & set(metric.sample_names)}
    assert hidden == {"tandem_build_info"}  # an annotation shows it


def test_prometheus_can_read_every_query(tmp_path: Path) -> None:
    rules = [
        {"record": f"query:{number}", "expr": expression}
        for number, expression in enumerate(
            expression for dashboard in DASHBOARDS for expression in substituted(dashboard)
        )
    ]
    assert len(rules) > 60
    file = tmp_path / "queries.yml"  # JSON is YAML
    groups = {"groups": [{"name": "dashboards", "rules": rules}]}
    file.write_text(json.dumps(groups), encoding="utf-8")
    assert f"{len(rules)} rules found" in output("promtool", "check", "rules", file)
