"""`tandem plan`: the paper's table and predictions for given step times."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner, Result

from lab.analysis.cost_models import LinkTimes, dssd
from lab.commands.plan_methods import METHODS
from tandem.cli import main
from tandem.control.conditions import PairTimes

PAIR = ["--draft-ms", "24", "--verify-ms", "72", "--verify-further-ms", "3", "--acceptance", "0.8"]


def plan(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["plan", *arguments])


def test_table_1_of_dssd_is_reproduced() -> None:
    ended = plan("--paper", "dssd-table-1", "--json")
    table = json.loads(ended.stdout)
    assert ended.exit_code == 0
    assert (table["cells"], table["within_rounding"], len(table["rows"])) == (24, 24, 24)
    assert all(abs(row["relative_difference"]) < 3e-4 for row in table["rows"])


def test_the_table_is_readable() -> None:
    shown = plan("--paper", "dssd-table-1").stdout
    assert shown.count("yes") == 24
    assert "24 of 24 cells agree" in shown


def test_predictions_are_the_cost_models_own() -> None:
    ended = plan(*PAIR, "--rtt-ms", "30", "--mbps", "20", "--draft-length", "5", "--json")
    rows = {row["preset"]: row for row in json.loads(ended.stdout)["rows"]}
    assert list(rows) == list(METHODS)
    expected = dssd(
        PairTimes(0.024, 0.072, 0.003),
        LinkTimes(0.030, 2.5e6, 2.5e6),
        acceptance_rate=0.8,
        draft_length=5,
        vocabulary_size=32_000,
        precision_bytes=2.0,
    )
    assert rows["dssd"]["predicted_tpot_s"] == expected.tpot_s
    assert rows["dssd"]["speedup_over_ar"] == expected.speedup_over_ar
    assert rows["dssd"]["downlink_bytes_per_token"] * expected.tokens_per_round == (
        pytest.approx(expected.downlink_bytes)
    )
    assert rows["ar"]["predicted_tpot_s"] == 0.072


def test_gumbel_coupling_is_planned_with_its_lower_bound_unless_told() -> None:
    def coupled_rate(*more: str) -> float:
        rows = json.loads(plan(*PAIR, *more, "--json").stdout)["rows"]
        return next(float(row["acceptance_rate"]) for row in rows if row["preset"] == "coupled")

    assert coupled_rate() == pytest.approx(0.8 / 1.2)
    assert coupled_rate("--acceptance-coupled", "0.75") == 0.75


def test_methods_stand_in_one_readable_table() -> None:
    lines = plan(*PAIR).stdout.splitlines()
    assert [line.split()[0] for line in lines] == ["method", *METHODS]
    assert len({len(line) for line in lines}) == 1


@pytest.mark.parametrize(
    ("arguments", "flag"),
    [
        (["--acceptance", "1.5"], "--acceptance:"),
        (["--acceptance", "nan"], "--acceptance:"),
        (["--draft-ms", "-1"], "--draft-ms:"),
        (["--verify-ms", "0"], "--verify-ms:"),
        (["--verify-further-ms", "inf"], "--verify-further-ms:"),
        (["--rtt-ms", "-5"], "--rtt-ms:"),
        (["--mbps", "0"], "--mbps:"),
        (["--vocabulary", "0"], "--vocabulary:"),
        (["--precision-bytes", "0"], "--precision-bytes:"),
        (["--acceptance-coupled", "2"], "--acceptance-coupled:"),
        (["--draft-length", "0"], "--draft-length"),
    ],
)
def test_a_bad_value_is_refused_by_its_flag(arguments: list[str], flag: str) -> None:
    ended = plan(*PAIR, *arguments)
    assert ended.exit_code == 2
    assert flag in ended.stderr
    assert len(ended.stderr.splitlines()) == 1


def test_it_says_what_is_missing() -> None:
    assert "--verify-ms: must be given, or --paper" in plan("--draft-ms", "1").stderr


def test_chosen_methods_are_planned_in_the_order_given() -> None:
    ended = plan(*PAIR, "--method", "fsd", "--method", "ar", "--miss-rate", "1", "--json")
    rows = json.loads(ended.stdout)["rows"]
    assert [row["preset"] for row in rows] == ["fsd", "ar"]
    # Without a hit FSD is stop-and-wait, and its small messages weigh nothing here.
    length = 4 * 0.024 + 0.072 + 4 * 0.003
    assert rows[0]["round_s"] == pytest.approx(length)


def test_a_tree_is_planned_by_its_layers() -> None:
    rows = json.loads(plan(*PAIR, "--method", "mc-dsd", "--tree", "3,1", "--json").stdout)["rows"]
    # Two draft passes, 3 + 3 nodes judged; nothing is sent in no time over an unlimited link.
    assert rows[0]["round_s"] == pytest.approx(2 * 0.024 + 0.072 + 6 * 0.003)
    assert rows[0]["draft_length"] == 2


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--tree", "2,x"], "--tree"),
        (["--tree", "2,0"], "--tree"),
        (["--miss-rate", "1.5"], "--miss-rate"),
        (["--acceptance-tree", "-1"], "--acceptance-tree"),
        (["--method", "nonesuch"], "--method"),
    ],
)
def test_what_a_method_cannot_use_is_named(arguments: list[str], named: str) -> None:
    ended = plan(*PAIR, *arguments)
    assert ended.exit_code == 2
    assert named in ended.stderr
