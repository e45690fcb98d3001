"""The papers' report: its tables' shape, what is kept between runs, and its pages."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from lab.bench.harness.suite import ROOT, Models
from lab.bench.main import bench
from lab.bench.papers import paper_report, report_site
from lab.bench.papers.headlines import HEADLINES, Headline, headline_table
from lab.bench.papers.kept_results import KeptResults, KeptRow, UnreadableResults
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
from lab.bench.papers.printed_figures import (
    missing_in,
    not_in_text,
    numbers_of,
    recorded,
    sha256_of,
    texts_folder,
    typed_in,
)
from lab.bench.papers.report_pages import Filled, markdown_table, was_busy
from lab.bench.papers.report_site import PARTS
from lab.bench.papers.rows import span
from lab.bench.papers.testbed import Testbed
from tandem.core.errors import InvalidArgument

TEXTS = texts_folder()
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


def test_what_was_missing_is_computed_when_it_is_there(tmp_path: Path) -> None:
    """A row without any figure was kept for good."""
    kept, testbed = KeptResults(tmp_path / "results.json", "abc"), Testbed(Models(), 1, True)
    table = toy_table()
    assert kept.needed(testbed, table, table.rows[0])
    kept.keep(testbed, table, table.rows[0], (None, None), "a machine", 0.1, 0.0)
    assert kept.needed(testbed, table, table.rows[0])
    kept.keep(testbed, table, table.rows[0], (2.0, None), "a machine", 0.1, 0.0)
    assert not kept.needed(testbed, table, table.rows[0])


def test_tables_are_chosen_by_patterns_and_by_what_they_need() -> None:
    assert [table.key for table in chosen_tables(["dssd-*es"])] == ["dssd-bytes", "dssd-processes"]
    parts = [chosen_tables((), part) for part in PARTS]
    assert sum(map(len, parts)) == len(TABLES)
    computed, measured = ({table.key for table in part} for part in parts)
    assert "fsd-table-6-averages" in computed
    assert {"dssd-processes", "fsd-processes", "tslt-processes", "picospec-processes"} <= measured
    assert {"dragon-figure-6-smollm2", "dragon-figure-7-smollm2", "fsd-table-9"} <= measured


def kept_row(took_s: float, others_busy: float | None, load: float = 3.0) -> KeptRow:
    return KeptRow({}, (1.0,), "a machine", took_s, load, others_busy)


def test_a_table_is_busy_by_what_others_took() -> None:
    """The report's own processes are in the load average too."""
    assert not was_busy([kept_row(100.0, 0.01), kept_row(0.001, 9.0)])
    assert was_busy([kept_row(100.0, 0.30), kept_row(100.0, 0.0)])
    assert was_busy([kept_row(1.0, None)])
    assert not was_busy([kept_row(1.0, None, load=0.2)])


MEASURED_TOY = replace(toy_table(), key="toy-measured", basis=Basis.PROCESSES)


def site_of(
    folder: Path, monkeypatch: pytest.MonkeyPatch, commit: str, *arguments: str
) -> dict[str, str]:
    """The pages after a run at a commit."""
    tables = (toy_table(), MEASURED_TOY)
    monkeypatch.setattr(paper_report, "all_tables", lambda: tables)
    monkeypatch.setattr(report_site, "headline_table", lambda *given: iter(()))
    monkeypatch.setattr("lab.machine.commit_of", lambda folder: commit)
    done = CliRunner().invoke(bench, ["papers", "--report", str(folder), *arguments])
    assert done.exit_code == 0, done.output
    return {page.name: page.read_text(encoding="utf-8") for page in folder.glob("*.md")}


def test_parts_of_the_documented_report_are_run_at_different_commits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = site_of(tmp_path, monkeypatch, "a" * 40, "--part", "computed")
    assert set(first) == {"index.md", "toys.md"}
    assert (
        "Not run yet: `tandem bench papers --report docs/papers --only toy-measured"
        in (first["toys.md"])
    )
    assert "`aaaaaaaaaaaa`" in first["index.md"]
    both = site_of(tmp_path, monkeypatch, "b" * 40, "--part", "measured")
    assert "Not run yet" not in both["toys.md"]
    for commit in ("`aaaaaaaaaaaa`", "`bbbbbbbbbbbb`"):
        assert commit in both["index.md"]
        assert commit in both["toys.md"]
    assert "| 1 | 2 | 2 | – | right |" in both["toys.md"]
    again = site_of(tmp_path, monkeypatch, "c" * 40, "--only", "toy", "--fresh")
    assert "`aaaaaaaaaaaa`" not in again["index.md"]
    assert "`bbbbbbbbbbbb`" in again["index.md"]


def test_the_documented_report_names_no_folder_of_the_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tasks = tmp_path / "tasks"
    tasks.mkdir()
    pages = site_of(tmp_path / "site", monkeypatch, "a" * 40, "--tasks", str(tasks))
    results = (tmp_path / "site" / "results.json").read_text()
    assert "models/demo-draft" in results
    for text in (*pages.values(), results):
        assert str(tmp_path) not in text
        assert str(ROOT) not in text


def test_a_bar_in_a_cell_does_not_end_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (table,) = chosen_tables(["tslt-theorem-4-14"])
    ours = (KeptRow({}, (0.1, 0.2, -0.1), "a machine", 0.1, 0.0),) * len(table.rows)
    lines = list(markdown_table(Filled(table, ours)))
    bars = {len(re.findall(r"(?<!\\)\|", line)) for line in lines}
    assert len(bars) == 1


def test_a_span_of_large_figures_has_commas() -> None:
    """The report's pages broke off there."""
    assert span([804_352.0, 61_269.0], ",.0f") == "61,269 to 804,352"
    assert span([-0.001, 0.002], ".2f") == "0.00"


@pytest.mark.parametrize("headline", HEADLINES, ids=lambda one: one.claim)
def test_a_headline_means_rows_that_there_are(headline: Headline) -> None:
    tables = {table.key: table for table in TABLES}
    places = [place for place in headline.places if place is not None]
    assert places
    for place in places:
        table = tables[place.table]
        assert table.paper.split("/")[0] == headline.paper
        assert set(place.figures) <= set(table.figures)
        rows = table.filled([(0.5,) * len(table.figures) for _ in table.rows])
        assert place.rows(rows), place
        assert place.words(rows) != "–"


def test_a_headline_shows_the_lowest_and_the_highest_row() -> None:
    (table,) = chosen_tables(["dssd-table-2"])
    ours = [(1.0, float(number), 2.0) for number, _ in enumerate(table.rows)]
    shown = HEADLINES[0].places[0]
    assert shown is not None
    assert shown.words(table.filled(ours)) == "1.00 to 17.00"
    lines = list(
        headline_table(
            [(each, None) for each in TABLES if each is not table] + [(table, table.filled(ours))],
            {each.key: f"page.md#{each.key}" for each in TABLES},
        )
    )
    assert "[1.00 to 17.00](page.md#dssd-table-2)" in lines[2]
    assert "[not run yet](page.md#dssd-processes)" in lines[2]
    assert len(lines) == 2 + len(HEADLINES)


def test_typed_in_figures_are_those_that_were_found_in_the_papers() -> None:
    """`python -m lab.bench.papers.printed_figures FOLDER` checks and records them again."""
    record = recorded()
    assert {paper: entry["figures"] for paper, entry in record.items()} == typed_in()
    assert all(re.fullmatch("[0-9a-f]{64}", entry["sha256"]) for entry in record.values())


def test_a_figure_that_no_line_has_is_named() -> None:
    """The second row of the toys; and both figures of a row where they stand in different lines."""
    lines = numbers_of("Table 1: 1,234.5 and 2.0x\n7")
    assert list(not_in_text(toy_table(), lines)) == ["toy, (2.0,): [5.0]"]
    rows = (PaperRow((1.0,), (2.0, 7.0)), PaperRow((2.0,), (2.0, 1234.5)))
    in_a_line = replace(toy_table(), rows=rows, by_line=True)
    assert list(not_in_text(in_a_line, lines)) == ["toy, (1.0,): in no line"]


@pytest.mark.skipif(TEXTS is None, reason="neither PAPERS_TEXTS nor .papers has the papers' texts")
def test_what_was_typed_in_stands_in_the_papers() -> None:
    assert TEXTS is not None
    assert list(missing_in(TEXTS)) == []
    found = {paper: sha256_of(TEXTS, paper) for paper in typed_in()}
    known = {paper: entry["sha256"] for paper, entry in recorded().items()}
    assert found == known, "the figures stand in these texts, but they were recorded from others"
