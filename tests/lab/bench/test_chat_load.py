"""What `bench capacity` makes of the events that chats saw."""

from __future__ import annotations

from math import inf

import pytest

from lab.bench.faults.chat_load import (
    Turn,
    jain,
    load_figures,
    quantile,
)


def turn(chat: int, began_s: float, *arrivals: tuple[float, int], failure: str = "") -> Turn:
    ids = list(range(sum(count for _, count in arrivals)))
    return Turn(chat, began_s, list(arrivals), ids, failure=failure)


def test_tokens_of_one_event_have_no_time_between_them() -> None:
    asked = turn(0, 1.0, (1.5, 1), (2.0, 3), (2.1, 1))
    assert asked.ttft_s == 0.5
    assert asked.tpot_s == pytest.approx(0.15)
    assert asked.gaps_s == pytest.approx([0.5, 0.1])


def test_dilated_times_are_told_undilated() -> None:
    asked = turn(0, 6.0, (9.0, 1), (12.0, 3)).undilated(6.0)
    assert (asked.ttft_s, asked.gaps_s) == (0.5, [0.5])
    assert asked.tpot_s == pytest.approx(0.5 / 3)


def test_one_without_a_token_waits_for_ever() -> None:
    lost = turn(0, 1.0, failure="HTTP/1.1 503")
    assert (lost.ttft_s, lost.tpot_s) == (inf, None)
    assert not lost.within(inf, inf)


def test_figures_are_of_what_was_asked_in_between() -> None:
    slow, quick = turn(0, 1.0, (3.0, 1), (5.0, 2)), turn(1, 1.0, (1.1, 1), (1.3, 2))
    late = turn(0, 5.0, (5.5, 40), (30.0, 40))
    figures = load_figures([slow, quick, late, turn(1, 2.0, failure="no")], 1.0, 5.0, (1.0, 0.2))
    assert (figures["answers"], figures["failed"]) == (2, 1)
    assert figures["tokens_per_s"] == 6 / 4
    assert figures["goodput"] == 1 / 4
    assert figures["within_slo"] == pytest.approx(1 / 3)
    assert figures["tpot_p95_s"] == 1.0
    assert figures["ttft_p99_s"] == inf
    assert figures["jain"] == pytest.approx(11**2 / (2 * (1 + 10**2)))


def test_fairness_is_one_where_all_get_the_same() -> None:
    assert jain([3.0, 3.0, 3.0]) == pytest.approx(1.0)
    assert jain([1.0, 0.0, 0.0, 0.0]) == 0.25
    assert jain([]) is None
    assert quantile([], 0.5) is None
