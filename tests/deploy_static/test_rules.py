"""Recording and alert rules: valid, tested, explained, and asking only for what is exported."""

from __future__ import annotations

import re
from functools import cache
from typing import Any, get_args

import grpc
import pytest
import yaml

from tandem.specdec.presets import PRESETS
from tandem.telemetry.metrics import Side
from tandem.two_sided.profiling.side_metrics import MOVE, STAY, UNMEASURED
from tandem.two_sided.protocol.presets import AGGREGATION_PRESETS
from tests.deploy_static.series import FILES, FOLDER, complaints, exported, recorded, rules
from tests.long_runs import LONG
from tests.programs import output
from tools.observability.dashboards import DASHBOARDS, substituted

TESTS = sorted((FOLDER / "tests").glob("*.yml"))


ALERTS = [rule for rule in rules() if "alert" in rule]


def test_promtool_accepts_the_rules() -> None:
    assert output("promtool", "check", "rules", *FILES).count("SUCCESS") == len(FILES) == 2


@LONG  # hours of rules are evaluated every minute
def test_every_alert_fires_and_stays_quiet_as_its_tests_say() -> None:
    assert "SUCCESS" in output("promtool", "test", "rules", *TESTS)


@cache
def cases_of_rules() -> list[dict[str, Any]]:
    return [
        test
        for file in TESTS
        for case in yaml.safe_load(file.read_text())["tests"]
        for test in case["promql_expr_test"]
    ]


@pytest.mark.parametrize("alert", [alert["alert"] for alert in ALERTS])
def test_every_alert_has_a_firing_and_a_quiet_test(alert: str) -> None:
    expected = [
        bool(test["exp_samples"])
        for test in cases_of_rules()
        if f'alertname="{alert}"' in test["expr"]
    ]
    assert True in expected
    assert False in expected


@pytest.mark.parametrize("rule", ALERTS, ids=lambda rule: str(rule["alert"]))
def test_every_alert_says_what_happened_and_what_to_do(rule: dict[str, Any]) -> None:
    assert rule["labels"]["severity"] in {"critical", "warning"}
    assert rule["annotations"]["summary"]
    assert len(rule["annotations"]["runbook"].split()) > 25
    page = f"https://tandem.example/docs/reference/alerts/#{rule['alert'].lower()}"
    assert rule["annotations"]["runbook_url"] == page


def test_only_what_is_exported_or_recorded_is_asked_for() -> None:
    series = exported()
    for rule in rules():
        assert list(complaints(rule["expr"], series | recorded())) == [], rule


def test_labels_are_matched_with_values_that_the_code_gives_them() -> None:
    known = {
        "status": {code.name for code in grpc.StatusCode},
        "reason": {MOVE, STAY, UNMEASURED},
        "side": set(get_args(Side)),
        "suite": {"tandem"},
        "preset": set(PRESETS),
        "outcome": {"hit", "miss"},
        "code": {"429"},
    }
    boards = [query for board in DASHBOARDS for query in substituted(board)]
    for expression in (*boards, *(rule["expr"] for rule in rules())):
        for label, values in re.findall(r'(\w+)(?:=|!=|=~|!~)"([\w|]+)"', expression):
            assert label in known, expression
            assert set(values.split("|")) <= known[label], expression


def test_wasted_drafts_are_an_alarm_for_every_preset_of_one_drafter_and_no_other() -> None:
    (alert,) = (rule for rule in ALERTS if rule["alert"] == "TandemDraftsWasted")
    (left_out,) = re.findall(r'preset!~"([^"]+)"', alert["expr"])
    assert {name for name in PRESETS if re.fullmatch(left_out, name)} == set()
    assert all(re.fullmatch(left_out, name) for name in AGGREGATION_PRESETS)
