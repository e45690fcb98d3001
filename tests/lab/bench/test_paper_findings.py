"""What the papers' report says of ours: sentences that follow from the rows."""

from collections.abc import Callable, Sequence

import pytest

from lab.bench.papers.dragon_gains import relative_gains
from lab.bench.papers.paper_report import all_tables, chosen_tables
from lab.bench.papers.paper_table import Figures, PaperTable

TABLES = all_tables()


def filling(table: PaperTable, figure: Callable[[int, int], float]) -> list[Figures]:
    """Figures by row and column."""
    columns = range(len(table.figures))
    return [tuple(figure(row, one) for one in columns) for row in range(len(table.rows))]


@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.key)
def test_what_is_said_of_ours_follows_from_the_rows(table: PaperTable) -> None:
    """Other figures, another sentence; the same figures, the same."""
    size = len(table.rows)
    rising = filling(table, lambda row, one: 0.05 * (1 + row) + 0.01 * one)
    turning = filling(table, lambda row, one: (-1) ** (row + one) * 2.1 * (size - row) * (one + 2))
    missing: list[Figures] = [(None,) * len(table.figures)] * size
    said = [table.quotients(ours) + table.difference(ours) for ours in (rising, turning)]
    assert all(words.endswith((".", ").")) for words in said)
    assert table.quotients(list(rising)) + table.difference(list(rising)) == said[0]
    assert said[0] != said[1]
    if table.key in (
        "tasks",
        "fsd-table-2",
        "dragon-figure-5",
        "dragon-reweigh-gain",
    ):  # of which all may be missing
        assert table.difference(missing)


def said_of(key: str, ours: Sequence[Figures]) -> str:
    (table,) = chosen_tables([key])
    return table.difference(list(ours))


def test_as_printed_is_said_of_the_printed_figures_alone() -> None:
    (table,) = chosen_tables(["fsd-table-1"])
    printed: list[Figures] = [(*row.theirs[:3], 2 * (row.theirs[2] or 0)) for row in table.rows]
    assert "edge-cloud SD as printed." in table.quotients(printed)
    assert "costs 100 % more" in table.difference(printed)
    dearer: list[Figures] = [(*one[:2], 1.5 * (one[2] or 0), one[3]) for one in printed]
    assert "edge-cloud SD 1.50 (median 1.50)." in table.quotients(dearer)


def test_the_order_of_queues_is_told_as_it_was() -> None:
    """Rows: the client's priority, random, FIFO, each with the server's priority and FIFO."""
    least = [(10.0, 10.0, 10.0, 10.0)] * 2 + [(20.0, 18.0, 12.0, 11.0)] * 4
    words = said_of("fsd-table-7", least)
    assert "misses least in all 4 columns" in words
    assert "The server's order changes at most 0.0 points" in words
    assert "matters less the more workers" in words
    (table,) = chosen_tables(["fsd-table-7"])
    assert table.goal is not None
    assert table.goal(table.filled(least)).met
    mixed = [(10.0, 10.0, 30.0, 30.0), (19.0, 10.0, 30.0, 30.0)]
    mixed += [(20.0, 18.0, 12.0, 12.0)] * 4
    words = said_of("fsd-table-7", mixed)
    assert "misses least in 2 of 4 columns" in words
    assert "The server's order changes up to 9.0 points." in words
    assert "matters less" not in words
    assert not table.goal(table.filled([(30.0,) * 4] * 2 + [(20.0,) * 4] * 4)).met
    assert not table.goal(table.filled([(0.1,) * 4] * 2 + [(0.0,) * 4] * 4)).met


def test_gains_are_divided_only_by_gains() -> None:
    """Ratio over one context and over one side; gains in percent."""
    at = {("dragon", 0): 20.0, ("dragon", 4): 18.0, ("context-all", 4): 19.0}
    at |= {("context-device", 4): 19.5, ("crcg-device", 4): 18.5, ("crcg-cloud", 4): 18.4}
    found = relative_gains(at, 4)
    assert found == pytest.approx((2.0, 1.25, 10.0, 5.0, 8.0))
    none = relative_gains(at | {("context-all", 4): 19.99, ("context-device", 4): 21.0}, 4)
    assert none[0] is None
    small = (None, None, 0.5, 0.2, 0.4)
    missing: Figures = (None,) * 5
    words = said_of("dragon-figure-5", [missing, missing, found, missing, small, missing])
    assert "SmolLM2-135M on WikiText-2: DRAGON gains 10.0 % of perplexity" in words
    assert "one context 5.0 % (2.00 times as much)" in words
    assert "gains up to 20.0 times as much by its documents as the demo pair" in words
    words = said_of("dragon-figure-5", [missing, missing, missing, missing, found, missing])
    assert "as the demo pair" not in words


def test_a_bound_that_does_not_hold_is_not_said_to() -> None:
    good = [(0.1, 0.2, 1e-6)] * 12
    assert "holds at every position" in said_of("tslt-theorem-4-14", good)
    assert "It says something for every candidate." in said_of("tslt-theorem-4-14", good)
    broken = [*good[:-1], (0.1, 4.0, 0.02)]
    words = said_of("tslt-theorem-4-14", broken)
    assert "exceeded, by up to 0.02" in words
    assert "in 1 of 12 rows, from candidate 4 on" in words


def test_the_text_of_section_4_2_is_held_against_the_table() -> None:
    """By ours that are the table's, of the cell that stands there twice the second row's."""
    (text,), (cells,) = (chosen_tables([key]) for key in ("dssd-section-4-2", "dssd-table-3"))
    in_table = {row.labels: row.theirs[0] for row in cells.rows}
    words = text.difference([(in_table.get(row.labels, 0.0),) for row in text.rows])
    assert "agree in none of the 6 cells" in words
    assert "ours is nearer to the table in all 6." in words
