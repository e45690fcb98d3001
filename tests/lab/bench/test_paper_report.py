"""The papers' report: its tables, the rows that are kept, and its pages."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from lab.bench.harness.models import ROOT, Models
from lab.bench.main import bench
from lab.bench.papers import kept_results, pages, paper_report
from lab.bench.papers.headlines import HEADLINES, Headline, headline_table, span
from lab.bench.papers.kept_results import ChangedTree, KeptResults, UnreadableResults
from lab.bench.papers.pages import STALE, fill, markdown_table
from lab.bench.papers.paper_report import all_tables, chosen_tables
from lab.bench.papers.paper_table import (
    SEEDS,
    Basis,
    Figures,
    Label,
    Labels,
    PaperRow,
    PaperTable,
    filled_rows,
    over_seeds,
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
from lab.bench.papers.testbed import Testbed
from lab.machine import CHANGED, this_machine
from tandem.core.errors import InvalidArgument

TEXTS = texts_folder()
TABLES = all_tables()
TESTBED = Testbed(Models(), seed=1, quick=False)
MACHINE = replace(this_machine(), commit="a" * 40)
SOON_S = 20.0
"""Tables whose rows took longer are made again by `make reproduce` alone."""


def doubled(labels: Labels) -> Figures:
    return float(labels[0]) * 2, None


def toy_table() -> PaperTable:
    return PaperTable(
        key="toy",
        paper="Toys",
        place="Table 1",
        title="Toys and balls",
        labels=("n",),
        figures=("twice", "more"),
        rows=(PaperRow((1.0,), (2.0, None)), PaperRow((2.0,), (5.0, None))),
        declared="Nothing.",
        printed="The second row.",
        formula=doubled,
    )


def computed_table(key: str = "toy-computed") -> PaperTable:
    return replace(
        toy_table(),
        key=key,
        formula=None,
        compute=lambda testbed, labels: doubled(labels),
        basis=Basis.VIRTUAL_TIME,
    )


def test_tables_have_keys_of_their_own_and_say_what_they_are() -> None:
    keys = [table.key for table in TABLES]
    assert len(set(keys)) == len(keys)
    for table in TABLES:
        assert table.rows
        assert table.place
        assert table.declared.endswith(".")
        assert table.printed == "" or table.printed.endswith((".", ").", "”."))
        labels = [row.labels for row in table.rows]
        assert len(set(labels)) == len(labels) or table.key == "dssd-table-3"


def test_a_row_of_another_shape_and_a_table_that_does_not_say_how_are_refused() -> None:
    good = toy_table()
    with pytest.raises(ValueError, match="columns"):
        replace(good, rows=(PaperRow((1.0,), (2.0,)),))
    assert (good.compares(0), good.compares(1)) == (True, False)
    with pytest.raises(ValueError, match="1 figures for 2"):
        replace(good, formula=lambda labels: (1.0,)).ours(TESTBED, good.rows[0])
    with pytest.raises(ValueError, match="either a formula"):
        replace(good, basis=Basis.VIRTUAL_TIME)
    with pytest.raises(ValueError, match="either a formula"):
        replace(good, compute=lambda testbed, labels: (1.0, None))


def test_rows_of_several_seeds_have_a_mean_and_its_error() -> None:
    means, errors = over_seeds([(1.0, 2.0, None), (2.0, 2.0, 3.0), (3.0, 2.0, 3.0)])
    assert means == (2.0, 2.0, None)
    assert errors == pytest.approx((1 / 3**0.5, 0.0, None))
    assert over_seeds([(1.0, None)]) == ((1.0, None), ())


def test_a_key_that_is_none_is_named() -> None:
    with pytest.raises(InvalidArgument, match="only"):
        chosen_tables(["dssd-table-9"])


def test_tables_are_chosen_by_patterns_and_by_what_they_need() -> None:
    assert [table.key for table in chosen_tables(["dssd-*es"])] == ["dssd-bytes", "dssd-processes"]
    computed, measured = (
        {table.key for table in chosen_tables((), part)} for part in ("computed", "measured")
    )
    assert len(computed) + len(measured) == len(TABLES)
    assert "fsd-table-6-averages" in computed
    assert {"dssd-processes", "fsd-processes", "picospec-processes"} <= measured


def test_a_kept_row_is_current_as_long_as_its_code_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table, path = computed_table(), tmp_path / "results.json"
    row = table.rows[0]
    KeptResults(path).keep(
        table, row, (2.0, None), errors=(0.25, None), seed=1, machine=MACHINE, took_s=0.5
    )
    again = KeptResults(path)
    kept = again.get(table, row)
    assert kept is not None
    assert (kept.figures, kept.commit, kept.seed) == ((2.0, None), "a" * 40, 1)
    assert again.current(table, row)
    assert not again.current(table, table.rows[1])
    lines = page_lines(table, again)
    assert STALE.format(key=table.key) not in "\n".join(lines)
    assert "| 1 | 2 ± 0.25 | 2 | – |" in lines
    monkeypatch.setattr(kept_results, "code_of", lambda module: "of another day")
    assert not again.current(table, row)
    assert STALE.format(key=table.key) in "\n".join(page_lines(table, again))
    again.forget_others([table])
    assert KeptResults(path).get(table, row) is not None
    again.forget_others([replace(table, figures=("once",), rows=(PaperRow((1.0,), (None,)),))])
    assert KeptResults(path).get(table, row) is None
    path.write_text("[]")
    with pytest.raises(UnreadableResults, match="remove it"):
        KeptResults(path)


def page_lines(table: PaperTable, kept: KeptResults) -> list[str]:
    return list(pages._paper(table.paper, [fill(table, kept, TESTBED)]))


def test_no_row_is_kept_of_a_tree_with_changes(tmp_path: Path) -> None:
    table = computed_table()
    changed = replace(MACHINE, commit=f"{'a' * 40}{CHANGED}0123")
    with pytest.raises(ChangedTree, match="commit them"):
        KeptResults(tmp_path / "results.json").keep(
            table, table.rows[0], (2.0, None), seed=1, machine=changed, took_s=0.5
        )


def test_a_page_shows_formulas_kept_rows_and_what_is_not_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Label] = []

    def compute(testbed: Testbed, labels: Labels) -> Figures:
        asked.append(labels[0])
        return doubled(labels)

    tables = (toy_table(), replace(computed_table(), compute=compute), computed_table("toy-other"))
    monkeypatch.setattr(paper_report, "all_tables", lambda: tables)
    monkeypatch.setattr(pages, "headline_table", lambda *given: iter(()))
    monkeypatch.setattr("lab.machine.commit_of", lambda folder: "a" * 40)
    kept = tmp_path / "kept.json"
    monkeypatch.setattr(paper_report, "KeptResults", lambda: KeptResults(kept))
    arguments = ["papers", "--pages", str(tmp_path / "site")]
    for more in (("--only", "toy-computed"), ("--only", "toy-computed"), ("--stale",)):
        done = CliRunner().invoke(bench, [*arguments, *more])
        assert done.exit_code == 0, done.output
    assert asked == [1.0, 2.0] * SEEDS, "what is current is not computed again"
    found = {page.name: page.read_text() for page in (tmp_path / "site").glob("*.md")}
    assert set(found) == {"index.md", "toys.md"}
    assert found["toys.md"].count("| 2 | 4 | 5 | – |") == 2
    assert (
        "Not run yet: `tandem bench papers --pages lab/docs/papers --only toy-other`"
        in (found["toys.md"])
    )
    assert "`aaaaaaaaaaaa`" in found["index.md"]
    assert str(tmp_path) not in kept.read_text() + found["toys.md"]
    assert str(ROOT) not in kept.read_text()


def test_a_table_without_pages_is_printed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paper_report, "all_tables", lambda: (toy_table(),))
    done = CliRunner().invoke(bench, ["papers", "--quick"])
    assert done.exit_code == 0, done.output
    assert "twice (ours)" in done.output


def test_a_bar_in_a_cell_does_not_end_it() -> None:
    (table,) = chosen_tables(["tslt-theorem-4-14"])
    lines = list(markdown_table(table, [(0.1, 0.2, -0.1)] * len(table.rows)))
    assert len({len(re.findall(r"(?<!\\)\|", line)) for line in lines}) == 1


PUBLISHED = {
    path.name: path.read_text() for path in (ROOT / "lab" / "docs" / "papers").glob("*.md")
}


def test_the_documentation_s_pages_are_made_of_formulas_and_kept_rows() -> None:
    """But for the words that say which tables are stale today."""

    def of_any_code(text: str) -> str:
        return re.sub(r"\n\n\*\*Stale:\*\*[^\n]*", "", text)

    kept = KeptResults()
    made = pages.pages([fill(table, kept, TESTBED) for table in TABLES])
    assert {name: of_any_code(text) for name, text in made.items()} == {
        name: of_any_code(text) for name, text in PUBLISHED.items()
    }


def soonest(table: PaperTable) -> PaperRow | None:
    """The kept row that took least; None where the table took too long, or none is kept."""
    kept = KeptResults()
    took_s = {
        row: one.took_s for row in table.rows if (one := kept.get(table, row)) and one.took_s > 0
    }
    soon = sum(took_s.values()) <= SOON_S
    return min(took_s, key=lambda row: took_s[row], default=None) if soon else None


@pytest.mark.timeout(600)  # what a row is drawn from is recorded anew, for each seed
@pytest.mark.parametrize(
    "table",
    [
        pytest.param(table, id=table.key)
        for table in TABLES
        if table.formula is None and not table.downloads and soonest(table)
        if table.basis is not Basis.PROCESSES
    ],
)
def test_a_kept_row_comes_out_again(table: PaperTable) -> None:
    row = soonest(table)
    assert row is not None
    kept = KeptResults().get(table, row)
    assert kept is not None
    testbeds = [Testbed(Models(), kept.seed + number, quick=False) for number in range(table.seeds)]
    ours, errors = over_seeds([table.ours(testbed, row) for testbed in testbeds])
    assert ours == pytest.approx(kept.figures, rel=1e-4)
    assert errors == pytest.approx(kept.errors, rel=1e-3)


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
        assert table.paper == headline.paper
        assert set(place.figures) <= set(table.figures)
        rows = filled_rows(table, [(0.5,) * len(table.figures) for _ in table.rows])
        assert place.rows(rows), place
        assert place.words(rows) != "–"


def test_a_headline_shows_the_lowest_and_the_highest_row() -> None:
    (table,) = chosen_tables(["dssd-table-2"])
    ours = [(1.0, float(number), None) for number, _ in enumerate(table.rows)]
    shown = HEADLINES[0].places[0]
    assert shown is not None
    assert shown.words(filled_rows(table, ours)) == "1.00 to 17.00"
    lines = list(
        headline_table(
            [(each, None) for each in TABLES if each is not table] + [(table, ours)],
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
