"""Who may take how much, minute by minute; no clock, no service."""

from __future__ import annotations

import pytest

from tandem.core.errors import InvalidArgument, ResourceExhausted
from tandem.net.quotas import FairShares, HolderRefused, Quota, Room


def taken(shares: FairShares, holder: str, now: float = 0.0, most: int = 10_000) -> int:
    """How many sessions a holder that wants all gets."""
    for count in range(most):
        try:
            shares.take(holder, 0, now)
        except ResourceExhausted:
            return count
    return most


def refusal(shares: FairShares, holder: str, kv_bytes: int, now: float) -> HolderRefused:
    with pytest.raises(HolderRefused) as refused:
        shares.take(holder, kv_bytes, now)
    return refused.value


def test_one_greedy_holder_leaves_a_quarter_of_the_places() -> None:
    shares = FairShares(Room(64), Quota())
    assert taken(shares, "greedy") == 48
    assert [taken(shares, f"edge-{number}", most=1) for number in range(16)] == [1] * 16
    with pytest.raises(ResourceExhausted, match="sessions: all 64 are in use"):
        shares.take("edge-0", 0, 0)


def test_a_place_given_back_goes_to_who_has_less_than_a_share() -> None:
    shares = FairShares(Room(8), Quota())
    assert taken(shares, "greedy") == 6
    assert taken(shares, "honest") == 2
    for _ in range(2):
        shares.give_back("greedy", 0, 0, now=1)
        error = refusal(shares, "greedy", 0, 1)
        assert str(error) == (
            "sessions: 'greedy' has "
            f"{shares.held_by('greedy')} of 8, and its share is less; try again in 1 s"
        )
        shares.take("honest", 0, 1)
    assert (shares.held_by("greedy"), shares.held_by("honest")) == (4, 4)


def test_a_share_grows_again_when_the_others_are_gone() -> None:
    shares = FairShares(Room(8), Quota())
    shares.take("honest", 0, 0)
    shares.give_back("honest", 0, 0, 1)
    assert taken(shares, "greedy", now=30) == 6
    shares = FairShares(Room(4, kv_bytes=100), Quota())
    shares.take("a", 40, 0)
    shares.take("a", 30, 0)
    assert refusal(shares, "a", 10, 0).kind == "kv"
    shares.take("b", 25, 0)  # of what was kept for others


def test_who_holds_nothing_may_have_all_that_is_free() -> None:
    """A request may be larger than any share, and must not be refused for ever."""
    shares = FairShares(Room(4, kv_bytes=100), Quota())
    shares.take("edge-1", 100, 0)
    with pytest.raises(ResourceExhausted, match="kv budget: 1 bytes needed, 0 of 100 free"):
        shares.take("edge-2", 1, 0)


def test_callers_without_keys_share_nothing_out() -> None:
    assert taken(FairShares(Room(64), Quota()), "") == 64


def test_a_quota_of_sessions_and_of_keys_and_values() -> None:
    shares = FairShares(Room(64, kv_bytes=1000), Quota(sessions=3, kv_bytes=100))
    shares.take("edge-1", 60, 0)
    error = refusal(shares, "edge-1", 50, 0)
    assert error.kind == "kv"
    assert "50 bytes needed, 40 of 100 left to 'edge-1'" in str(error)
    shares.take("edge-1", 0, 0)
    shares.take("edge-1", 0, 0)
    assert refusal(shares, "edge-1", 0, 0).kind == "sessions"
    shares.take("edge-1", 0, 0, Quota(sessions=4))  # its key says more


def test_requests_a_minute() -> None:
    shares = FairShares(Room(64), Quota(requests_per_minute=2))
    for _ in range(2):
        shares.take("edge-1", 0, 100)
        shares.give_back("edge-1", 0, 0, 100)
    error = refusal(shares, "edge-1", 0, 100)
    assert error.kind == "requests"
    assert error.retry_after_s == pytest.approx(30)
    assert refusal(shares, "edge-1", 0, 120).retry_after_s == pytest.approx(10)
    shares.take("edge-1", 0, 130)
    shares.take("another", 0, 130)
    assert refusal(shares, "edge-1", 0, 131).kind == "requests"


def test_tokens_a_minute_are_paid_afterwards() -> None:
    shares = FairShares(Room(64), Quota(tokens_per_minute=600))
    shares.take("edge-1", 0, 0)
    shares.give_back("edge-1", 0, tokens=900, now=60)
    error = refusal(shares, "edge-1", 0, 60)
    assert error.kind == "tokens"
    assert error.retry_after_s == pytest.approx(30.1)  # 300 in debt, and one must be there
    shares.take("edge-1", 0, 91)


def test_a_refusal_takes_nothing() -> None:
    shares = FairShares(Room(2, kv_bytes=10), Quota(requests_per_minute=1))
    with pytest.raises(ResourceExhausted):
        shares.take("edge-1", 11, 0)
    assert (shares.sessions, shares.kv_bytes) == (0, 0)
    shares.take("edge-1", 10, 0)


def test_fields_of_a_keys_file() -> None:
    own = Quota.parse({"scopes": "verify", "sessions": "8", "tokens_per_minute": "1000"})
    assert own == Quota(sessions=8, tokens_per_minute=1000)
    assert own.over(Quota(sessions=2, kv_bytes=5)) == Quota(8, 5, 0, 1000)
    for bad in ("-1", "1.5", "", "many", "٣"):
        with pytest.raises(InvalidArgument, match="sessions: must be a whole number"):
            Quota.parse({"sessions": bad})


def test_grammars_that_took_their_minute_refuse_grammars_of_their_tenant_alone() -> None:
    shares = FairShares(Room(8), Quota(grammar_s_per_minute=10))
    shares.check_grammar("greedy", b"", now=0)
    shares.spend_grammar("greedy", b"", 12.0, now=0)
    with pytest.raises(HolderRefused, match="grammar: 'greedy' has used its 10 s") as refused:
        shares.check_grammar("greedy", b"", now=0)
    assert refused.value.kind == "grammars"
    assert refused.value.retry_after_s == pytest.approx(18.0)
    shares.check_grammar("honest", b"", now=0)
    shares.take("greedy", 0, now=0)  # what asks for no grammar
    shares.check_grammar("greedy", b"", now=18.1)


def test_a_tenant_s_debt_of_grammars_is_bounded() -> None:
    shares = FairShares(Room(8), Quota(grammar_s_per_minute=10))
    shares.check_grammar("greedy", b"", now=0)
    for _ in range(100):
        shares.spend_grammar("greedy", b"", 10.0, now=0)
    with pytest.raises(HolderRefused) as refused:
        shares.check_grammar("greedy", b"", now=0)
    assert refused.value.retry_after_s == pytest.approx(66.0)


def test_grammars_of_any_number_of_tenants_are_counted_and_those_in_debt_stay_known() -> None:
    shares = FairShares(Room(8), Quota(grammar_s_per_minute=10))
    shares.check_grammar("greedy", b"", now=0)
    shares.spend_grammar("greedy", b"", 15.0, now=0)
    for number in range(3000):
        shares.check_grammar(f"tenant-{number}", b"", now=1)
    with pytest.raises(HolderRefused):
        shares.check_grammar("greedy", b"", now=1)
    assert len(shares._grammars) <= 1024


def test_a_key_s_own_limit_of_grammars_holds() -> None:
    shares = FairShares(Room(8), Quota())
    own = Quota.parse({"grammar_s_per_minute": "1"})
    shares.check_grammar("greedy", b"", 0, own)
    shares.spend_grammar("greedy", b"", 5, 0)
    with pytest.raises(HolderRefused):
        shares.check_grammar("greedy", b"", 0, own)


def test_more_keys_and_values_are_taken_once_a_text_is_known() -> None:
    shares = FairShares(Room(8, kv_bytes=100), Quota(kv_bytes=50))
    shares.take("a", 0, 0)
    shares.take_more("a", 40, 0)
    with pytest.raises(HolderRefused, match="20 bytes needed, 10 of 50 left"):
        shares.take_more("a", 20, 0)
    assert shares.kv_bytes == 40
    shares.give_back("a", 40, 0, 0)
    assert shares.kv_bytes == 0


def test_tenants_of_one_holder_have_each_their_grammars_and_a_limit_together() -> None:
    shares = FairShares(Room(8), Quota(grammar_s_per_minute=10))
    shares.check_grammar("edge", b"greedy", now=0)
    shares.spend_grammar("edge", b"greedy", 15.0, now=0)
    with pytest.raises(HolderRefused, match="grammar: a tenant of 'edge' has used its 10 s"):
        shares.check_grammar("edge", b"greedy", now=0)
    shares.check_grammar("edge", b"honest", now=0)
    shares.check_grammar("edge", b"", now=0)
    shares.spend_grammar("edge", b"honest", 16.0, now=0)
    with pytest.raises(HolderRefused, match="grammar: 'edge' has used its 30 s"):
        shares.check_grammar("edge", b"made up", now=0)
    shares.check_grammar("another", b"greedy", now=0)
