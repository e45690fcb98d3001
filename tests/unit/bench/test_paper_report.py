"""The papers' report: its tables' shape, what is kept between runs, and its pages."""

import gzip
import json
import os
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from bench.harness.machine import this_machine
from bench.harness.report import Report
from bench.harness.suite import Models
from bench.harness.texts import NoTexts
from bench.main import bench
from bench.papers import robot_table
from bench.papers.dragon_gains import relative_gains
from bench.papers.fsd_measured import parameters_in
from bench.papers.fsd_runs import interpolated_exits
from bench.papers.kept_results import KeptResults, KeptRow, UnreadableResults
from bench.papers.paper_report import all_tables, chosen_tables
from bench.papers.paper_table import Basis, Compute, Figures, Label, Labels, PaperRow, PaperTable
from bench.papers.picospec_tables import acceptance_for
from bench.papers.process_cell import CELLS, LEFT_OUT
from bench.papers.report_pages import (
    Filled,
    command_of,
    decimals_of,
    figure_text,
    printed_decimals,
    prose,
    write_pages,
)
from bench.papers.reweigh_gain import reweighed
from bench.papers.robot_task import ACROSS, CELL, COLOURS, DOWN, VOCABULARY, robot_task
from bench.papers.rows import span
from bench.papers.task_tables import first_right_exits, task_texts
from bench.papers.testbed import Testbed
from bench.speculation.demo_pair import distributions_along
from bench.speculation.methods_ablations import picospec_variants
from tandem.analysis.cost_models import expected_tokens_per_round
from tandem.backends.scripted import ScriptedEngine, noisy_probs, scripted_probs
from tandem.core.errors import InvalidArgument
from tandem.core.probs import Array
from tandem.simulation.declared_pair import declared_pair
from tandem.specdec.presets import PRESETS
from tandem.vision.image_files import decode_image

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


def test_what_stands_between_backticks_is_code_and_zero_has_no_sign() -> None:
    assert prose("see `a < b` & `c`") == "see <code>a &lt; b</code> &amp; <code>c</code>"
    assert span([-4.0, -0.2], "+.0f") == "-4 to +0"


def test_figures_are_shown_as_precisely_as_they_are_printed() -> None:
    """The paper's with all its decimals, ours with as many or three digits."""
    (table,) = chosen_tables(["dssd-table-1"])
    ours = tuple(KeptRow({}, (0.0199, 26.956), "a machine", 0.1, 1.0) for _ in table.rows)
    filled = Filled(table, ours)
    assert (printed_decimals(table, 0), printed_decimals(table, 1)) == (2, 2)
    assert figure_text(27.5, 2) == "27.50"
    assert figure_text(ours[0].figures[1], decimals_of(filled, 1)) == "26.96"
    assert figure_text(ours[0].figures[0], decimals_of(filled, 0)) == "0.0199"
    assert figure_text(61_269.0, 0) == "61,269"
    assert figure_text(-0.0000012, 3) == "-1.2e-06"
    assert figure_text(0.0, 2) == "0.00"
    assert figure_text(None, 2) == "–"


def test_a_column_has_whose_figures_there_are() -> None:
    table = toy_table()
    none = Filled(table, tuple(KeptRow({}, (None, None), "a machine", 0.1, 1.0) for _ in "ab"))
    assert [none.shown(0), none.shown(1)] == [["paper"], ["ours"]]
    ours = Filled(table, tuple(KeptRow({}, (1.0, None), "a machine", 0.1, 1.0) for _ in "ab"))
    assert ours.shown(0) == ["ours", "paper"]
    assert decimals_of(ours, 0) == 0


def test_the_command_names_what_the_report_was_made_with() -> None:
    (table,) = chosen_tables(["tasks"])
    testbed = Testbed(Models(draft="my draft"), 3, True, Path("/texts"))
    assert command_of(table, testbed) == (
        "tandem bench papers --only tasks --folder again --seed 3 --quick --draft 'my draft' "
        "--tasks /texts"
    )
    plain = Testbed(Models(), 1, False)
    assert command_of(toy_table(), plain).endswith("--only toy --folder again --seed 1")
    assert command_of(table, plain).endswith("--tasks FOLDER")


def test_measured_on_a_busy_machine_is_said(tmp_path: Path) -> None:
    """Of tables whose figures depend on it, and the loads of all rows."""
    busy = [KeptRow({}, (2.0, None), "a machine", 1.0, load) for load in (0.1, 7.0)]
    testbed = Testbed(Models(), 1, False)
    report = Report("papers", 1, False, this_machine(), "tandem bench papers")
    for basis, said in ((Basis.MEASURED, True), (Basis.COST_MODEL, False)):
        filled = Filled(replace(toy_table(), basis=basis), tuple(busy))
        write_pages(tmp_path, [filled], report, testbed)
        page = (tmp_path / "index.html").read_text()
        assert "load 0.1 to 7.0, in 2 s." in page
        assert ("The machine was busy" in page.partition("<h2")[2]) is said


def test_relevances_hold_for_a_stretch() -> None:
    """The first document from token 0, the second from 2, both from 4 on."""
    distributions = np.array([[0.5] * 5, [0.1] * 5])
    at = {0: [0.0, -np.inf], 2: [-np.inf, 3.0], 4: [1.0, 1.0]}
    asked = [0.5, 0.5, 0.1, 0.1, 0.3]
    assert reweighed(distributions, 2, at.__getitem__) == pytest.approx(asked)
    assert reweighed(distributions, 5, at.__getitem__) == pytest.approx([0.5] * 5)


def test_a_bound_that_does_not_hold_is_not_said_to() -> None:
    good = [(0.1, 0.2, 1e-6)] * 12
    assert "holds at every position" in said_of("tslt-theorem-4-14", good)
    assert "It says something for every candidate." in said_of("tslt-theorem-4-14", good)
    broken = [*good[:-1], (0.1, 4.0, 0.02)]
    words = said_of("tslt-theorem-4-14", broken)
    assert "exceeded, by up to 0.02" in words
    assert "in 1 of 12 rows, from candidate 4 on" in words


def test_texts_of_tasks_come_from_files_that_are_there(tmp_path: Path) -> None:
    assert len(task_texts("GSM8K", None)) > 50
    assert task_texts("HumanEval", None) == task_texts("WikiText-2", tmp_path) == []
    problem = {"prompt": "def one():\n", "canonical_solution": "    return 1\n"}
    with gzip.open(tmp_path / "HumanEval.jsonl.gz", "wt") as file:
        file.write(json.dumps(problem))
    articles = " \n = Lobster = \n \n It is blue . \n = = Diet = = \n Crabs . \n = Crab = \n Red ."
    (tmp_path / "wikitext2-valid.txt").write_text(articles)
    assert task_texts("HumanEval", tmp_path) == ["def one():\n    return 1\n"]
    lobster, crab = task_texts("WikiText-2", tmp_path)[-2:]
    assert "Diet" in lobster
    assert crab == " = Crab = \n Red ."
    (tmp_path / "HumanEval.jsonl.gz").write_bytes(b"no gzip")
    with pytest.raises(NoTexts, match="HumanEval"):
        task_texts("HumanEval", tmp_path)


def test_the_first_exit_that_is_right_is_found() -> None:
    """The shallower exit is right at times, the deeper one always, the deepest is not asked."""
    right = scripted_probs(1, 64, sharpness=9.0)
    guess = noisy_probs(right, scripted_probs(2, 64, sharpness=9.0), 0.6)
    token_ids = list(range(40))
    target = ScriptedEngine(64, right, exit_distributions=(guess, right, guess))
    first = first_right_exits(target, token_ids, distributions_along(target, token_ids))
    assert len(first) == len(token_ids) - 1
    assert set(first) == {0, 1}
    blind = ScriptedEngine(64, right, exit_distributions=(guess,))
    assert first_right_exits(blind, token_ids, distributions_along(target, token_ids)) == [
        each if each == 0 else -1 for each in first
    ]
    plain = ScriptedEngine(64, right)
    assert first_right_exits(plain, token_ids, distributions_along(target, token_ids)) == []


def test_parameters_of_a_folder_are_counted() -> None:
    """Four exits of rank 128 before and behind 320 numbers."""
    assert parameters_in(Path(Models().target).parent / "demo-exits") == 4 * 128 * 2 * 320


def test_a_row_without_any_printed_figure_says_why() -> None:
    for table in TABLES:
        for row in table.rows:
            assert row.remark or any(one is not None for one in row.theirs), (table.key, row)


def test_a_row_of_another_shape_is_refused() -> None:
    good = toy_table()
    with pytest.raises(ValueError, match="columns"):
        replace(good, rows=(PaperRow((1.0,), (2.0,)),))
    assert (good.compares(0), good.compares(1)) == (True, False)
    with pytest.raises(ValueError, match="1 figures for 2"):
        good.checked((1.0,))


@pytest.mark.parametrize(
    "table",
    [each for each in TABLES if each.basis is Basis.COST_MODEL],
    ids=lambda table: table.key,
)
def test_a_cost_model_has_the_shape_of_the_printed_table(table: PaperTable) -> None:
    """The first row and the last: pure arithmetic but for Table 2's column in virtual time."""
    testbed = Testbed(Models(), seed=1, quick=True)
    for row in (table.rows[0], table.rows[-1]):
        ours = table.checked(table.compute(testbed, row.labels))
        missing = [
            theirs
            for theirs, mine in zip(row.theirs, ours, strict=True)
            if theirs is not None and mine is None
        ]
        assert not missing or row.remark


def test_prices_and_rejections_agree_with_what_is_printed() -> None:
    testbed = Testbed(Models(), seed=1, quick=True)
    for key, rounding in (("fsd-table-1", 0.5), ("dssd-table-1", 0.005 + 1e-9)):
        (table,) = chosen_tables([key])
        for row in table.rows:
            ours = table.compute(testbed, row.labels)
            for theirs, mine in zip(row.theirs, ours, strict=True):
                assert theirs is None or mine == pytest.approx(theirs, abs=rounding)


def test_prices_of_ones_own_have_a_row() -> None:
    """As many as a printed pair has: the same dollars."""
    (table,) = chosen_tables(["fsd-table-1"])
    *_, own = table.rows
    none = Testbed(Models(), seed=1, quick=True)
    assert table.compute(none, own.labels) == (None,) * 4
    priced = Testbed(Models(), seed=1, quick=True, prices=(0.2, 0.2, 0.7, 0.7))
    assert table.compute(priced, own.labels) == table.compute(none, table.rows[3].labels)
    assert command_of(table, priced).endswith("--seed 1 --quick --prices 0.2 0.2 0.7 0.7")


def test_what_is_computed_with_other_prices_is_another_row(tmp_path: Path) -> None:
    table, row = toy_table(), toy_table().rows[0]
    kept = KeptResults(tmp_path / "results.json", "abc")
    plain = Testbed(Models(), seed=1, quick=True)
    kept.keep(plain, table, row, (2.0, None), "a machine", 0.5, 3.0)
    assert kept.get(plain, table, row) is not None
    priced = Testbed(Models(), seed=1, quick=True, prices=(0.2, 0.2, 0.7, 0.7))
    assert kept.get(priced, table, row) is None


def test_a_request_leaves_out_what_the_tables_leave_out() -> None:
    whole = PRESETS["picospec"].with_draft_length(4)
    variants = picospec_variants(whole)
    for cell in CELLS:
        cell.composed.validate()
        if cell.method in LEFT_OUT:
            assert cell.composed == variants[cell.method] != whole
    assert {cell.pair for cell in CELLS} == {"Qwen", "Llama"}


@pytest.mark.parametrize("length", [3, 6])
def test_acceptance_for_an_accepted_length(length: int) -> None:
    assert expected_tokens_per_round(acceptance_for(2.5, length), length) == pytest.approx(2.5)
    assert acceptance_for(99.0, length) == 1.0


def test_a_key_that_is_none_is_named() -> None:
    with pytest.raises(InvalidArgument, match="only"):
        chosen_tables(["dssd-table-9"])


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

    monkeypatch.setattr("bench.papers.paper_report.all_tables", lambda: (toy_table(compute),))
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


class ToyTestbed(Testbed):
    """Three positions of a vocabulary of 64 tokens, no models."""

    @property
    def distributions(self) -> list[tuple[Array, Array]]:
        source = np.random.default_rng(self.seed)
        pairs = source.dirichlet(np.full(64, 0.3), (3, 2)).astype(np.float32)
        return [(target, draft) for target, draft in pairs]


@pytest.mark.parametrize(
    "key",
    [
        *("tslt-theorem-4-14", "tslt-figure-3", "tslt-figure-4", "tslt-figures-5-6"),
        "dragon-payload",
        "tslt-fitted-k",
    ],
)
def test_figures_of_distributions(key: str) -> None:
    """A theorem holds, mass and acceptance rise with K, and a smaller payload is smaller."""
    (table,) = chosen_tables([key])
    testbed = ToyTestbed(Models(), seed=1, quick=True)
    found = [table.checked(table.compute(testbed, row.labels)) for row in table.rows]
    columns = [[one or 0.0 for one in column] for column in zip(*found, strict=True)]
    match key:
        case "tslt-theorem-4-14":
            assert max(columns[2]) <= 1e-5
        case "tslt-figure-3" | "tslt-figure-4":
            assert all(column == sorted(column) for column in columns)
            assert columns[0][-1] <= 1 + 1e-6
        case "tslt-figures-5-6":
            assert columns[3] == pytest.approx(np.divide(columns[1], columns[0]).tolist())
        case "tslt-fitted-k":
            assert columns[0] == sorted(columns[0])
            assert all(best >= whole for best, whole in zip(columns[1], columns[2], strict=True))
        case _:
            assert columns[2] == pytest.approx([4 * 50_272 / one for one in columns[1]])
            assert all(json > full for json, full in zip(columns[0], columns[1], strict=True))


def test_a_deeper_exit_is_closer_to_the_target() -> None:
    pair = interpolated_exits(declared_pair(0.0), 3)
    assert pair.exit_depths == (0.25, 0.5, 0.75)
    target = pair.target_probs((1, 2))
    apart = [
        float(np.abs(exit_probs((1, 2)) - target).sum()) for exit_probs in pair.exit_distributions
    ]
    assert apart == sorted(apart, reverse=True)
    assert apart[0] == pytest.approx(2 * 0.75, abs=0.01)


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


def test_the_robot_says_what_is_in_its_picture() -> None:
    lengths = set()
    for seed in range(40):
        task = robot_task(seed)
        pixels = np.asarray(decode_image(task.image, 0))
        words = task.answer.replace(",", "").split()
        colours = (task.instruction.split()[2], words[words.index("one") - 1])
        across = [word for word in words if word in ACROSS]
        down = [word for word in words if word in DOWN]
        for colour, column, row in zip(colours, across, down, strict=False):
            x, y = list(ACROSS).index(column) * CELL, list(DOWN).index(row) * CELL
            assert (pixels[y : y + CELL, x : x + CELL] == COLOURS[colour]).all()
        assert words[-2] == "step"
        assert words[-3] == DOWN[down[0]]
        lengths.add(len(task.token_ids))
        assert max(task.token_ids) < VOCABULARY
    assert len(lengths) == 1
    assert robot_task(3) == robot_task(3) != robot_task(4)


def test_a_pair_that_sees_is_trained_and_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, small in (
        ("QUICK_STEPS", 2),
        ("QUICK_EXIT_STEPS", 2),
        ("QUICK_ANSWERS", 2),
        ("EXIT_TEXTS", 40),
    ):
        monkeypatch.setattr(robot_table, name, small)
    (table,) = robot_table.tables()
    testbed = Testbed(Models(), 1, quick=True)
    ours = [table.compute(testbed, row.labels) for row in table.rows]
    faster, gain, tokens, missed, right = (one or 0.0 for one in ours[0])
    assert 0 < faster < 5
    assert 0.5 < gain < 2
    assert 1 <= tokens <= 5
    assert 0 <= missed <= 100
    assert 0 <= right <= 100
    assert ours[1][0] == faster  # without exits it is the same pair
    assert "trained with pictures" in table.difference(ours)
