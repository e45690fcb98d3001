"""`bench auto --real`: its cells, and what their figures are relative to."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from lab.bench.speculation.auto_real import (
    PRESETS,
    Load,
    RealCell,
    Round,
    cell_row,
    goals,
    notes,
    presets_of,
)
from tandem.generation.client import Generated
from tandem_api.common.v1 import generation_pb2 as pb

CELL = RealCell("smollm2", 0.040, 48, 0.0, Load.QUIET)
AS_FAST = dict.fromkeys(PRESETS, 2.0)


def answer(
    seconds: float, token_ids: Sequence[int] = (1, 2), *, same_bits: bool = True
) -> Generated:
    summary = pb.Summary(tokens=2, drafted=8, accepted=2, target_passes=1, same_bits=same_bits)
    summary.choice.schedule = "rounds of 4"
    return Generated(token_ids=list(token_ids), duration_s=seconds, summary=summary)


def round_of(**seconds: float) -> Round:
    """The answers of one round, of which those not named take 2 s."""
    return {name: answer(took_s) for name, took_s in (AS_FAST | seconds).items()}


def test_ratios_are_of_answers_to_the_same_question() -> None:
    """One question takes everybody three times as long: medians of the times would be of
    different questions."""
    rounds = [
        round_of(ar=1.0, auto=1.1, coupled=0.5, stream=4.0),
        round_of(ar=3.0, auto=2.7, coupled=3.0, stream=4.0),
        round_of(ar=1.0, auto=0.8, coupled=1.0, stream=0.4),
    ]
    row = cell_row(CELL, rounds)
    assert row["auto_over_ar"] == pytest.approx(0.9)
    assert row["speedup_over_ar"] == pytest.approx(1 / 0.9)
    assert row["best"] == "ar", "coupled is faster once, and stream once"
    assert (row["ar_s"], row["auto_s"], row["stream_s"]) == (1.0, 1.1, 4.0)
    assert row["times_s"]["auto"] == [1.1, 2.7, 0.8]


def test_auto_is_held_against_the_faster_of_the_cloud_alone_and_one_that_drafts() -> None:
    row = cell_row(CELL, 3 * [round_of(ar=2.0, auto=1.9, **{"cloud-draft": 1.6})])
    assert row["auto_over_cloud"] == pytest.approx(1.9 / 1.6)
    assert row["best"] == "cloud-draft"
    assert not goals([row])[0].met


def test_goals_are_those_of_the_worst_cell_and_name_it() -> None:
    other = RealCell("demo-gguf", 0.0, 200, 0.0, Load.ENDED)
    rows = [cell_row(CELL, [round_of(auto=2.06)]), cell_row(other, [round_of(auto=2.0)])]
    assert [goal.met for goal in goals(rows)] == [True, True, True]
    assert len(list(notes(rows))) == 1
    slower = cell_row(other, [round_of(auto=2.08)])
    slowest = cell_row(other, [round_of(auto=2.0, coupled=1.8)])
    over_alone, over_best, same = goals([*rows, slower])
    assert "worst of 3 cells (demo-gguf:0ms:200:t0:ended)" in over_alone.name
    assert [over_alone.met, over_best.met, same.met] == [False, True, True]
    assert [goal.met for goal in goals([*rows, slowest])] == [True, False, True]
    (_, missed) = notes([*rows, slower])
    assert missed.endswith(
        "as the faster of ar and cloud-draft: demo-gguf:0ms:200:t0:ended (1.040)."
    )
    assert goals([]) == []


def test_any_preset_that_writes_another_text_misses_a_goal() -> None:
    other = {**round_of(), "stream": answer(2.0, (1, 3))}
    row = cell_row(CELL, [round_of(), other])
    assert row["same_text"] == 7 / 8
    assert [goal.met for goal in goals([row])] == [True, True, False]


def test_texts_may_differ_where_the_target_says_that_its_bits_do() -> None:
    other = {**round_of(), "stream": answer(2.0, (1, 3), same_bits=False)}
    row = cell_row(CELL, [round_of(), other])
    assert (row["same_text"], row["same_bits"]) == (7 / 8, False)
    assert [goal.met for goal in goals([row])] == [True, True]
    assert any("same_bits" in note for note in notes([row]))
    exact = cell_row(CELL, [{**round_of(), "stream": answer(2.0, (1, 3))}])
    assert not goals([row, exact])[-1].met


def test_the_large_pair_is_held_against_the_cloud_alone() -> None:
    cell = RealCell("large", 0.0, 48, 0.0, Load.QUIET)
    assert presets_of(cell) == ("ar", "auto")
    row = cell_row(cell, [{"ar": answer(2.0), "auto": answer(2.1)}])
    assert (row["best"], row["auto_over_ar"], row["auto_over_cloud"]) == ("ar", 1.05, 1.05)
