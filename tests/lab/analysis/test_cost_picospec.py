"""PicoSpec's analysis at its ends, and its printed lengths against its own formula."""

import pytest

from lab.analysis.cost_models import LinkTimes, coupled, expected_tokens_per_round
from lab.analysis.cost_picospec import picospec
from tandem.specdec.scheduling import PairTimes

PAIR = PairTimes(draft_s=0.024, verify_first_s=0.072, verify_further_s=0.003)
LINK = LinkTimes(rtt_s=0.030)


def highest_speedup(pair: PairTimes, link: LinkTimes, draft_length: int) -> float:
    """1 + (T_rtt + T_verify)/T_draft: over stop-and-wait, all accepted and drafting the slowest
    part (eq. 10); where drafting is faster, the same ratio by eqs. 6 and 8."""
    draft_s = draft_length * pair.draft_s
    answer_s = link.communication_s(0, 0) + pair.verify_s(draft_length)
    return (draft_s + answer_s) / max(draft_s, answer_s)


def test_a_round_by_hand() -> None:
    """a = 1/2, n = 2: max(48, 30 + 78) ms in 1 of 4 rounds, 48 + 30 + 78 ms in 3 of 4."""
    prediction = picospec(PAIR, LINK, acceptance_rate=0.5, draft_length=2)
    assert prediction.round_s == pytest.approx((0.108 + 3 * 0.156) / 4)
    assert prediction.tokens_per_round == 1.75


def test_with_nothing_accepted_it_is_stop_and_wait() -> None:
    """Section 3.4: the lower bound."""
    serial = coupled(PAIR, LINK, acceptance_rate=0.0, draft_length=4)
    assert picospec(PAIR, LINK, acceptance_rate=0.0, draft_length=4) == serial


@pytest.mark.parametrize("rtt_s", [0.0, 0.030, 0.300])
def test_with_everything_accepted_it_reaches_the_bound(rtt_s: float) -> None:
    """Eq. 10, and its other half where drafting is the faster part."""
    link = LinkTimes(rtt_s)
    serial = coupled(PAIR, link, acceptance_rate=1.0, draft_length=8)
    hidden = picospec(PAIR, link, acceptance_rate=1.0, draft_length=8)
    assert serial.tpot_s / hidden.tpot_s == pytest.approx(highest_speedup(PAIR, link, 8))


def test_printed_lengths_need_a_rate_each() -> None:
    """Table 4 prints 2.03, 2.50, 2.84, 3.10 accepted at 3…6; the draft step there is 24 ms."""
    rates = [_rate_of(2.03, 3), _rate_of(2.50, 4), _rate_of(2.84, 5), _rate_of(3.10, 6)]
    assert rates == sorted(rates)
    assert rates[0] == pytest.approx(0.55, abs=0.01)
    assert rates[-1] == pytest.approx(0.71, abs=0.01)


def _rate_of(length: float, draft_length: int) -> float:
    low, high = 0.0, 1.0
    while high - low > 1e-9:
        middle = (low + high) / 2
        if expected_tokens_per_round(middle, draft_length) < length:
            low = middle
        else:
            high = middle
    return low
