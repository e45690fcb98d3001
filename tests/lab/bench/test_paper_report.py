"""The papers' report: its tables' shape, what is kept between runs, and its pages."""

import json
import os
import re
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
from click.testing import CliRunner

from lab.bench.harness.suite import Models
from lab.bench.main import bench
from lab.bench.papers.kept_results import KeptResults, UnreadableResults
from lab.bench.papers.paper_report import all_tables, chosen_tables
from lab.bench.papers.paper_table import (
    Basis,
    Compute,
    Figures,
    Label,
    Labels,
    PaperRow,
    PaperTable,
)
from lab.bench.papers.testbed import Testbed
from tandem.core.errors import InvalidArgument

TEXTS = os.environ.get("PAPERS_TEXTS", "")
"""A folder with `dssd.txt`, `picospec.txt`, … The texts are no part of this repository."""
NUMBER = re.compile(r"(?<![\w.])\d[\d,]*\.?\d*")
TABLES = all_tables()


def doubled(testbed: Testbed, labels: Labels) -> Figures:
    return float(labels[0]) * 2, None


def toy_table(compute: Compute = doubled) -> PaperTable:
    return PaperTable(
        key="toy",
        paper="Toys",
        place="Table 1",
        title="Toys & <balls>",
        labels=("n",),
        figures=("twice", "more"),
        rows=(PaperRow((1.0,), (2.0, None), "right"), PaperRow((2.0,), (5.0, None))),
        basis=Basis.COST_MODEL,
        declared="Nothing.",
        compute=compute,
        printed="The second row.",
    )


def test_tables_have_keys_of_their_own_and_say_what_they_are() -> None:
    keys = [table.key for table in TABLES]
    assert len(set(keys)) == len(keys)
    for table in TABLES:
        assert table.rows
        assert table.place
        assert table.declared.endswith(".")
        assert table.printed == "" or table.printed.endswith(".")
        assert {plot.x for plot in table.plots} <= set(table.labels)
        assert {each for plot in table.plots for each in plot.drawn} <= set(table.figures)
        labels = [row.labels for row in table.rows]
        assert len(set(labels)) == len(labels) or table.key == "dssd-table-3"


def test_a_row_of_another_shape_is_refused() -> None:
    good = toy_table()
    with pytest.raises(ValueError, match="columns"):
        replace(good, rows=(PaperRow((1.0,), (2.0,)),))
    assert (good.compares(0), good.compares(1)) == (True, False)
    with pytest.raises(ValueError, match="1 figures for 2"):
        good.checked((1.0,))


@pytest.mark.parametrize("needs", ["prices", "tasks"])
def test_what_is_computed_with_another_option_is_another_row_where_it_is_needed(
    needs: str, tmp_path: Path
) -> None:
    kept = KeptResults(tmp_path / "results.json", "abc")
    plain = Testbed(Models(), seed=1, quick=True)
    given = Testbed(Models(), 1, True, tasks=tmp_path, prices=(0.2, 0.2, 0.7, 0.7))
    depends = replace(toy_table(), key="depends", needs=(needs,))
    for table in (toy_table(), depends):
        kept.keep(plain, table, table.rows[0], (2.0, None), "a machine", 0.5, 3.0)
        assert kept.get(plain, table, table.rows[0]) is not None
    assert kept.get(given, toy_table(), toy_table().rows[0]) is not None
    assert kept.get(given, depends, depends.rows[0]) is None


def test_a_key_that_is_none_is_named() -> None:
    with pytest.raises(InvalidArgument, match="only"):
        chosen_tables(["dssd-table-9"])


def test_a_folder_of_tasks_that_is_not_there_is_named(tmp_path: Path) -> None:
    """It was taken for one without texts."""
    refused = CliRunner().invoke(bench, ["papers", "--tasks", str(tmp_path / "nowhere")])
    assert refused.exit_code == 2
    assert "nowhere" in refused.output


def test_what_is_kept_is_taken_for_the_same_arguments_alone(tmp_path: Path) -> None:
    table, path = toy_table(), tmp_path / "results.json"
    testbed, row = Testbed(Models(), seed=1, quick=True), toy_table().rows[0]
    KeptResults(path, "abc").keep(testbed, table, row, (2.0, None), "a machine", 0.5, 3.0)
    again = KeptResults(path, "abc")
    found = again.get(testbed, table, row)
    assert found is not None
    assert (found.figures, found.machine, found.load) == ((2.0, None), "a machine", 3.0)
    assert again.get(testbed, table, table.rows[1]) is None
    assert again.get(Testbed(Models(), seed=2, quick=True), table, row) is None
    assert again.get(Testbed(Models(), seed=1, quick=False), table, row) is None
    assert KeptResults(path, "abd").get(testbed, table, row) is None
    others = KeptResults(path, "abc")
    others.forget([replace(table, key="another")])
    assert others.get(testbed, table, row) is not None
    others.forget([table])
    assert others.get(testbed, table, row) is None
    path.write_text("[]")
    with pytest.raises(UnreadableResults, match="remove it"):
        KeptResults(path, "abc")


def test_the_report_goes_on_where_it_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Label] = []

    def compute(testbed: Testbed, labels: Labels) -> Figures:
        asked.append(labels[0])
        if len(asked) == 2:
            raise OSError("the power is gone")
        return doubled(testbed, labels)

    monkeypatch.setattr("lab.bench.papers.paper_report.all_tables", lambda: (toy_table(compute),))
    arguments = ["papers", "--quick", "--folder", str(tmp_path)]
    assert "the power is gone" in CliRunner().invoke(bench, arguments).output
    assert not (tmp_path / "index.html").exists()
    result = CliRunner().invoke(bench, arguments)
    assert result.exit_code == 0, result.output
    assert asked == [1.0, 2.0, 2.0]
    page = (tmp_path / "index.html").read_text()
    assert "Toys &amp; &lt;balls&gt;" in page
    assert "<balls>" not in page
    for words in (page, (tmp_path / "report.md").read_text()):
        assert "--only toy --folder again --seed 1 --quick" in words
        assert "The second row." in words
    assert not re.search(r"(?:src|href)=\"(?:https?:)?//", page)
    assert len(json.loads((tmp_path / "results.json").read_text())["rows"]) == 2
    CliRunner().invoke(bench, [*arguments, "--fresh"])
    assert asked == [1.0, 2.0, 2.0, 1.0, 2.0]


@cache
def printed_lines(paper: str) -> tuple[frozenset[float], ...]:
    text = (Path(TEXTS) / f"{paper.lower().split('/')[0]}.txt").read_text(encoding="utf-8")
    return tuple(
        frozenset(float(one.replace(",", "")) for one in NUMBER.findall(line))
        for line in text.splitlines()
    )


@pytest.mark.skipif(not TEXTS, reason="PAPERS_TEXTS names no folder with the papers' texts")
@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.key)
def test_what_was_typed_in_stands_in_the_paper(table: PaperTable) -> None:
    lines = printed_lines(table.paper)
    everywhere: frozenset[float] = frozenset().union(*lines)
    for row in table.rows:
        typed = {one for one in row.theirs if one is not None}
        found = any(typed <= line for line in lines) if table.by_line else typed <= everywhere
        assert found, (row.labels, typed - everywhere)
