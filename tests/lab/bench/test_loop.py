"""The bench of the machines alone: what it scripts, counts and compares."""

from __future__ import annotations

import pytest

from lab.bench.harness.models import Models
from lab.bench.harness.report import Report
from lab.bench.speculation.loop import (
    MEASURED,
    run,
)
from lab.machine import this_machine


def test_every_preset_and_the_prefix_hash_are_measured() -> None:
    report = Report("loop", 3, True, this_machine(), "")
    run(report, Models())
    *machines, hashed = report.rows
    assert [row["preset"] for row in machines] == list(MEASURED)
    for row in machines:
        both = row["edge_us_per_token"] + row["cloud_us_per_token"]
        assert row["machines_us_per_token"] == pytest.approx(both)
        assert min(row["edge_us_per_token"], row["cloud_us_per_token"]) > 0
    frames = {row["preset"]: row["frames_up_per_token"] for row in machines}
    assert frames["ar"] == 0 < frames["coupled"] < 0.5
    assert hashed["prefix_hash_ms"] > 0
    assert len(report.goals) == 1
