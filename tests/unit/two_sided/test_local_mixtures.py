"""From which position on a side mixes its documents how."""

from __future__ import annotations

import math

import pytest

from tandem.two_sided.protocol.decoder_machine import (
    LocalMixture,
    LocalMixtures,
    RelevanceEstimate,
)

ONE, TWO, THREE = ((0.0, 0.0), (1.0, 0.0), (0.0, 1.0))
FIRST, SECOND, THIRD = (LocalMixture.of(scores) for scores in (ONE, TWO, THREE))


def test_one_sequence_weighs_all_and_has_no_mass() -> None:
    assert LocalMixture.of(()) == LocalMixture((1.0,), -math.inf)
    assert FIRST.weights == (0.5, 0.5)
    assert FIRST.log_mass == pytest.approx(math.log(2))


def test_a_change_holds_from_its_position_to_the_next() -> None:
    mixtures = LocalMixtures(ONE, start=10)
    assert mixtures.at(()) == (FIRST, None)
    mixtures.change(12, SECOND)
    mixtures.change(14, THIRD)
    found = [mixtures.at((0,) * length) for length in range(6)]
    assert found == [(FIRST, 12)] * 2 + [(SECOND, 14)] * 2 + [(THIRD, None)] * 2
    mixtures.change(12, THIRD)
    assert [mixtures.at((0,) * length) for length in (1, 2, 4)] == [
        *[(FIRST, 12), (THIRD, None), (THIRD, None)]
    ]


def test_what_is_committed_keeps_its_last_change() -> None:
    mixtures = LocalMixtures(ONE, start=10)
    mixtures.change(12, SECOND)
    mixtures.change(14, THIRD)
    mixtures.forget_before(11)
    assert mixtures.current == FIRST
    mixtures.forget_before(12)
    assert mixtures.current == SECOND
    assert mixtures.at((0,) * 3) == (SECOND, 14)
    mixtures.forget_before(20)
    assert mixtures.at((0,) * 10) == (THIRD, None)


def test_every_fourth_position_waits_for_an_estimate_of_its_text() -> None:
    mixtures = LocalMixtures(ONE, start=10, every=4)
    for length in range(4):
        assert mixtures.at((7,) * length) == (FIRST, 14)
        assert mixtures.missing((7,) * length) is None
    for length in range(4, 8):
        assert mixtures.at((7,) * length) == (None, 18)
        assert mixtures.missing((7,) * length) == RelevanceEstimate(14, (7,) * 4)
    mixtures.estimated(RelevanceEstimate(14, (7,) * 4), TWO)
    for length in range(4, 8):
        assert mixtures.at((7,) * length) == (SECOND, 18)
        assert mixtures.missing((7,) * length) is None
        assert mixtures.at((8,) * length) == (None, 18), "another text"
    assert mixtures.missing((7,) * 9) == RelevanceEstimate(18, (7,) * 8)
    mixtures.estimated(RelevanceEstimate(18, (7,) * 8), THREE)
    assert mixtures.at((7,) * 9) == (THIRD, 22)


def test_an_estimate_is_kept_until_its_stretch_is_committed() -> None:
    mixtures = LocalMixtures(ONE, start=10, every=4)
    mixtures.estimated(RelevanceEstimate(14, (7,) * 4), TWO)
    mixtures.forget_before(18)
    assert mixtures.at((7,) * 5) == (SECOND, 18)
    mixtures.forget_before(19)
    assert mixtures.at((7,) * 5) == (None, 18)


def test_without_documents_there_is_nothing_to_estimate() -> None:
    mixtures = LocalMixtures((), start=10, every=4)
    assert mixtures.at((7,) * 9) == (LocalMixture((1.0,), -math.inf), None)
    assert mixtures.missing((7,) * 9) is None
