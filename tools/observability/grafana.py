"""Dashboards as values, and their JSON.

Invariant: panels flow left to right over 24 columns and never overlap; the JSON is a function of
the value alone, so that what is checked in can be compared.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

COLUMNS = 24
SCHEMA_VERSION = 39
"""Of Grafana 11; newer ones migrate it when they load it."""

DATASOURCE = {"type": "prometheus", "uid": "${datasource}"}
TAG = "tandem"

_HERE = 'cluster=~"$cluster",namespace=~"$namespace",instance=~"$instance"'
ANNOTATIONS = (
    (
        "Restarts",
        f'changes(process_start_time_seconds{{suite="tandem",{_HERE}}}[2m]) > 0',
        "{{service}} restarted",
    ),
    (
        "Versions",
        f"tandem_build_info{{{_HERE}}} unless tandem_build_info offset 5m",
        "{{service}} runs {{version}}",
    ),
)
"""Marks on every graph: name, PromQL that holds when it happened, text."""

Kind = Literal["timeseries", "stat", "alertlist"]
Colour = Literal["text", "green", "yellow", "red"]
"""Of a number; `text` is that of all other text, for numbers that are neither good nor bad."""


@dataclass(frozen=True, slots=True)
class Query:
    """PromQL and what its lines are called; `{{label}}` stands for a label's value."""

    expression: str
    legend: str


@dataclass(frozen=True, slots=True)
class Threshold:
    """A colour from this value on."""

    colour: Colour
    value: float


@dataclass(frozen=True, slots=True)
class Panel:
    """One graph. `unit` is one of Grafana's; `description` says what to make of it. Below the first
    of the rising `thresholds` its number is of the colour `lowest`; a graph over time has them as
    dashed lines. A list of alerts has neither unit nor queries."""

    title: str
    description: str
    unit: str
    queries: tuple[Query, ...]
    kind: Kind = "timeseries"
    width: int = 8
    height: int = 8
    stacked: bool = False
    highest: float | None = None
    lowest: Colour = "text"
    thresholds: tuple[Threshold, ...] = ()


@dataclass(frozen=True, slots=True)
class Row:
    """Panels under a heading."""

    title: str
    panels: tuple[Panel, ...]


@dataclass(frozen=True, slots=True)
class Variable:
    """A choice at the top: the values that `label` has in `metric`, as far as they match `among`,
    all of them at first."""

    name: str
    label: str
    metric: str
    shown: str
    among: str = ".*"


@dataclass(frozen=True, slots=True)
class Number:
    """A number that whoever looks writes at the top."""

    name: str
    shown: str
    among: str


@dataclass(frozen=True, slots=True)
class Dashboard:
    """`uid` names the file and the address. `variables` are its own, beside SCOPE_VARIABLES."""

    uid: str
    title: str
    description: str
    variables: tuple[Variable, ...]
    rows: tuple[Row, ...]
    numbers: tuple[Number, ...] = ()

    @property
    def choices(self) -> tuple[Variable | Number, ...]:
        """All that can be chosen at the top but the data source."""
        return (*SCOPE_VARIABLES, *self.variables, *self.numbers)


SCOPE_VARIABLES = (
    Variable("cluster", "cluster", "tandem_build_info", "Cluster"),
    Variable("namespace", "namespace", "tandem_build_info", "Namespace"),
    Variable("instance", "instance", "tandem_build_info", "Instance"),
)
"""Where to look, at the top of every dashboard."""


def to_json(dashboard: Dashboard) -> str:
    """What Grafana imports, ending in a newline."""
    return json.dumps(_model(dashboard), indent=2, ensure_ascii=False) + "\n"


def _model(dashboard: Dashboard) -> dict[str, Any]:
    return {
        "uid": dashboard.uid,
        "title": dashboard.title,
        "description": dashboard.description,
        "tags": [TAG],
        "schemaVersion": SCHEMA_VERSION,
        "editable": True,
        "graphTooltip": 1,
        "refresh": "10s",
        "time": {"from": "now-30m", "to": "now"},
        "timezone": "browser",
        "links": [_links_to_others()],
        "annotations": {"list": [_annotation(*one) for one in ANNOTATIONS]},
        "templating": {
            "list": [
                _datasource(),
                *map(_variable, (*SCOPE_VARIABLES, *dashboard.variables)),
                *map(_number, dashboard.numbers),
            ]
        },
        "panels": list(_panels(dashboard)),
    }


def _panels(dashboard: Dashboard) -> Iterator[dict[str, Any]]:
    number = 0
    y = 0
    for row in dashboard.rows:
        number += 1
        place = {"x": 0, "y": y, "w": COLUMNS, "h": 1}
        yield {
            "id": number,
            "type": "row",
            "title": row.title,
            "collapsed": False,
            "gridPos": place,
            "panels": [],
        }
        x, y, line_height = 0, y + 1, 0
        for panel in row.panels:
            if x + panel.width > COLUMNS:
                x, y, line_height = 0, y + line_height, 0
            number += 1
            yield _panel(number, panel, {"x": x, "y": y, "w": panel.width, "h": panel.height})
            x, line_height = x + panel.width, max(line_height, panel.height)
        y += line_height


def _panel(number: int, panel: Panel, place: dict[str, int]) -> dict[str, Any]:
    defaults: dict[str, Any] = {"unit": panel.unit} if panel.unit else {}
    if panel.highest is not None:
        defaults |= {"min": 0, "max": panel.highest}
    if panel.kind == "stat" or panel.thresholds:
        defaults["thresholds"] = {"mode": "absolute", "steps": _steps(panel)}
    if panel.kind == "timeseries":
        stacking = {"mode": "normal" if panel.stacked else "none", "group": "A"}
        defaults["custom"] = {
            "drawStyle": "line",
            "lineWidth": 1,
            "fillOpacity": 20 if panel.stacked else 0,
            "showPoints": "never",
            "spanNulls": False,
            "axisSoftMin": 0,  # what only grows and shrinks above zero is not magnified
            "stacking": stacking,
        }
        if panel.thresholds:
            defaults["custom"]["thresholdsStyle"] = {"mode": "dashed"}
    return {
        "id": number,
        "type": panel.kind,
        "title": panel.title,
        "description": panel.description,
        "datasource": DATASOURCE,
        "gridPos": place,
        "fieldConfig": {"defaults": defaults, "overrides": []},
        "options": _OPTIONS[panel.kind],
        "targets": [
            {
                "refId": chr(ord("A") + index),
                "datasource": DATASOURCE,
                "editorMode": "code",
                "range": True,
                "expr": query.expression,
                "legendFormat": query.legend,
            }
            for index, query in enumerate(panel.queries)
        ],
    }


def _steps(panel: Panel) -> list[dict[str, Any]]:
    """The colours of a number. Without any, Grafana's own turn red at 80."""
    rising = ({"color": each.colour, "value": each.value} for each in panel.thresholds)
    return [{"color": panel.lowest, "value": None}, *rising]


_OPTIONS: dict[Kind, dict[str, Any]] = {
    "timeseries": {
        "legend": {"displayMode": "list", "placement": "bottom", "showLegend": True},
        "tooltip": {"mode": "multi", "sort": "desc"},
    },
    "stat": {
        "colorMode": "value",
        "graphMode": "area",
        "reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False},
        "textMode": "auto",
    },
    "alertlist": {
        "viewMode": "list",
        "groupMode": "default",
        "groupBy": [],
        "alertName": "Tandem",
        "dashboardAlerts": False,
        "maxItems": 20,
        "sortOrder": 3,  # by importance
        "stateFilter": {"firing": True, "pending": True, "noData": False, "error": True},
    },
}


def _datasource() -> dict[str, Any]:
    return {
        "name": "datasource",
        "label": "Datasource",
        "type": "datasource",
        "query": DATASOURCE["type"],
    }


def _variable(variable: Variable) -> dict[str, Any]:
    query = f"label_values({variable.metric}, {variable.label})"
    return {
        "name": variable.name,
        "label": variable.shown,
        "type": "query",
        "datasource": DATASOURCE,
        "query": {"query": query, "refId": f"variable-{variable.name}"},
        "definition": query,
        "regex": f"/^{variable.among}$/",
        "refresh": 2,  # when the time range changes: presets and models come and go
        "sort": 1,
        "multi": True,
        "includeAll": True,
        # What "All" stands for; a list of the values would leave out series that come later.
        "allValue": variable.among,
        "current": {"text": ["All"], "value": ["$__all"]},
    }


def _number(number: Number) -> dict[str, Any]:
    chosen = {"text": number.among, "value": number.among}
    return {
        "name": number.name,
        "label": number.shown,
        "type": "textbox",
        "query": number.among,
        "current": chosen,
        "options": [{**chosen, "selected": True}],
    }


def _annotation(name: str, expression: str, text: str) -> dict[str, Any]:
    return {
        "name": name,
        "datasource": DATASOURCE,
        "enable": True,
        "iconColor": "orange",
        "expr": expression,
        "step": "30s",
        "titleFormat": text,
    }


def _links_to_others() -> dict[str, Any]:
    return {
        "type": "dashboards",
        "title": "Tandem",
        "tags": [TAG],
        "asDropdown": False,
        "includeVars": True,
        "keepTime": True,
    }
