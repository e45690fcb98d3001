"""What a pass can bear: drafts that are worth their cost, and none that are not."""

from __future__ import annotations

from math import sqrt
from random import Random

import pytest

from tandem.control.acceptance import PooledAcceptanceRate, SessionAcceptanceRate
from tandem.control.pass_budget import PassBudget, worth_feeding
from tandem.net.fair_shares import FairShares
from tandem.net.tenant import Tenant

FIRST_S = 0.069
FURTHER_S = 0.003


def busy(sessions: int, drafts: int = 1, passes: int = 60) -> PassBudget:
    """After passes over a token of each session, and every other time over drafts too."""
    budget = PassBudget()
    for number in range(passes):
        tokens = sessions * (1 + drafts * (number % 2))
        budget.passed(FIRST_S + tokens * FURTHER_S, tokens, sessions)
    return budget


def test_before_any_pass_all_drafts_are_taken() -> None:
    assert PassBudget().drafts(0.1, 8) == 8


def test_a_further_token_takes_what_the_passes_tell() -> None:
    assert PassBudget().token_s == 0.0
    assert busy(4).token_s == pytest.approx(FURTHER_S)


def test_one_session_feeds_deep_and_many_feed_what_pays() -> None:
    depths = [busy(sessions).drafts(0.8, 8) for sessions in (1, 4, 16, 64)]
    assert depths[0] >= 6
    assert depths == sorted(depths, reverse=True)
    assert depths[-1] <= 1


def test_drafts_that_are_mostly_wrong_are_not_fed_under_load() -> None:
    assert busy(16).drafts(0.3, 8) == 0
    assert busy(64).drafts(0.5, 8) == 0


@pytest.mark.parametrize("rate", [0.3, 0.6, 0.9])
@pytest.mark.parametrize("sessions", [4, 16, 64])
def test_no_other_depth_yields_clearly_more(sessions: int, rate: float) -> None:
    """All sessions alike: tokens per second of every depth, by the line that passes follow."""

    def tokens_per_s(depth: int) -> float:
        tokens = sum(rate**count for count in range(depth + 1))
        return sessions * tokens / (FIRST_S + sessions * (1 + depth) * FURTHER_S)

    budget, depth = busy(sessions), 8
    for _ in range(100):
        tokens = sessions * (1 + depth)
        budget.passed(FIRST_S + tokens * FURTHER_S, tokens, sessions)
        for _ in range(sessions):
            depth = budget.drafts(rate, 8)
    assert tokens_per_s(depth) > 0.96 * max(map(tokens_per_s, range(9)))


def test_a_greedy_holder_s_drafts_give_way_to_the_others() -> None:
    """Thirteen sessions of one holder and one each of three others, all drafting equally well."""
    shares = FairShares({"sessions": 64})
    for holder, count in (("greedy", 13), ("a", 1), ("b", 1), ("c", 1)):
        shares.take(Tenant(holder), "sessions", count)
    budget = busy(16)

    def depth_of(name: str) -> int:
        return budget.drafts(0.7, 8, tenant_share=shares.claim(name, "sessions"))

    assert depth_of("greedy") < depth_of("") < depth_of("a")
    shares.take(Tenant("greedy"), "sessions", -12)
    assert depth_of("greedy") == depth_of("a") == budget.drafts(0.7, 8)


def test_passes_over_prompts_say_nothing_of_drafts() -> None:
    budget = busy(4)
    price = budget.price
    budget.passed(0.5, 900, 4)
    assert budget.price == price


def test_a_new_session_starts_from_what_is_usual_and_learns() -> None:
    pooled = PooledAcceptanceRate()
    before = SessionAcceptanceRate(pooled)
    for _ in range(100):
        before.add(1, 3)
    fresh = SessionAcceptanceRate(pooled)
    assert fresh.rate == pytest.approx(0.25, abs=0.03)
    for _ in range(60):
        fresh.add(9, 1)
    assert fresh.rate > 0.75


def test_a_session_that_gets_more_than_others_must_bring_more() -> None:
    """Beside drafts that are hardly ever right, fewer of the sure ones go in than alone."""
    budget = busy(16)
    fair = budget.drafts(0.95, 16)
    assert 1 <= fair < 16
    assert 0.95 ** (fair + 1) > budget.price, "worth its cost, were all to gain alike"


def test_where_nothing_is_known_of_others_a_draft_competes_with_one_token_a_pass() -> None:
    # At a price of a half a draft must bring 0.525 of what a session gets: 0.6 does; 0.36 does not
    # bring 0.525 of 1.6.
    assert worth_feeding(0.6, 2, 0.5) == (1, 1.6)
    assert worth_feeding(0.55, 1, 0.5) == (1, 1.55)
    assert worth_feeding(0.5, 2, 0.5) == (0, 1.0)
    assert worth_feeding(0.6, 2, 0.5, 1.2) == (0, 1.0), "others get more"


def test_what_is_usual_weighs_as_much_as_eight_drafts_of_a_session_s_own() -> None:
    pooled = PooledAcceptanceRate()
    session = SessionAcceptanceRate(pooled)
    assert session.rate == pooled.rate == pytest.approx(0.7)
    session.add(0, 8)
    chance = sqrt(pooled.rate * (1 - pooled.rate) / 16)
    assert session.rate == pytest.approx(pooled.rate / 2 + chance)


def test_a_pass_of_more_than_a_window_of_16_is_one_over_a_prompt() -> None:
    for tokens, counts in ((17, True), (18, False)):
        budget = busy(1)
        price = budget.price
        budget.passed(9.0, tokens, 1)
        assert (budget.price != price) is counts


def test_sessions_that_are_lucky_among_many_alike_get_no_drafts_into_a_full_pass() -> None:
    """A further token takes 0.65 of a token from all of them, whoever's it is: more than 0.6."""
    chance, pooled, budget = Random(1), PooledAcceptanceRate(), PassBudget()
    for number in range(60):
        tokens = 64 + 8 * (number % 8 == 0)
        budget.passed(0.141 + 0.004 * tokens, tokens, 64)
    sessions = [SessionAcceptanceRate(pooled) for _ in range(64)]
    fed = 0
    for number in range(60):
        for session in sessions:
            right = chance.random() < 0.6
            session.add(int(right), int(not right))
            fed += budget.drafts(session.next_rate, 4) if number >= 20 else 0
    assert fed < 0.05 * 40 * 64


def test_a_session_that_is_truly_better_than_most_is_believed() -> None:
    pooled = PooledAcceptanceRate()
    better, *others = (SessionAcceptanceRate(pooled) for _ in range(8))
    for _ in range(10):
        better.add(9, 1)
        for other in others:
            other.add(1, 1)
    assert better.rate > 0.7
    assert max(other.rate for other in others) < better.rate - 0.05


def test_drafts_after_a_run_of_right_ones_have_a_rate_of_their_own() -> None:
    """A text that is copied in parts: 20 right drafts in a row, then ten of which few are right."""
    session = SessionAcceptanceRate(PooledAcceptanceRate())
    for _ in range(8):
        session.add(20, 1)
        for _ in range(5):
            session.add(0, 1)
            session.add(1, 1)
    elsewhere = session.next_rate
    assert elsewhere == session.rate < 0.7
    session.add(3, 0)
    assert session.next_rate == session.rate, "three right ones are chance"
    session.add(1, 0)
    assert session.next_rate > 0.8
    budget = busy(1)
    assert budget.drafts(session.next_rate, 16) > budget.drafts(elsewhere, 16)
    session.add(0, 1)
    assert session.next_rate == session.rate


def test_where_runs_say_nothing_the_next_drafts_are_like_all() -> None:
    chance, rates = Random(1), []
    session = SessionAcceptanceRate(PooledAcceptanceRate())
    for _ in range(2000):
        right = chance.random() < 0.7
        session.add(int(right), int(not right))
        rates.append(session.next_rate - session.rate)
    assert abs(sum(rates) / len(rates)) < 0.02
    assert max(map(abs, rates)) < 0.2
