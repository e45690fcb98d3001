"""Whether drafts paid: of answers in turns, what is said, and why."""

from __future__ import annotations

from typing import Any

import pytest

from tandem.core.errors import TandemError
from tandem.generation.client import Generated
from tandem.generation.comparison import Comparison, Spread, speeds
from tandem_api.common.v1.generation_pb2 import Summary

CHOICE: dict[str, Any] = {
    **{"schedule": "rounds of 4", "acceptance_rate": 0.8, "target_pass_s": 0.1},
    **{"draft_step_s": 0.01, "per_draft_token_s": 0.02, "round_trip_s": 0.03},
}


def answer(
    tpot_s: float | None,
    text: str = "blue",
    *,
    tokens: int = 40,
    drafted: int = 0,
    accepted: int = 0,
    choice: dict[str, Any] | None = None,
) -> Generated:
    summary = Summary(tokens=tokens, drafted=drafted, accepted=accepted)
    summary.target_passes = max(1, tokens - accepted)
    if choice is not None:
        summary.choice.SetInParent()
        for name, value in choice.items():
            setattr(summary.choice, name, value)
    return Generated(text=text, tpot_s=tpot_s, summary=summary)


def compared(own_s: list[float], alone_s: list[float], **own: Any) -> Comparison:
    drafted = {"drafted": 40, "accepted": 20, **own}
    return Comparison(
        tuple(answer(each, **drafted) for each in own_s), tuple(answer(each) for each in alone_s)
    )


def test_a_turn_is_compared_with_itself_alone() -> None:
    """A machine that is twice as slow in one turn changes no ratio."""
    found = compared([0.05, 0.10, 0.05], [0.10, 0.20, 0.075]).speedup
    assert (found.middle, found.highest) == (2.0, 2.0)
    assert found.lowest == pytest.approx(1.5)
    assert speeds([answer(0.05), answer(0.1), answer(0.2)]) == Spread(10.0, 5.0, 20.0)


@pytest.mark.parametrize(
    ("own_s", "alone_s", "own", "verdict"),
    [
        (
            [0.05, 0.04],
            [0.10, 0.10],
            {},
            "drafts paid here: 2.25 times as fast (2.00 to 2.50), with 0.50 passes of the large"
            " model a token",
        ),
        (
            [0.20, 0.25],
            [0.10, 0.10],
            {"choice": CHOICE},
            "drafts did not pay here: 0.45 times as fast (0.40 to 0.50); the link's round trip"
            " takes as long as 30% of a pass of the large model",
        ),
        (
            [0.08, 0.125],
            [0.10, 0.10],
            {"choice": {**CHOICE, "draft_step_s": 0.25}},
            "no difference that 2 turns can show: 1.02 times as fast (0.80 to 1.25); drafting a"
            " token takes as long as 2.5 passes of the large model",
        ),
        (
            [0.20, 0.20],
            [0.10, 0.10],
            {"choice": {**CHOICE, "per_draft_token_s": 0.09}},
            "drafts did not pay here: 0.50 times as fast (0.50 to 0.50); checking a drafted token"
            " takes as long as 90% of a pass of the large model",
        ),
        (
            [0.20, 0.20],
            [0.10, 0.10],
            {"choice": {**CHOICE, "acceptance_rate": 0.2}},
            "drafts did not pay here: 0.50 times as fast (0.50 to 0.50); about 20% of the drafts"
            " are right",
        ),
        (
            [0.20, 0.20],
            [0.10, 0.10],
            {},
            "drafts did not pay here: 0.50 times as fast (0.50 to 0.50); 50% of the drafts were"
            " right",
        ),
        (
            [0.10, 0.10],
            [0.10, 0.10],
            {"drafted": 0, "accepted": 0},
            "no draft helped here: 1.00 times as fast (1.00 to 1.00), by chance; no draft was made",
        ),
        (
            [0.20, 0.20],
            [0.10, 0.10],
            {"accepted": 0},
            "no draft helped here: 0.50 times as fast (0.50 to 0.50); 0% of the drafts were right",
        ),
        (
            [0.05, 0.05],
            [0.10, 0.10],
            {"tokens": 8},
            "answers of fewer than 16 tokens are too short to tell",
        ),
    ],
)
def test_one_line_says_whether_drafts_paid_and_why(
    own_s: list[float], alone_s: list[float], own: dict[str, Any], verdict: str
) -> None:
    assert compared(own_s, alone_s, **own).verdict() == verdict


def test_answers_of_one_token_have_no_speed() -> None:
    with pytest.raises(TandemError, match="too short to compare"):
        Comparison((answer(None),), (answer(0.1),))


def test_one_other_text_is_another_text() -> None:
    same = (answer(0.1), answer(0.1))
    assert Comparison(same, same).is_same_text
    assert not Comparison(same, (answer(0.1), answer(0.1, "green"))).is_same_text
