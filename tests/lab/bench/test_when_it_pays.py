"""`bench when-it-pays`: what its cells compare, and the picture and page that show them."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from lab.analysis.cost_cloud_drafts import CloudRound, best_cloud_round
from lab.bench.harness.baselines import ALONE, BASELINES, CLOUD_DRAFT, best_baseline
from lab.bench.harness.report import Report, Row
from lab.bench.harness.suite import ROOT, Models
from lab.bench.speculation import when_it_pays
from lab.bench.speculation.pays_page import (
    BEGIN,
    END,
    LEVELS,
    NAME,
    WITH_DRAFT,
    WITHOUT_DRAFT,
    level_of,
    picture,
    tables,
    write_page,
)
from lab.bench.speculation.when_it_pays import (
    CLOUD_TOKENS,
    TOKENS,
    Cell,
    Simulations,
    cell_row,
    cells_of,
    cloud_presets,
    edge_presets,
    other_times,
    predicted_tokens_per_s,
)
from lab.machine import this_machine
from tandem.control.conditions import PairTimes
from tandem.core.errors import InvalidArgument
from tandem.specdec.presets import PRESETS, Preset
from tandem.testing.simulation.model_times import ModelTimes

TIMES = ModelTimes(0.024, 0.072, 0.0005)
PAGE = ROOT / "docs" / "when-it-pays.md"
KEPT = ROOT / "docs" / "pictures" / f"{NAME}.json"
SVG = "{http://www.w3.org/2000/svg}"


def test_the_best_of_the_cloud_is_the_fastest_baseline_that_was_measured() -> None:
    speeds = {ALONE: 10.0, "stream": 30.0}
    assert best_baseline(speeds) == ALONE
    assert best_baseline(speeds | {CLOUD_DRAFT: 20.0}) == CLOUD_DRAFT
    assert best_baseline({"stream": 30.0}) is None
    for name in BASELINES:
        assert not PRESETS[name].drafts


def test_a_cell_compares_the_fastest_at_the_edge_with_the_fastest_of_the_cloud() -> None:
    speeds = {"stream": 18.0, "coupled": 12.0, ALONE: 10.0, CLOUD_DRAFT: 24.0}
    row = cell_row(Cell(0.5, 0.1, 16), lambda preset, cell: speeds[preset.name])
    assert (row["edge"], row["cloud"]) == ("stream", CLOUD_DRAFT)
    assert row[WITH_DRAFT] == pytest.approx(18 / 24)
    assert row[WITHOUT_DRAFT] == row["speedup_over_ar"] == pytest.approx(1.8)
    assert (row["declared"], row["rtt_s"], row["sessions"]) == (0.5, 0.1, 16)
    assert row["speeds"] == speeds


def test_a_cloud_drafts_while_that_brings_more_tokens_a_second() -> None:
    """Three sessions, a pass of 100 ms and 10 ms for each further token, half of the drafts right:
    1.5 tokens in 160 ms are more than 1 in 120 and 1.75 in 200."""
    pair = PairTimes(0.0, 0.1, 0.01)

    def best(rate: float, step_s: float = 0.01) -> CloudRound:
        return best_cloud_round(pair, step_s, acceptance_rate=rate, sessions=3, most=8)

    round_ = best(0.5)
    assert (round_.drafts, round_.tokens) == (1, 1.5)
    assert round_.tokens_per_s == pytest.approx(3 * 1.5 / 0.16)
    assert best(0.0).drafts == 0
    assert best(0.0).tokens_per_s == pytest.approx(3 / 0.12)
    assert best(1.0).drafts == 8
    assert best(0.5, step_s=1.0).drafts == 0


@pytest.mark.parametrize("name", ["stream", ALONE, CLOUD_DRAFT])
def test_cost_models_say_what_the_state_machines_do(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Within what few tokens leave to chance."""
    monkeypatch.setitem(TOKENS, 4, 80)
    monkeypatch.setattr(when_it_pays, "CLOUD_TOKENS", CLOUD_TOKENS // 2)
    preset = (edge_presets() | cloud_presets())[name]
    cell = Cell(0.6, 0.03, 4)
    simulated = Simulations(TIMES, seed=1).simulate(preset, cell, 1)
    assert predicted_tokens_per_s(TIMES, preset, cell) == pytest.approx(simulated, rel=0.12)


@pytest.mark.parametrize("name", BASELINES)
def test_a_round_trip_changes_no_speed_of_the_cloud_alone(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So each is simulated once for all round trips."""
    monkeypatch.setattr(when_it_pays, "CLOUD_TOKENS", CLOUD_TOKENS // 4)
    simulations = Simulations(TIMES, seed=1)
    near, far = Cell(0.7, 0.0, 4), Cell(0.7, 0.3, 4)
    speed = simulations.simulate(PRESETS[name], near, 1)
    assert simulations.simulate(PRESETS[name], far, 1) == pytest.approx(speed)


def test_drafts_of_the_cloud_gain_and_far_drafts_of_the_edge_gain_less() -> None:
    presets = edge_presets() | cloud_presets()

    def speed(name: str, rtt_s: float) -> float:
        return predicted_tokens_per_s(TIMES, presets[name], Cell(0.9, rtt_s, 1))

    assert speed(CLOUD_DRAFT, 0.3) == speed(CLOUD_DRAFT, 0.0) > 1.5 * speed(ALONE, 0.3)
    assert speed("stream", 0.0) > speed("stream", 0.3) > 1.02 * speed(ALONE, 0.3)


def test_sessions_that_draft_in_the_cloud_share_its_passes() -> None:
    """Where steps and passes took turns, sessions fell out of step, and each pass had but a few."""
    cell = Cell(0.6, 0.0, 4)
    alone, drafting = (
        Simulations(TIMES, seed=1).simulate(PRESETS[name], cell, 1) for name in (ALONE, CLOUD_DRAFT)
    )
    assert drafting > 1.5 * alone


def toy_rows() -> list[Row]:
    """Two round trips, two numbers of sessions, one acceptance."""
    ratios = {(0.0, 1): 1.6, (0.0, 16): 1.0, (0.1, 1): 0.5, (0.1, 16): 1.25}
    return [
        {
            "declared": 0.5,
            "rtt_s": rtt_s,
            "sessions": sessions,
            "edge": "stream",
            "cloud": CLOUD_DRAFT,
            WITH_DRAFT: ratio,
            WITHOUT_DRAFT: 2 * ratio,
            "speeds": {"ar": 10.123456, "stream": 10.123456 * ratio},
        }
        for (rtt_s, sessions), ratio in ratios.items()
    ]


@pytest.mark.parametrize(
    ("ratio", "level"),
    [
        (1.5, "edge3"),
        (1.06, "edge1"),
        (1.0, "even"),
        (0.95, "even"),
        (0.9, "cloud1"),
        (0, "cloud3"),
    ],
)
def test_a_colour_says_who_wins(ratio: float, level: str) -> None:
    assert level_of(ratio) == level


OTHERS = {"a further token 3 ms": toy_rows()[1:]}
"""A map with other times: the first of the cells is left out."""


def shown(svg: str) -> list[tuple[str, str]]:
    """The colour and the number of each cell."""
    levels = "|".join(name for _, name, _ in LEVELS)
    cell = rf'<rect class="({levels})"[^>]*rx="3"/>\n<text[^>]*>([\d.]+)</text>'
    return re.findall(cell, svg)


def test_the_picture_has_each_ratio_in_its_colour_for_both_kinds_of_clouds() -> None:
    svg = picture(toy_rows())
    root = ElementTree.fromstring(svg)
    assert len(root.findtext(f"{SVG}title") or "") > 40
    assert re.findall(r"(?:href|src)=", svg) == []
    assert shown(svg) == [
        *(("edge3", "1.60"), ("even", "1.00"), ("cloud3", "0.50"), ("edge2", "1.25")),
        *(("edge3", "3.20"), ("edge3", "2.00"), ("even", "1.00"), ("edge3", "2.50")),
    ]
    wide, high = float(root.attrib["width"]), float(root.attrib["height"])
    for text in root.iter(f"{SVG}text"):
        assert 0 <= float(text.attrib["x"]) <= wide
        assert 0 <= float(text.attrib["y"]) <= high


def test_the_tables_say_who_wins_and_where() -> None:
    text = "\n".join(tables(toy_rows(), OTHERS))
    assert "| 0.5 | 0 ms | **1.60** | 1.00 |" in text
    assert "| 0.5 | 100 ms | 0.50 | **1.25** |" in text
    assert (
        "Of 4 cells, drafts of the edge are faster in 2 (up to 1.60 times as fast), equal within"
        " 5 % in 1, and slower in 1 (down to 0.50 times as fast)." in text
    )
    assert (
        "faster in 3 (up to 3.20 times as fast), equal within 5 % in 1, and slower in none." in text
    )
    assert "`stream` in 4" in text
    other = "| a further token 3 ms | edge faster in 1 of 3 cells | 0.50 to 1.25 |"
    assert f"{other} edge faster in 2 of 3 cells | 1.00 to 2.50 |" in text


def test_a_page_has_the_map_between_its_marks_and_nothing_else_changes(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"before\n{BEGIN}\nold\n{END}\nafter\n")
    for _ in range(2):
        write_page(page, toy_rows(), OTHERS, TIMES, "tandem bench when-it-pays")
        text = page.read_text()
        assert text.startswith(f"before\n{BEGIN}\n\n**The cloud has the draft model, too.**")
        assert text.endswith(f"\n{END}\nafter\n")
        assert "old" not in text
    kept = json.loads((tmp_path / "pictures" / f"{NAME}.json").read_text())
    assert kept["declared"]["cloud_draft_s"] == pytest.approx(0.0048)
    assert kept["rows"][0]["speeds"]["ar"] == 10.1235
    assert [row[WITH_DRAFT] for row in kept["others"]["a further token 3 ms"]] == [1.0, 0.5, 1.25]
    page.write_text("nothing")
    with pytest.raises(InvalidArgument, match="page"):
        write_page(page, toy_rows(), OTHERS, TIMES, "")


@pytest.mark.parametrize("simulate", [False, True])
def test_one_command_makes_the_whole_map(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, simulate: bool
) -> None:
    """Declared times reach the models, or the simulation; each cell is there once, and a run that
    was ended goes on."""
    asked: list[ModelTimes] = []

    def predicted(times: ModelTimes, preset: Preset, cell: Cell) -> float:
        asked.append(times)
        return 20.0 if preset.name in edge_presets() else 10.0

    monkeypatch.setattr(when_it_pays, "predicted_tokens_per_s", predicted)
    monkeypatch.setattr(
        Simulations, "tokens_per_s", lambda self, preset, cell: predicted(self.times, preset, cell)
    )
    page = tmp_path / "page.md"
    page.write_text(f"{BEGIN}{END}")
    report = Report("when-it-pays", 1, False, this_machine(), "tandem bench when-it-pays")
    times = ModelTimes(0.010, 0.050, 0.0005, cloud_draft_s=0.005)
    for _ in range(2):
        report.rows.clear()
        when_it_pays.run(
            report,
            Models(),
            page=page,
            simulate=simulate,
            kept=tmp_path / "kept",
            draft_ms=10,
            cloud_draft_ms=5,
            verify_ms=50,
        )
        places = [(row["declared"], row["rtt_s"], row["sessions"]) for row in report.rows]
        assert len(set(places)) == len(places) == 64
        assert {row[WITH_DRAFT] for row in report.rows} == {2.0}
    assert set(asked) == {times, *other_times(times).values()}
    every_preset = len(edge_presets() | cloud_presets())
    assert asked.count(times) == 64 * every_preset * (1 if simulate else 2)
    assert page.read_text().count("**2.00**") == 2 * 64
    when_it_pays.draw(report, tmp_path)
    assert (tmp_path / f"{NAME}.svg").is_file()


def test_other_maps_change_one_time_each() -> None:
    times = ModelTimes(0.024, 0.072, 0.0005)
    changed = [
        (one.draft_s, one.cloud_step_s, one.verify_further_s) for one in other_times(times).values()
    ]
    assert changed == [
        (0.024, 0.024, 0.0005),
        (pytest.approx(0.0048), pytest.approx(0.0048), 0.0005),
        (0.024, pytest.approx(0.0048), pytest.approx(0.003)),
    ]


@pytest.fixture(scope="module")
def kept() -> dict[str, Any]:
    kept_: dict[str, Any] = json.loads(KEPT.read_text("utf-8"))
    return kept_


def test_the_documented_map_is_whole_and_current(kept: dict[str, Any]) -> None:
    """`tandem bench when-it-pays --page docs/when-it-pays.md` makes it again."""
    rows = kept["rows"]
    places = {(row["declared"], row["rtt_s"], row["sessions"]) for row in rows}
    assert places == {(cell.rate, cell.rtt_s, cell.sessions) for cell in cells_of(quick=False)}
    assert KEPT.with_suffix(".svg").read_text("utf-8") == picture(rows)
    written = PAGE.read_text("utf-8").partition(BEGIN)[2].partition(END)[0].strip()
    assert written == "\n".join(tables(rows, kept["others"])).strip()


def test_the_documented_step_times_are_those_of_the_map(kept: dict[str, Any]) -> None:
    text = PAGE.read_text("utf-8")
    for name, seconds in kept["declared"].items():
        assert f"{seconds * 1e3:g} ms" in text, name
