"""PicoSpec's model of a round, by the figures of its own Tables 2 and 3."""

from __future__ import annotations

import pytest

from lab.analysis.cost_picospec import (
    bubble_s,
    expected_round_s,
    lead_s,
    overlapped_s,
    synchronous_s,
)
from lab.bench.papers.picospec_tables import acceptance_for
from tandem.core.errors import InvalidArgument

# Per pair and task, in ms: the wait without Fast Verification and with it, drafting with it, the
# rounds without and with it, and the accepted length of Table 1.
GSM8K_QWEN = (106.56, 87.35, 97.46, 166.56, 148.84, 2.50)
HUMANEVAL_QWEN = (109.14, 78.04, 97.17, 187.07, 160.88, 1.88)
GSM8K_LLAMA = (189.32, 166.46, 171.05, 287.74, 272.89, 4.29)


def test_fast_verification_empties_the_bubble_of_table_2() -> None:
    """Drafting 97.46 ms hides all but 9.1 ms of a wait of 106.56; a lead of 19.21 hides the rest,
    and the round is as long as its drafting."""
    without, with_it, drafting, *_ = GSM8K_QWEN
    lead = lead_s(without, with_it)
    assert lead == pytest.approx(19.21)
    assert bubble_s(drafting, without) == pytest.approx(9.10)
    assert bubble_s(drafting, without, lead) == 0
    assert overlapped_s(drafting, without) == pytest.approx(106.56)
    assert overlapped_s(drafting, without, lead) == pytest.approx(97.46)


@pytest.mark.parametrize(
    ("figures", "saved_ms", "within"),
    [(GSM8K_QWEN, 17.7, 1.0), (HUMANEVAL_QWEN, 26.2, 5.0), (GSM8K_LLAMA, 14.9, 6.0)],
)
def test_what_the_lead_time_saves_is_near_what_the_paper_measured(
    figures: tuple[float, ...], saved_ms: float, within: float
) -> None:
    """Rounds of the tables without Fast-verify and with it, by their own waits and drafting."""
    without, with_it, drafting, printed_without, printed_with, accepted = figures
    assert printed_without - printed_with == pytest.approx(saved_ms, abs=0.05)
    rate = acceptance_for(accepted, 4)
    rounds = [
        expected_round_s(rate, 4, draft_s=drafting, wait_s=without, lead_s=lead)
        for lead in (0.0, lead_s(without, with_it))
    ]
    assert rounds[0] - rounds[1] == pytest.approx(saved_ms, abs=within)


def test_sure_drafts_hide_the_wait_and_wrong_ones_do_not() -> None:
    assert expected_round_s(1.0, 4, draft_s=0.1, wait_s=0.08) == pytest.approx(0.1)
    assert expected_round_s(0.0, 4, draft_s=0.1, wait_s=0.08) == synchronous_s(0.1, 0.08)
    with pytest.raises(InvalidArgument, match="lead_s"):
        bubble_s(0.1, 0.1, -0.01)
