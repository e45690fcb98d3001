"""The bench of the machines alone: what it scripts, counts and compares."""

from __future__ import annotations

import pytest

from lab.bench.harness.models import Models
from lab.bench.harness.report import Report
from lab.bench.speculation.loop import (
    MEASURED,
    Script,
    ScriptedAnswer,
    checked_out,
    ratio_row,
    run,
)
from lab.machine import this_machine
from tandem.core.errors import InvalidArgument

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


def test_four_in_five_drafts_are_right() -> None:
    answer = ScriptedAnswer(SCRIPT, "coupled", tokens=400)
    answer.run()
    stats = answer.edge.machine.stats
    assert 1 - stats.rounds / stats.tokens == pytest.approx(1 - 1 / 3.36, abs=0.03)


def test_ratios_are_medians_over_turns() -> None:
    turns = [({"a": 2.0}, {"a": 1.0}), ({"a": 4.0}, {"a": 1.0}), ({"a": 1.0}, {"a": 0.9})]
    row = ratio_row("a", "abc", turns)
    assert (row["before"], row["now"], row["ratio_to_before"]) == (2.0, 1.0, 0.5)


def test_a_commit_that_is_not_there_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="against"), checked_out("no-such-commit"):
        pass
