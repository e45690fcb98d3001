"""Our figures in the papers' report: how they are computed."""

import gzip
import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from lab.analysis.cost_models import expected_tokens_per_round
from lab.bench.harness.suite import Models
from lab.bench.harness.texts import NoTexts
from lab.bench.harness.weights import parameters_in
from lab.bench.papers import fsd_runs, tslt_figures
from lab.bench.papers.fsd_printed import TABLE_5
from lab.bench.papers.paper_report import all_tables, chosen_tables
from lab.bench.papers.paper_table import Basis, Figures, PaperTable
from lab.bench.papers.picospec_tables import acceptance_for
from lab.bench.papers.process_cell import CELLS, LEFT_OUT
from lab.bench.papers.report_pages import (
    command_of,
)
from lab.bench.papers.reweigh_gain import reweighed
from lab.bench.papers.task_files import TaskText, task_items
from lab.bench.papers.task_tables import first_right_exits, task_texts
from lab.bench.papers.testbed import Testbed
from lab.bench.speculation.demo_pair import distributions_along
from lab.bench.speculation.methods_ablations import picospec_variants
from lab.bench.speculation.methods_grid import Question
from tandem.core.probs import Array
from tandem.specdec.presets import PRESETS, Preset
from tandem.testing.scripted import ScriptedEngine, noisy_probs, scripted_probs
from tandem.testing.simulation.answer import Conditions, SimulatedAnswer, simulate_answer
from tandem.testing.simulation.declared_pair import declared_pair
from tandem.testing.simulation.model_pair import SimulatedPair
from tests.long_runs import LONG

TABLES = all_tables()


def test_relevances_hold_for_a_stretch() -> None:
    """The first document from token 0, the second from 2, both from 4 on."""
    distributions = np.array([[0.5] * 5, [0.1] * 5])
    at = {0: [0.0, -np.inf], 2: [-np.inf, 3.0], 4: [1.0, 1.0]}
    asked = [0.5, 0.5, 0.1, 0.1, 0.3]
    assert reweighed(distributions, 2, at.__getitem__) == pytest.approx(asked)
    assert reweighed(distributions, 5, at.__getitem__) == pytest.approx([0.5] * 5)


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


def test_tasks_are_read_as_their_publishers_offer_them(tmp_path: Path) -> None:
    folder = tmp_path
    turns = {"turns": ["Write a poem.", "Shorter."], "category": "writing"}
    (folder / "mt-bench.jsonl").write_text(json.dumps(turns))
    alpaca = [
        {"instruction": "Add.", "input": "1 and 2", "output": "3"},
        {"instruction": "Say hello.", "input": "", "output": "Hello."},
    ]
    (folder / "alpaca_data.json").write_text(json.dumps(alpaca))
    asked = [{"category": kind, "turns": [kind]} for kind in ("summarization", "qa", "math")]
    (folder / "spec-bench.jsonl").write_text("\n".join(map(json.dumps, asked)))
    problem = {"question": "1 + 1?", "answer": "#### 2"}
    (folder / "gsm8k-test.jsonl").write_text(json.dumps(problem))
    assert task_items("MT-bench", folder) == [TaskText("Write a poem.")]
    assert task_texts("Alpaca", folder) == ["Add.\n1 and 2\n3", "Say hello.\nHello."]
    assert task_texts("CNN/DM", folder) == ["summarization"]
    assert task_texts("NQ", folder) == ["qa"]
    assert task_items("GSM8K", folder) == [TaskText("Question: 1 + 1?\nAnswer:", " #### 2")]
    assert all(item.answer for item in task_items("GSM8K", None))
    (folder / "mt-bench.jsonl").write_text(json.dumps({"turns": []}))
    with pytest.raises(NoTexts, match="mt-bench"):
        task_items("MT-bench", folder)


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


LONG_TABLES = ("dssd-table-2", "dssd-table-3")
"""Computed for more than a second, as the others are in milliseconds."""


@pytest.mark.parametrize(
    "table",
    [
        pytest.param(each, marks=[LONG] if each.key in LONG_TABLES else [], id=each.key)
        for each in TABLES
        if each.basis is Basis.COST_MODEL
    ],
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
            for kept, best, whole in zip(*columns, strict=True):
                assert best == whole if kept == tslt_figures.VOCABULARY else best > whole
        case _:
            assert columns[2] == pytest.approx([4 * 50_272 / one for one in columns[1]])
            assert all(json > full for json, full in zip(columns[0], columns[1], strict=True))


class ExitlessTestbed(Testbed):
    """A pair that is declared, whose target has no exits."""

    @property
    def pair(self) -> SimulatedPair:
        return declared_pair(0.6)

    def answers(
        self,
        preset: Preset,
        conditions: Conditions,
        questions: Sequence[Question] | None = None,
    ) -> list[SimulatedAnswer]:
        return [simulate_answer(preset, self.pair, conditions, (1, 2), 16, self.seed)]


def test_a_target_without_exits_has_no_figures_of_fsd_alone() -> None:
    """The whole report broke off there."""
    (table,) = chosen_tables(["fsd-table-6-averages"])
    testbed = ExitlessTestbed(Models(), 1, quick=True)
    ours = [table.checked(table.compute(testbed, row.labels)) for row in table.rows]
    for faster, gain, tokens, missed, _ in ours:
        assert (gain, missed) == (None, None)
        assert 0 < (faster or 0) < 5
        assert 1 <= (tokens or 0) <= 5


def test_exits_and_workers_run_with_the_paper_s_client(monkeypatch: pytest.MonkeyPatch) -> None:
    """Figure 4a's is the RTX, Table 7's the Jetson; what is declared is what runs."""
    ran: list[Conditions] = []

    def run(testbed: Testbed, preset: Preset, conditions: Conditions) -> Figures:
        ran.append(conditions)
        return 1.0, 50.0

    monkeypatch.setattr(fsd_runs, "_run", run)
    for key, client in (("fsd-figure-4a", "RTX"), ("fsd-table-7", "Jetson")):
        (table,) = chosen_tables([key])
        ran.clear()
        table.compute(Testbed(Models(), 1, True), table.rows[0].labels)
        own = TABLE_5["Vicuna-68m/Vicuna-7B", client]
        for conditions in ran:
            assert conditions.times.verify_first_s == own.verify_ms / 1e3
            assert conditions.rtt_s == 2 * own.link_ms / 1e3
        words = table.declared.lower()
        assert f"draft step {own.drafting_ms / 4:g} ms, pass {own.verify_ms:g} ms, " in words
        assert f"round trip {2 * own.link_ms:g} ms (table 5's {client.lower()})" in words
