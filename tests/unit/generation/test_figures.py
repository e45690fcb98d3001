"""The plain line after an answer: what it says, and what it leaves out, being not measured."""

from __future__ import annotations

from typing import Any

import pytest

from tandem.control.schedule import CLOUD_ALONE, CLOUD_DRAFTS
from tandem.generation.figures import plain_line

ANSWER: dict[str, Any] = {
    **{"tokens": 50, "tpot_s": 0.02, "drafted": 40, "accepted": 22},
    **{"lossy": False, "unverified": []},
}
MEASURED = {"schedule": "rounds of 4", "cloud_alone_tpot_s": 0.042, "cloud_alone_measured": True}


def line(**more: Any) -> str:
    return plain_line({**ANSWER, **more}, "stop")


def test_speed_share_and_gain_are_said_in_a_line() -> None:
    expected = "50 tokens/s, 44% drafted on the device, 2.1 times as fast as the large model alone"
    assert line(choice=MEASURED) == expected


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"choice": {**MEASURED, "cloud_alone_measured": False}},
        {"choice": {**MEASURED, "schedule": CLOUD_ALONE}},
        {"choice": {**MEASURED, "schedule": CLOUD_DRAFTS}},
        {"choice": MEASURED, "tokens": 31, "accepted": 14},
    ],
)
def test_what_was_not_measured_is_left_out(more: dict[str, Any]) -> None:
    assert line(**more).endswith("% drafted on the device")


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"tpot_s": 0.25}, "4.0 tokens/s, 44% drafted on the device"),
        ({"drafted": 0, "accepted": 0}, "50 tokens/s, by the large model alone"),
        ({"drafted": 8, "accepted": 0}, "50 tokens/s, by the large model alone"),
        (
            {"tokens": 300, "accepted_memory_tokens": 1, "accepted": 2, "cloud_accepted": 1}
            | {"cloud_drafted": 9},
            "50 tokens/s, by the large model alone",
        ),
        (
            {"cloud_drafted": 9, "cloud_accepted": 6},
            "50 tokens/s, 44% drafted on the device, 12% by drafts of the cloud",
        ),
        (
            {"drafted": 0, "accepted": 0, "unverified": [1, 2]},
            "50 tokens/s; 2 tokens unverified: the cloud was lost",
        ),
        (
            {"accepted_memory_tokens": 12},
            "50 tokens/s, 20% drafted on the device, 24% repeated from earlier text",
        ),
        (
            {"accepted_memory_tokens": 22},
            "50 tokens/s, 44% repeated from earlier text",
        ),
        ({"tokens": 1, "tpot_s": None, "accepted": 1}, "1 token, 100% drafted on the device"),
        (
            {"choice": {**MEASURED, "cloud_alone_tpot_s": 0.0199}},
            "50 tokens/s, 44% drafted on the device, about as fast as the large model alone",
        ),
        (
            {"unverified": [1, 2]},
            "50 tokens/s, 44% drafted on the device; 2 tokens unverified: the cloud was lost",
        ),
        (
            {"device": {"documents": 2}, "cloud": {"documents": 1}},
            "50 tokens/s, documents: 2 from the device, 1 from the cloud",
        ),
    ],
)
def test_each_kind_of_answer_has_its_words(more: dict[str, Any], words: str) -> None:
    assert line(**more) == words


def test_an_answer_that_was_cut_off_says_so() -> None:
    assert (
        plain_line(ANSWER, "length")
        == "50 tokens/s, 44% drafted on the device, cut off at 50 tokens"
    )
