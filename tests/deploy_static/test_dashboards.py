"""Dashboards: current, laid out without overlap, and asking only for what is exported."""

from __future__ import annotations

import itertools
import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from tandem.learning.series import LearningSeries
from tandem.telemetry.engine_series import EngineSeries
from tandem.telemetry.metric import metrics_of
from tandem.telemetry.metrics import ALL_METRICS, MethodSeries
from tests.deploy_static.series import complaints, exported, rules
from tests.programs import REPOSITORY, output
from tools.observability.dashboards import DASHBOARDS, substituted
from tools.observability.grafana import (
    ANNOTATIONS,
    COLUMNS,
    SCOPE_VARIABLES,
    Dashboard,
    to_json,
)
from tools.observability.overview import NO_FAILURES
from tools.observability.promql import rate, total

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
def test_panels_do_not_overlap_and_stay_inside(dashboard: Dashboard) -> None:
    taken: set[tuple[int, int]] = set()
    for panel in json.loads(to_json(dashboard))["panels"]:
        place = panel["gridPos"]
        cells = set(
            itertools.product(
                range(place["x"], place["x"] + place["w"]),
                range(place["y"], place["y"] + place["h"]),
            )
        )
        assert place["x"] + place["w"] <= COLUMNS, panel["title"]
        assert not cells & taken, panel["title"]
        taken |= cells


@every_dashboard
def test_every_panel_is_described_and_has_a_unit_and_the_chosen_datasource(
    dashboard: Dashboard,
) -> None:
    numbers = [panel["id"] for panel in json.loads(to_json(dashboard))["panels"]]
    assert len(set(numbers)) == len(numbers)
    for panel in panels(dashboard):
        assert len(panel["description"]) > 10, panel["title"]
        assert panel["fieldConfig"]["defaults"].get("unit") or panel["type"] == "alertlist"
        for target in panel["targets"]:
            assert target["datasource"]["uid"] == "${datasource}"


@every_dashboard
def test_every_number_has_colours_that_change_at_rising_values(dashboard: Dashboard) -> None:
    for panel in panels(dashboard):
        if panel["type"] == "stat":
            first, *rising = panel["fieldConfig"]["defaults"]["thresholds"]["steps"]
            assert first["value"] is None, panel["title"]
            values = [step["value"] for step in rising]
            assert values == sorted(values), panel["title"]


def first_row() -> dict[str, dict[str, Any]]:
    """The panels of the first row of the overview, by title."""
    (overview,) = (dashboard for dashboard in DASHBOARDS if dashboard.uid == "tandem-overview")
    top = panels(overview)[0]["gridPos"]["y"]
    return {each["title"]: each for each in panels(overview) if each["gridPos"]["y"] == top}


def test_the_first_row_of_the_overview_is_latency_throughput_and_failures() -> None:
    row = first_row()
    assert {title: panel["fieldConfig"]["defaults"]["unit"] for title, panel in row.items()} == {
        "TTFT": "s",
        "TPOT": "s",
        "Tokens per second": "suffix: tok/s",
        "Tokens per pass": "none",
        "Failed requests": "percentunit",
    }
    assert sum(panel["gridPos"]["w"] for panel in row.values()) == COLUMNS
    for title in ("TTFT", "TPOT"):
        queries = {each["legendFormat"]: each["expr"] for each in row[title]["targets"]}
        assert list(queries) == ["p50", "p95"]
        assert queries["p50"].startswith("histogram_quantile(0.5, ")
        assert queries["p95"].startswith("histogram_quantile(0.95, ")


@pytest.mark.parametrize(
    ("title", "alert"),
    [
        ("TTFT", "TandemSlowFirstToken"),
        ("TPOT", "TandemSlowTokens"),
        ("Failed requests", "TandemRequestsFail"),
    ],
)
def test_a_number_is_red_where_its_alert_fires(title: str, alert: str) -> None:
    panel = first_row()[title]
    assert alert in panel["description"]
    (condition,) = (rule["expr"] for rule in rules() if rule.get("alert") == alert)
    steps = panel["fieldConfig"]["defaults"]["thresholds"]["steps"]
    red_from = {step["value"] for step in steps if step["color"] == "red"}
    assert red_from == {float(condition.rpartition(" > ")[2])}


@every_dashboard
def test_every_rate_is_over_the_interval_that_fits_the_graph(dashboard: Dashboard) -> None:
    for panel in panels(dashboard):
        for target in panel["targets"]:
            ranges = target["expr"].count("[")
            assert ranges == target["expr"].count("[$__rate_interval]"), panel["title"]
            assert ranges == target["expr"].count("rate("), panel["title"]


@every_dashboard
def test_only_what_is_exported_is_asked_for(dashboard: Dashboard) -> None:
    series = exported()
    for panel in panels(dashboard):
        for target in panel["targets"]:
            assert list(complaints(target["expr"], series)) == [], panel["title"]
    for variable in (*SCOPE_VARIABLES, *dashboard.variables):
        assert variable.label in series[variable.metric], variable.name
        assert re.compile(variable.among).groups == 0, "Grafana takes a group for the value"


def test_annotations_ask_for_what_is_exported() -> None:
    series = exported()
    for name, expression, _ in ANNOTATIONS:
        assert list(complaints(expression, series)) == [], name


def test_failed_is_the_same_share_as_in_the_alerts() -> None:
    rules = (REPOSITORY / "deploy" / "prometheus" / "rules" / "tandem.recording.yml").read_text()
    left_out = set(re.findall(r"tandem_requests_total\{\s*status!~\"([^\"]+)\"", rules))
    assert left_out == {NO_FAILURES}


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


def test_alerts_are_listed_and_money_asks_for_a_price() -> None:
    (fleet,) = (json.loads(to_json(d)) for d in DASHBOARDS if d.uid == "tandem-fleet")
    (alerts,) = (panel for panel in fleet["panels"] if panel["type"] == "alertlist")
    rules = yaml.safe_load(
        (REPOSITORY / "deploy" / "prometheus" / "rules" / "tandem.alerts.yml").read_text()
    )
    names = [rule["alert"] for group in rules["groups"] for rule in group["rules"]]
    assert all(alerts["options"]["alertName"] in name for name in names)
    (price,) = (v for v in fleet["templating"]["list"] if v["type"] == "textbox")
    (saved,) = (panel for panel in fleet["panels"] if panel["title"] == "Money saved per hour")
    assert f"* ${price['name']}" in saved["targets"][0]["expr"]
    assert float(price["current"]["value"]) > 0


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


def test_a_label_or_rate_that_cannot_be_is_refused_where_it_is_written() -> None:
    with pytest.raises(ValueError, match="tandem_kv_bytes: has no label preset"):
        total(EngineSeries.kv_bytes, "preset", {})
    with pytest.raises(ValueError, match="is a Gauge, not a Counter"):
        rate(EngineSeries.kv_bytes, "", {})
    assert rate(MethodSeries.tokens, "preset", {"side": "!cloud"}) == (
        'sum by (preset) (rate(tandem_tokens_total{cluster=~"$cluster",namespace=~"$namespace",'
        'instance=~"$instance",side!~"cloud"}[$__rate_interval]))'
    )
