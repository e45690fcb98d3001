"""Who may take how much while others want it too, minute by minute; no clock, no service."""

from __future__ import annotations

import pytest

from tandem.core.errors import ResourceExhausted
from tandem.net.fair_shares import ACTIVE_S, MOST_TENANTS, FairShares, Rates
from tandem.net.quotas import HolderRefused
from tandem.net.tenant import Tenant

SESSIONS = "sessions"
KV = "bytes"
LATER_S = ACTIVE_S + 1


def taken(
    shares: FairShares, tenant: Tenant | str, now: float = 0.0, most: int = 1000, amount: int = 1
) -> int:
    """Return how many sessions a tenant gets that wants all."""
    tenant = Tenant(tenant) if isinstance(tenant, str) else tenant
    for count in range(most):
        try:
            shares.check(tenant, SESSIONS, amount, now)
        except ResourceExhausted:
            return count
        shares.take(tenant, SESSIONS, amount)
    return most


def of(sessions: int) -> FairShares:
    return FairShares({SESSIONS: sessions})


@pytest.mark.parametrize("total", [1, 2, 8, 64])
def test_one_key_alone_gets_everything(total: int) -> None:
    shares = of(total)
    assert taken(shares, "edge-1") == total
    with pytest.raises(ResourceExhausted, match=f"all {total} sessions are in use; try again"):
        shares.check(Tenant("edge-2"), SESSIONS, 1, 0)


def test_one_key_alone_gets_all_bytes_however_they_are_asked_for() -> None:
    assert taken(of(100), "edge-1", amount=25) == 4
    shares = of(100)
    shares.check(Tenant("edge-1"), SESSIONS, 100, 0)
    shares.take(Tenant("edge-1"), SESSIONS, 100)
    with pytest.raises(ResourceExhausted, match="7 sessions needed, 0 of 100 free"):
        shares.check(Tenant("edge-2"), SESSIONS, 7, 0)


def test_two_keys_share_and_the_words_say_who_holds_how_much() -> None:
    shares = of(64)
    assert taken(shares, "modest", most=1) == 1
    assert taken(shares, "edge-1") == 47, "a quarter is left to who is below its share"
    shares.take(Tenant("edge-1"), SESSIONS)
    with pytest.raises(HolderRefused) as refused:
        shares.check(Tenant("edge-1"), SESSIONS, 1, 0)
    assert str(refused.value) == (
        "fair-share limit reached: 'edge-1' holds 48 of 64 sessions; try again in 1 s"
    )
    assert taken(shares, "modest") == 15


def test_two_keys_that_both_want_all_end_with_a_half_each() -> None:
    shares = of(8)
    assert taken(shares, "a", most=1) == 1
    assert taken(shares, "b") == 5
    assert taken(shares, "a") == 2
    for _ in range(4):  # what b gives back goes to who has less
        shares.take(Tenant("b"), SESSIONS, -1)
        taken(shares, "b")
        taken(shares, "a")
    assert (shares.held_by(Tenant("a"), SESSIONS), shares.held_by(Tenant("b"), SESSIONS)) == (4, 4)


def test_the_tenth_key_is_not_starved() -> None:
    """Nine others ask all the time; each finds a place at once, whatever one of them wants."""
    shares = of(16)
    for number in range(9):
        shares.check(Tenant(f"edge-{number}"), SESSIONS, 1, 0)
    assert taken(shares, "greedy", now=1) == 8
    assert [taken(shares, f"edge-{number}", now=2, most=1) for number in range(8)] == [1] * 8
    shares.take(Tenant("greedy"), SESSIONS, -1)
    assert taken(shares, "greedy", now=3) == 0, "the next place is the ninth's"
    assert taken(shares, "edge-8", now=3, most=1) == 1


def test_a_key_that_comes_back_after_idling_gets_the_next_place_and_then_its_share() -> None:
    shares = of(8)
    assert taken(shares, "sleeper", most=1) == 1
    shares.take(Tenant("sleeper"), SESSIONS, -1)
    assert taken(shares, "greedy", now=LATER_S) == 8, "nobody else has asked for a while"
    assert taken(shares, "sleeper", now=LATER_S) == 0
    for _ in range(4):
        shares.take(Tenant("greedy"), SESSIONS, -1)
        assert taken(shares, "greedy", now=LATER_S) == 0
        assert taken(shares, "sleeper", now=LATER_S) == 1
    assert shares.held_by(Tenant("greedy"), SESSIONS) == 4


def test_who_holds_nothing_may_have_all_that_is_free() -> None:
    """A request may be larger than any share, and must not be refused for ever."""
    shares = of(100)
    shares.check(Tenant("edge-2"), SESSIONS, 1, 0)
    assert taken(shares, "edge-1", amount=100) == 1


def test_callers_without_keys_share_nothing_out() -> None:
    shares = of(64)
    assert taken(shares, "edge-1", most=1) == 1
    assert taken(shares, "") == 63


@pytest.mark.parametrize("caller", ["", "edge"])
def test_tenants_of_one_caller_share_what_it_has(caller: str) -> None:
    """Also where the caller showed no key, but says for whom it asks."""
    greedy, honest = Tenant(caller, b"greedy"), Tenant(caller, b"honest")
    shares = of(8)
    assert taken(shares, greedy) == 8, "alone it has everything"
    shares = of(8)
    shares.check(honest, SESSIONS, 1, 0)
    assert taken(shares, greedy) == 6
    with pytest.raises(HolderRefused, match=r"a tenant.* holds 6 of 8 sessions"):
        shares.check(greedy, SESSIONS, 1, 0)
    assert taken(shares, honest) == 2


def test_a_caller_who_makes_up_tenants_has_no_more_than_another() -> None:
    shares = of(8)
    shares.check(Tenant("honest"), SESSIONS, 1, 0)
    made_up = sum(taken(shares, Tenant("greedy", bytes([number]))) for number in range(99))
    assert made_up == 6
    assert taken(shares, "honest") == 2


def test_a_tenant_leaves_some_of_what_its_caller_may_have_to_the_others() -> None:
    """The places that a caller had to leave to another were all that its other tenants got."""
    shares = of(8)
    for tenant in (Tenant("direct"), Tenant("edge", b"honest")):
        shares.check(tenant, SESSIONS, 1, now=0)
    assert taken(shares, Tenant("edge", b"greedy"), now=1) == 5
    assert taken(shares, Tenant("edge", b"honest"), now=2, most=1) == 1
    assert taken(shares, "direct", now=3) == 2


def test_tenants_that_want_as_much_as_each_other_leave_nothing_unused() -> None:
    """Ten keys with two requests each had 13 of 16 slots."""
    shares = of(16)
    names = [f"edge-{number}" for number in range(10)]
    assert sum(taken(shares, name, most=1) for name in names) == 10
    assert sum(taken(shares, name, most=1) for name in names) == 6


def test_where_there_are_more_tenants_than_units_one_still_leaves_half() -> None:
    shares = of(8)
    for number in range(20):
        shares.check(Tenant(f"honest-{number}"), SESSIONS, 1, now=0)
    assert taken(shares, "greedy", now=1) == 4


def test_tenants_that_were_made_up_are_forgotten_and_those_that_hold_something_are_not() -> None:
    shares = of(10**6)
    holds = Tenant("edge", b"holds")
    assert taken(shares, holds, most=2) == 2
    for number in range(3 * MOST_TENANTS):
        shares.check(Tenant("edge", str(number).encode()), SESSIONS, 1, now=1)
    assert sum(map(len, shares._peers.values())) <= MOST_TENANTS + 1
    assert shares.held_by(holds, SESSIONS) == 2


def test_a_claim_is_relative_to_an_even_share() -> None:
    shares = of(64)
    for caller, count in (("greedy", 13), ("a", 1), ("b", 1), ("c", 1)):
        shares.take(Tenant(caller), SESSIONS, count)
    assert shares.claim("greedy", SESSIONS) == pytest.approx(13 * 4 / 16)
    assert shares.claim("a", SESSIONS) == pytest.approx(4 / 16)
    assert shares.claim("", SESSIONS) == 1


def test_a_rate_is_spent_in_advance_and_comes_back_evenly() -> None:
    rates = Rates()
    for _ in range(2):
        assert rates.wait_s("a", 2 / 60, now=100) == 0
        rates.spend("a", 1, 2 / 60, now=100)
    assert rates.wait_s("a", 2 / 60, now=100) == pytest.approx(30)
    assert rates.wait_s("a", 2 / 60, now=120) == pytest.approx(10)
    assert rates.wait_s("a", 2 / 60, now=130) == 0
    assert rates.wait_s("b", 2 / 60, now=100) == 0
    assert rates.wait_s("a", 0, now=100) == 0, "no limit"


def test_what_is_known_afterwards_leaves_a_debt_which_may_be_bounded() -> None:
    rates = Rates()
    rates.spend("a", 900, 10, now=60)
    assert rates.wait_s("a", 10, now=60) == pytest.approx(30.1)  # and one must be there
    assert rates.wait_s("a", 10, now=91) == 0
    for _ in range(100):
        rates.spend("b", 10, 1 / 6, now=0, most_debt_s=60)
    assert rates.wait_s("b", 1 / 6, now=0) == pytest.approx(66)


def test_a_burst_is_free_and_what_is_more_waits_behind_itself() -> None:
    rates = Rates(burst_s=1.0)
    assert rates.spend("a", 1000, 1000, now=10.0) == 0
    assert rates.spend("a", 500, 1000, now=10.0) == pytest.approx(0.5)
    assert rates.spend("a", 500, 1000, now=10.0) == pytest.approx(1.0)
    assert rates.spend("b", 1000, 1000, now=10.0) == 0
    assert rates.spend("a", 100, 1000, now=100.0) == 0
    assert rates.spend("a", 1000, 1000, now=100.0) == pytest.approx(0.1), "unused is no saving"


def test_who_owes_nothing_is_forgotten_first() -> None:
    rates = Rates()
    rates.spend("in debt", 10_000, 1, now=0)
    for number in range(3 * MOST_TENANTS):
        rates.spend(number, 1, 1, now=70 + number)
        assert len(rates) <= MOST_TENANTS
    assert rates.wait_s("in debt", 1, now=4000) == pytest.approx(5941)
    for number in range(3 * MOST_TENANTS):  # who are all in debt
        rates.spend(number, 1_000_000, 1, now=4000)
        assert len(rates) <= MOST_TENANTS
