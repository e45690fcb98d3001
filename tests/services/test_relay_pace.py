"""When committed text leaves the drafter."""

import pytest

from tandem.services.drafter.session import RelayPace


def test_the_first_text_leaves_at_once_when_nothing_is_drafted() -> None:
    assert RelayPace().wait_s(now=7.0, idle=True) <= 0


def test_text_waits_for_the_drafts_that_follow_it() -> None:
    assert RelayPace().wait_s(now=7.0, idle=False) == RelayPace.HOLD_S


def test_text_right_after_another_waits_until_it_is_due() -> None:
    pace = RelayPace()
    pace.relayed(7.0)
    assert pace.wait_s(now=7.001, idle=True) == pytest.approx(RelayPace.EVERY_S - 0.001)
    assert pace.wait_s(now=7.001, idle=False) == pytest.approx(RelayPace.EVERY_S - 0.001)
    assert pace.wait_s(now=7.0 + RelayPace.EVERY_S, idle=True) == pytest.approx(0)
    assert pace.wait_s(now=7.0 + RelayPace.EVERY_S, idle=False) == RelayPace.HOLD_S
