"""Dashboards: current, laid out without overlap, and asking only for what is exported."""

from __future__ import annotations

import itertools
import json
import re
from pathlib import Path
from typing import Any

import pytest

from tandem.telemetry.engine_series import EngineSeries
from tandem.telemetry.metrics import MethodSeries
from tests.deploy_static.series import complaints, exported
from tests.programs import REPOSITORY, output
from tools.observability.dashboards import DASHBOARDS, substituted
from tools.observability.grafana import ANNOTATIONS, COLUMNS, Dashboard, to_json
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
        assert panel["fieldConfig"]["defaults"]["unit"], panel["title"]
        for target in panel["targets"]:
            assert target["datasource"]["uid"] == "${datasource}"


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
    for variable in dashboard.variables:
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
    declared = {variable.name for variable in dashboard.variables}
    used = {name for name in ("preset", "model", "service") if f"${name}" in text}
    assert used == declared


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
        'sum by (preset) (rate(tandem_tokens_total{side!~"cloud"}[$__rate_interval]))'
    )
