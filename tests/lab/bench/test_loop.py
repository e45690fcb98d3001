"""The bench of the machines alone: what it scripts, counts and compares."""

from __future__ import annotations

import pytest

from lab.bench.harness.models import Models
from lab.bench.harness.report import Report
from lab.bench.speculation.loop import (
    MEASURED,
    Script,
    ScriptedAnswer,
    run,
)
from lab.machine import this_machine

SCRIPT = Script(seed=3)


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
    assert len(report.goals) == 2


@pytest.mark.parametrize("preset", MEASURED)
def test_an_answer_is_the_script_and_its_calls_repeat_it(preset: str) -> None:
    answer = ScriptedAnswer(SCRIPT, preset, tokens=40)
    answer.run()
    text = answer.edge.machine.committed.since(0)
    assert text == tuple(map(SCRIPT.token, range(len(text))))
    assert len(text) == answer.edge.machine.committed.start + 40
    made = []
    for recording in (answer.edge, answer.cloud):
        make = recording.make

        def kept(make=make):  # type: ignore[no-untyped-def]
            made.append(make())
            return made[-1]

        recording.make = kept
        recording.repeat()
    assert made[0].committed.since(0) == text
    assert made[1].committed.since(0) == text[: len(made[1].committed)]
    assert made[1].target_passes == answer.cloud.machine.target_passes
