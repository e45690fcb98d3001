"""FSD's latencies: printed figures where they follow from its formulas, and where they do not."""

import pytest

from lab.analysis.cost_fsd import fsd
from lab.analysis.cost_models import LinkTimes, coupled
from tandem.control.conditions import PairTimes
from tandem.core.errors import InvalidArgument

PAIR = PairTimes(draft_s=0.020, verify_first_s=0.100)
LINK = LinkTimes(rtt_s=0.040)


def fsd_speedup(draft_length: int, latency_ratio: float, miss_rate: float) -> float:
    """(γc + 1)/(rγc + 1): FSD over SD with communication and hits for nothing (eq. 9).

    `latency_ratio` is c = Tp/Tq, a draft step over a target pass.
    """
    drafting = draft_length * latency_ratio
    return (drafting + 1) / (miss_rate * drafting + 1)


def highest_miss_rate(draft_length: int, latency_ratio: float, speedup: float) -> float:
    """The miss rate at which eq. 9 gives `speedup`; negative where no rate does."""
    drafting = draft_length * latency_ratio
    return ((drafting + 1) / speedup - 1) / drafting


def test_a_round_by_hand() -> None:
    """Table 4: 40 + 1/4 · 4 · 20 + 3/4 · 8 + 100 ms."""
    prediction = fsd(PAIR, LINK, acceptance_rate=0.5, draft_length=4, miss_rate=0.25, hit_s=0.008)
    assert prediction.round_s == pytest.approx(0.166)
    assert prediction.tokens_per_round == pytest.approx(1.9375)


def test_without_a_hit_it_is_stop_and_wait() -> None:
    plain = coupled(PAIR, LINK, acceptance_rate=0.5, draft_length=4)
    missing = fsd(PAIR, LINK, acceptance_rate=0.5, draft_length=4, miss_rate=1.0)
    assert missing == plain


def test_equation_9_is_table_4_without_communication() -> None:
    near = LinkTimes(rtt_s=0.0)
    missing, hitting = (
        fsd(PAIR, near, acceptance_rate=0.7, draft_length=7, miss_rate=rate).tpot_s
        for rate in (1.0, 0.3)
    )
    assert missing / hitting == pytest.approx(fsd_speedup(7, 0.2, 0.3))


@pytest.mark.parametrize(("draft_length", "printed"), [(4, 0.10), (7, 0.25), (10, 0.35)])
def test_miss_rates_for_a_double_speed_are_the_printed_ones(
    draft_length: int, printed: float
) -> None:
    """Appendix B, c = 0.3: "below 10%, 25%, and 35%", which is to the next five percent."""
    rate = highest_miss_rate(draft_length, 0.3, 2.0)
    assert abs(rate - printed) <= 0.025
    assert fsd_speedup(draft_length, 0.3, rate) == pytest.approx(2.0)


def test_the_printed_speedup_of_the_robot_cannot_be() -> None:
    """Table 8: 288 + 2·120 + 620 ms, r = 0.5563, and 1.34 where hits for nothing allow less."""
    robot = PairTimes(draft_s=0.288 / 4, verify_first_s=0.620)
    far = LinkTimes(rtt_s=2 * 0.120)
    plain, fast = (
        fsd(robot, far, acceptance_rate=0.6, draft_length=4, miss_rate=rate).round_s
        for rate in (1.0, 0.5563)
    )
    assert plain == pytest.approx(1.148)
    assert plain / fast == pytest.approx(1.125, abs=0.001)
    assert fsd_speedup(4, 0.288 / 4 / 0.620, 0.5563) == pytest.approx(1.164, abs=0.001)


def test_a_hit_costs_what_the_tables_leave_over() -> None:
    """Tables 5 and 6, Vicuna-68M/7B on the Jetson: 1.04 at r = 0.6561 needs Tr of about 0.2 s."""
    jetson = PairTimes(draft_s=0.334 / 4, verify_first_s=0.497)
    far = LinkTimes(rtt_s=2 * 0.095)

    def round_s(miss_rate: float, hit_s: float) -> float:
        found = fsd(
            jetson, far, acceptance_rate=0.5, draft_length=4, miss_rate=miss_rate, hit_s=hit_s
        )
        return found.round_s

    assert round_s(1.0, 0.0) == pytest.approx(1.021)
    assert round_s(1.0, 0.0) / round_s(0.6561, 0.0) == pytest.approx(1.127, abs=0.001)
    assert round_s(1.0, 0.0) / round_s(0.6561, 0.22) == pytest.approx(1.04, abs=0.003)


def test_five_times_needs_more_than_the_text_says() -> None:
    """Appendix B: "ratio greater than 0.5 and … less than 10%" gives 4 at γ = 10."""
    assert fsd_speedup(10, 0.5, 0.1) == pytest.approx(4.0)
    assert fsd_speedup(10, 0.8, 0.1) == pytest.approx(5.0)


def test_bad_values_are_named() -> None:
    with pytest.raises(InvalidArgument, match="miss_rate"):
        fsd(PAIR, LINK, acceptance_rate=0.5, draft_length=4, miss_rate=1.1)
    with pytest.raises(InvalidArgument, match="hit_s"):
        fsd(PAIR, LINK, acceptance_rate=0.5, draft_length=4, miss_rate=0.5, hit_s=-1)
