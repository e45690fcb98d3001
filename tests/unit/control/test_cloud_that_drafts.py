"""What an edge's controller takes a token of a cloud to cost that drafts itself."""

import pytest

from tandem.control.controller import Controller
from tandem.control.schedule import Control, Schedule
from tandem.specdec.messages import Work

LIMITS = Schedule(16, 8, verify_on_arrival=True, decode_when_idle=True, token_by_token=True)


def after(answers: list[int], drafts: int, gap_s: float) -> Controller:
    """A controller of `auto` after the first token and these answers, of so many tokens each."""
    controller = Controller(Control.LEAST_COST, LIMITS)
    controller.connected(0.0)
    now = 0.0
    controller.took_tokens(1, Work(0.05, target_passes=1), now)
    for number, tokens in enumerate(answers):
        now += gap_s
        work = Work(0.05, target_passes=2 + number, drafts=drafts)
        controller.took_tokens(tokens, work, now)
    return controller


def test_a_token_takes_the_mean_over_a_few_passes() -> None:
    """Passes bring one to five tokens; the mean of their times a token would be far off."""
    alone_s = after([1, 5, 2, 4] * 6, drafts=4, gap_s=0.09).estimates.alone_s
    assert alone_s == pytest.approx(0.09 / 3, rel=0.1)


def test_without_drafts_each_pass_is_a_reading() -> None:
    assert after([1, 1], drafts=0, gap_s=0.06).estimates.alone_s == pytest.approx(0.06)
