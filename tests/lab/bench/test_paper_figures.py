"""Our figures in the papers' tables: how they are computed."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np
import pytest

from lab.analysis.cost_models import expected_tokens_per_round
from lab.bench.harness.models import Models
from lab.bench.papers import dragon_smollm2, fsd_runs, real_pairs
from lab.bench.papers.dragon_gains import WIKITEXT, gains_with_interval, texts_of
from lab.bench.papers.dssd_tables import TABLE_1_VOCABULARY
from lab.bench.papers.fsd_printed import TABLE_5
from lab.bench.papers.pair_tables import METHODS
from lab.bench.papers.paper_report import all_tables, chosen_tables
from lab.bench.papers.paper_table import PaperTable
from lab.bench.papers.picospec_tables import acceptance_for, picospec_variants
from lab.bench.papers.process_cell import CELLS, LEFT_OUT
from lab.bench.papers.real_pairs import PAIRS, Drawn
from lab.bench.papers.testbed import Testbed
from tandem.specdec.presets import PRESETS, Preset
from tandem.testing.simulation.answer import Conditions, SimulatedAnswer, simulate_answer
from tandem.testing.simulation.declared_pair import declared_pair

TESTBED = Testbed(Models(), seed=1, quick=True)


@pytest.mark.parametrize(
    "table", [pytest.param(each, id=each.key) for each in all_tables() if each.formula]
)
def test_a_formula_has_every_figure_that_is_printed(table: PaperTable) -> None:
    for row in table.rows:
        for theirs, mine in zip(row.theirs, table.ours(TESTBED, row), strict=True):
            assert theirs is None or mine is not None, row


def test_prices_and_rejections_agree_with_what_is_printed() -> None:
    for key, rounding in (("fsd-table-1", 0.5), ("dssd-table-1", 0.005 + 1e-9)):
        (table,) = chosen_tables([key])
        for row in table.rows:
            for theirs, mine in zip(row.theirs, table.ours(TESTBED, row), strict=True):
                assert theirs is None or mine == pytest.approx(theirs, abs=rounding)


def test_table_1_of_dssd_forces_its_parameters() -> None:
    """One distribution takes 8.0000 to 8.0020 ms, hence 50,000 tokens and not OPT's."""
    (table,) = chosen_tables(["dssd-table-1"])
    bounds: tuple[list[float], list[float]] = ([], [])
    for row in table.rows:
        length, rate = (float(one) for one in row.labels)
        for found, edge in zip(bounds, (-0.005, 0.005), strict=True):
            found.append(((row.theirs[1] or 0.0) + edge - 20) / (1 - rate**length))
    low_ms, high_ms = max(bounds[0]), min(bounds[1])
    assert (low_ms, high_ms) == pytest.approx((8.0, 8.002), abs=1e-4)
    assert low_ms - 1e-9 <= TABLE_1_VOCABULARY * 16 / 100e6 * 1e3 <= high_ms < 50_272 * 16 / 1e5


def test_gains_are_over_no_documents_and_divided_only_by_gains() -> None:
    """Two windows; the interval of windows that are alike is a point."""
    nats = {("dragon", 0): [3.0, 3.0], ("dragon", 4): [2.8, 2.8], ("context-all", 4): [2.9, 2.9]}
    nats |= {(name, 4): [3.1, 3.1] for name in ("context-device", "context-cloud")}
    nats |= {("crcg-device", 4): [2.85, 2.85], ("crcg-cloud", 4): [2.84, 2.84]}
    ours, context, side, ratio, low, high = gains_with_interval(nats, 4, seed=1)
    expected = [100 * (1 - np.exp(-gain)) for gain in (0.2, 0.1, 0.16)]
    assert [ours, context, side] == pytest.approx(expected)
    assert ratio == low == high == pytest.approx(expected[0] / expected[1])
    spread = gains_with_interval(nats | {("dragon", 4): [2.7, 2.9]}, 4, seed=1)
    assert spread[4] is not None
    assert spread[3] is not None
    assert spread[4] < spread[3]
    useless = gains_with_interval(nats | {("context-all", 4): [3.1, 3.1]}, 4, seed=1)
    assert useless[3:] == (None, None, None)


def test_articles_come_from_a_file_that_is_there(tmp_path: Path) -> None:
    assert texts_of(WIKITEXT, None) == texts_of(WIKITEXT, tmp_path) == []
    articles = " \n = Lobster = \n \n It is blue . \n = = Diet = = \n Crabs . \n = Crab = \n Red ."
    (tmp_path / "wikitext2-valid.txt").write_text(articles)
    lobster, crab = texts_of(WIKITEXT, tmp_path)
    assert "Diet" in lobster
    assert crab == "Red ."


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


def toy_testbed() -> Testbed:
    """Answers of eight positions over a vocabulary of 1,024 tokens, no models."""
    testbed = Testbed(Models(), seed=1, quick=True)
    source = np.random.default_rng(1)
    for name in PAIRS:
        drawn = []
        for _ in range(4):
            target, noise = source.dirichlet(np.full(1024, 0.3), (2, 8)).astype(np.float32)
            token_ids = tuple(int(one.argmax()) for one in target)
            drawn.append(Drawn(token_ids, target, (target + noise) / 2))
        testbed.once(("drawn", name), partial(list, drawn))
    return testbed


@pytest.mark.parametrize(
    "key",
    [
        *("tslt-theorem-4-14", "tslt-figure-3", "tslt-figure-4", "tslt-figures-5-6"),
        *("dragon-payload", "dssd-acceptance", "picospec-accepted-length", "picospec-messages"),
    ],
)
def test_figures_of_distributions(key: str) -> None:
    """A theorem holds, mass and acceptance rise with K, and a smaller payload is smaller."""
    (table,) = chosen_tables([key])
    testbed = toy_testbed()
    found = [table.ours(testbed, row) for row in table.rows]
    columns = [[one or 0.0 for one in column] for column in zip(*found, strict=True)]
    match key:
        case "tslt-theorem-4-14":
            assert max(columns[2]) <= 1e-5
        case "tslt-figure-3" | "tslt-figure-4":
            halves = [(column[:4], column[4:]) for column in columns]
            assert all(half == sorted(half) for pair in halves for half in pair)
            assert columns[0][-1] <= 1 + 1e-6
        case "tslt-figures-5-6":
            assert columns[3] == pytest.approx(np.divide(columns[1], columns[0]).tolist())
        case "dssd-acceptance":
            assert all(0 < rate < 1 for rate in (*columns[0], *columns[2]))
            assert all(1 < length < 9 for length in (*columns[3], *columns[4]))
        case "picospec-accepted-length":
            assert all(1 < length < 5 for length in columns[0])
        case "picospec-messages":
            up, down = (dict(zip(METHODS, column, strict=True)) for column in columns[:2])
            assert up["dssd"] < up["tslt"] < up["dsd"]
            assert down["dsd"] < down["dssd"] < down["dssd-full"]
        case _:
            assert columns[2] == pytest.approx([4 * 1024 / one for one in columns[1]])
            assert all(json > full for json, full in zip(columns[0], columns[1], strict=True))


def test_without_downloaded_models_a_table_of_them_is_empty(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The whole report broke off there."""
    nowhere = Models(draft=str(tmp_path / "no"), target=str(tmp_path / "none"))
    monkeypatch.setattr(real_pairs, "PAIRS", dict.fromkeys(PAIRS, nowhere))
    monkeypatch.setattr(real_pairs, "SMOLLM2", tmp_path / "none")
    monkeypatch.setattr(dragon_smollm2, "SMOLLM2", tmp_path / "none")
    for table in (table for table in all_tables() if table.downloads):
        testbed = Testbed(Models(), 1, quick=True)
        assert {figure for row in table.rows for figure in table.ours(testbed, row)} == {None}


def test_exits_and_workers_run_with_the_paper_s_client(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is declared is what runs."""
    ran: list[Conditions] = []

    def answers(testbed: Testbed, preset: Preset, conditions: Conditions) -> list[SimulatedAnswer]:
        ran.append(conditions)
        return [
            simulate_answer(
                PRESETS["dssd"], declared_pair(0.6), conditions, (1, 2), 16, testbed.seed
            )
        ]

    monkeypatch.setattr(fsd_runs, "exits_pair", lambda: Models())
    monkeypatch.setattr(fsd_runs, "answers", answers)
    for key in ("fsd-figure-4a", "fsd-table-7"):
        (table,) = chosen_tables([key])
        table.ours(TESTBED, table.rows[0])
    own = TABLE_5[fsd_runs.CLIENT]
    for conditions in ran:
        assert conditions.times.verify_first_s == own.verify_ms / 1e3
        assert conditions.rtt_s == 2 * own.link_ms / 1e3
    (table,) = chosen_tables(["fsd-table-7"])
    assert f"step {own.drafting_ms / 4:g} ms, pass {own.verify_ms:g} ms, " in table.declared
    assert f"round trip {2 * own.link_ms:g} ms (Table 5's RTX)" in table.declared
