"""`tandem plan`: predictions for given step times, link and acceptance."""

from __future__ import annotations

import json
from typing import Any

import pytest
from click.testing import CliRunner, Result

from tandem.cli import main
from tandem.specdec.presets import PRESETS

PAIR = ["--draft-ms", "24", "--verify-ms", "72", "--verify-further-ms", "3", "--acceptance", "0.8"]


def plan(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["plan", *arguments])


def rows(*arguments: str) -> dict[str, dict[str, Any]]:
    ended = plan(*PAIR, *arguments, "--json")
    assert ended.exit_code == 0, ended.output
    return {row["preset"]: row for row in json.loads(ended.stdout)["rows"]}


def test_a_round_by_hand() -> None:
    """A round trip, five draft steps, and a pass over six tokens, by what a round brings."""
    found = rows("--rtt-ms", "30", "--draft-length", "5", "--preset", "coupled")
    assert list(found) == ["ar", "coupled"]
    assert found["ar"]["tpot_s"] == pytest.approx(0.072)
    tokens = sum(0.8**count for count in range(6))
    expected_s = (0.030 + 5 * 0.024 + 0.072 + 5 * 0.003) / tokens
    assert found["coupled"]["tpot_s"] == pytest.approx(expected_s, rel=0.08)
    gained = found["ar"]["tpot_s"] / found["coupled"]["tpot_s"]
    assert found["coupled"]["speedup_over_ar"] == pytest.approx(gained)


def test_whole_distributions_take_time_on_the_link_and_sparse_ones_little() -> None:
    found = rows("--mbps", "10", "--mbps-down", "100", "--preset", "dsd", "--preset", "dssd")
    assert found["dsd"]["uplink_bytes_per_token"] > 1000 * found["dssd"]["uplink_bytes_per_token"]
    assert found["dsd"]["tpot_s"] > 2 * found["dssd"]["tpot_s"]


def test_sessions_share_the_verifier_s_passes() -> None:
    one, many = (rows("--preset", "stream", "--sessions", count) for count in ("1", "8"))
    assert many["ar"]["tpot_s"] == pytest.approx(0.072 + 7 * 0.003, rel=0.05)
    assert many["stream"]["tpot_s"] > one["stream"]["tpot_s"]


def test_every_preset_has_a_line() -> None:
    lines = plan(*PAIR, "--rtt-ms", "30").stdout.splitlines()
    names = [line.split()[0] for line in lines[1:-1]]
    assert sorted(names) == sorted(PRESETS)


@pytest.mark.parametrize(
    ("arguments", "flag"),
    [
        (["--acceptance", "1.5"], "--acceptance"),
        (["--acceptance", "nan"], "--acceptance"),
        (["--draft-ms", "-1"], "--draft-ms"),
        (["--verify-ms", "0"], "--verify-ms"),
        (["--verify-further-ms", "inf"], "--verify-further-ms"),
        (["--cloud-draft-ms", "-1"], "--cloud-draft-ms"),
        (["--rtt-ms", "-5"], "--rtt-ms"),
        (["--mbps", "0"], "--mbps"),
        (["--sessions", "0"], "--sessions"),
    ],
)
def test_what_cannot_be_is_refused_naming_the_flag(arguments: list[str], flag: str) -> None:
    ended = plan(*PAIR, *arguments)
    assert ended.exit_code != 0
    assert flag in ended.output
