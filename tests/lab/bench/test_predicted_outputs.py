"""`bench prediction` on one change, with passes that take hardly any time."""

from __future__ import annotations

import pytest

from lab.bench.harness.report import Report
from lab.bench.harness.suite import Models, Pacing
from lab.bench.speculation import predicted_outputs
from lab.machine import this_machine


def test_both_ways_answer_with_the_new_text(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(predicted_outputs, "QUICK_EDITS", 1)
    monkeypatch.setattr(predicted_outputs, "PRESETS", ("coupled",))
    monkeypatch.setattr(predicted_outputs, "PACING", Pacing(0.0, 0.001, 0.0))
    monkeypatch.setattr(predicted_outputs, "RTT_S", 0.0)
    report = Report("prediction", 1, True, this_machine(), "bench prediction --quick")
    predicted_outputs.run(report, Models())
    alone, predicted = report.rows
    assert (alone["drafts"], predicted["drafts"]) == ("draft model", "prediction")
    assert alone["same_text"] == predicted["same_text"] == 1.0
    assert alone["accepted_prediction"] == 0 < predicted["accepted_prediction"]
    assert predicted["target_passes_per_token"] < 0.5 * alone["target_passes_per_token"]
    assert [goal.name for goal in report.goals if "passes" in goal.name] == [
        "coupled, with the prediction ÷ with the draft model alone: target passes per token"
    ]
    assert any("recites" in note for note in report.notes), "it says that the models are not real"
