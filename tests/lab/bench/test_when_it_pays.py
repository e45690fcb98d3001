"""`bench when-it-pays`: what its cells compare, and the picture and page that show them."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from lab.bench.harness.baselines import ALONE, BASELINES, CLOUD_DRAFT, CLOUD_LOOKUP, best_baseline
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
    BOTH,
    Cell,
    Simulations,
    cell_row,
    cells_of,
    edge_presets,
)
from lab.machine import this_machine
from lab.simulation.simulator import ModelTimes
from tandem.core.errors import InvalidArgument
from tandem.specdec.presets import PRESETS, Preset

TIMES = ModelTimes(0.024, 0.072, 0.0005, gathers_drafts=True)
PAGE = ROOT / "docs" / "when-it-pays.md"
KEPT = ROOT / "docs" / "pictures" / f"{NAME}.json"
SVG = "{http://www.w3.org/2000/svg}"


def test_the_best_of_the_cloud_is_the_fastest_baseline_that_was_measured() -> None:
    speeds = {ALONE: 10.0, CLOUD_LOOKUP: 12.0, "stream": 30.0}
    assert best_baseline(speeds) == CLOUD_LOOKUP
    assert best_baseline(speeds | {CLOUD_DRAFT: 20.0}) == CLOUD_DRAFT
    assert best_baseline({"stream": 30.0}) is None
    for name in BASELINES:
        assert not PRESETS[name].drafts


def test_a_cell_compares_the_fastest_at_the_edge_with_the_fastest_of_the_cloud() -> None:
    speeds = {"stream": 18.0, "coupled": 12.0, BOTH: 21.0}
    speeds |= {ALONE: 10.0, CLOUD_LOOKUP: 9.0, CLOUD_DRAFT: 20.0}

    def tokens_per_s(preset: Preset, cell: Cell) -> float:
        longer = preset.cloud_draft_length > 4
        return 24.0 if preset.name == CLOUD_DRAFT and longer else speeds[preset.name]

    row = cell_row(Cell(0.5, 0.1, 16), tokens_per_s)
    assert (row["edge"], row["cloud"], row["cloud_without_draft"]) == (
        "stream",
        "cloud-draft 8",
        ALONE,
    )
    assert row["over_cloud"] == pytest.approx(18 / 24)
    assert row["over_cloud_without_draft"] == row["speedup_over_ar"] == pytest.approx(1.8)
    assert row["both_over_cloud"] == pytest.approx(21 / 24)
    assert (row["declared"], row["rtt_s"], row["sessions"]) == (0.5, 0.1, 16)


@pytest.mark.parametrize("name", BASELINES)
def test_a_round_trip_changes_no_speed_of_the_cloud_alone(name: str) -> None:
    """So each is simulated once for all round trips."""
    simulations = Simulations(TIMES, seed=1)
    near, far = Cell(0.7, 0.0, 4), Cell(0.7, 0.3, 4)
    speed = simulations.simulate(PRESETS[name], near, 1)
    assert simulations.simulate(PRESETS[name], far, 1) == pytest.approx(speed)


def test_drafts_of_the_cloud_gain_and_far_drafts_of_the_edge_gain_less() -> None:
    simulations = Simulations(TIMES, seed=1)

    def speed(name: str, rtt_s: float) -> float:
        return simulations.tokens_per_s(PRESETS[name], Cell(0.9, rtt_s, 1))

    assert speed(CLOUD_DRAFT, 0.3) > 1.5 * speed(ALONE, 0.3)
    assert speed("stream", 0.0) > speed("stream", 0.3) > 1.02 * speed(ALONE, 0.3)
    assert speed(CLOUD_LOOKUP, 0.0) == pytest.approx(speed(ALONE, 0.0), rel=0.05)


def test_a_cloud_that_gathers_its_drafts_is_never_slower_for_having_them() -> None:
    """Where steps and passes took turns, sessions fell out of step, and each pass had but a few."""
    cell = Cell(0.6, 0.0, 4)
    alone = Simulations(TIMES, seed=1).simulate(PRESETS[ALONE], cell, 1)
    apart = replace(TIMES, gathers_drafts=False)
    speeds = [
        Simulations(times, 1).simulate(PRESETS[CLOUD_DRAFT], cell, 1) for times in (TIMES, apart)
    ]
    assert speeds[0] > 1.5 * alone
    assert speeds[0] > 1.2 * speeds[1]


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
            "both_over_cloud": 1.0 + ratio / 1000,
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
    text = "\n".join(tables(toy_rows()))
    assert "| 0.5 | 0 ms | **1.60** | 1.00 |" in text
    assert "| 0.5 | 100 ms | 0.50 | **1.25** |" in text
    assert (
        "Of 4 cells, drafts of the edge are faster in 2, by up to 1.60 times, equal within 5 % in"
        " 1, and slower in 1, 0.50 times as fast at worst." in text
    )
    assert "`stream` in 4" in text


def test_a_page_has_the_map_between_its_marks_and_nothing_else_changes(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"before\n{BEGIN}\nold\n{END}\nafter\n")
    for _ in range(2):
        write_page(page, toy_rows(), TIMES, "tandem bench when-it-pays")
        text = page.read_text()
        assert text.startswith(f"before\n{BEGIN}\n\n**The cloud has the draft model, too.**")
        assert text.endswith(f"\n{END}\nafter\n")
        assert "old" not in text
    kept = json.loads((tmp_path / "pictures" / f"{NAME}.json").read_text())
    assert kept["declared"]["cloud_draft_s"] == pytest.approx(0.0048)
    assert kept["rows"][0]["speeds"]["ar"] == 10.1235
    page.write_text("nothing")
    with pytest.raises(InvalidArgument, match="page"):
        write_page(page, toy_rows(), TIMES, "")


def test_one_command_makes_the_whole_map(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Declared times reach the simulation; each cell is there once."""
    asked: list[ModelTimes] = []

    def tokens_per_s(self: Simulations, preset: Preset, cell: Cell) -> float:
        asked.append(self.times)
        return 20.0 if preset.name in edge_presets() else 10.0

    monkeypatch.setattr(Simulations, "tokens_per_s", tokens_per_s)
    page = tmp_path / "page.md"
    page.write_text(f"{BEGIN}{END}")
    report = Report("when-it-pays", 1, False, this_machine(), "tandem bench when-it-pays")
    when_it_pays.run(report, Models(), page=page, draft_ms=10, cloud_draft_ms=5, verify_ms=50)
    declared = ModelTimes(0.010, 0.050, 0.0005, cloud_draft_s=0.005, gathers_drafts=True)
    assert set(asked) == {declared}
    places = [(row["declared"], row["rtt_s"], row["sessions"]) for row in report.rows]
    assert len(set(places)) == len(places) == 48
    assert {row["over_cloud"] for row in report.rows} == {2.0}
    assert page.read_text().count("**2.00**") == 2 * 48
    when_it_pays.draw(report, tmp_path)
    assert (tmp_path / f"{NAME}.svg").is_file()


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
    assert written == "\n".join(tables(rows)).strip()


def test_the_documented_step_times_are_those_of_the_map(kept: dict[str, Any]) -> None:
    text = PAGE.read_text("utf-8")
    for name, seconds in kept["declared"].items():
        assert f"{seconds * 1e3:g} ms" in text, name
