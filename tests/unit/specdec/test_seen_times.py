"""What schedules took corrects what is expected of them, beyond chance, and for a while."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tandem.specdec.presets import PRESETS
from tandem.specdec.seen_times import Kind, Seen, SeenTimes, kind_of

STREAM = PRESETS["stream"].schedule
ALONE = PRESETS["ar"].schedule
ROUNDS = PRESETS["coupled"].schedule


def test_schedules_are_of_four_kinds_and_rounds_may_be_drafted_ahead_of() -> None:
    waiting = replace(STREAM, decode_when_idle=False)
    kinds = [kind_of(schedule) for schedule in (ALONE, ROUNDS, STREAM, waiting)]
    assert kinds == [Kind.CLOUD_ALONE, Kind.ROUNDS, Kind.STREAM, Kind.WAITING_STREAM]
    assert kind_of(ROUNDS, ahead=True) is Kind.ROUNDS_AHEAD
    assert kind_of(ALONE, ahead=True) is Kind.CLOUD_ALONE


def test_an_untried_kind_takes_what_is_expected() -> None:
    seen = SeenTimes()
    assert [seen.factor(schedule) for schedule in (ALONE, ROUNDS, STREAM)] == [1.0, 1.0, 1.0]
    assert seen.factors() == {}


def test_a_kind_that_takes_twice_as_long_is_found_out_and_others_are_not_blamed() -> None:
    seen = SeenTimes()
    factors = []
    for _ in range(8):
        seen.took(STREAM, 10, 10 * 0.02, 0.01)
        factors.append(seen.factor(STREAM))
    assert factors == sorted(factors)
    assert 1.25 < factors[0] < factors[-1] < 2.0
    assert seen.factor(ROUNDS) == 1.0
    ((kind, (tokens, seconds)),) = seen.totals.items()
    assert (kind, tokens) == (Kind.STREAM, 80)
    assert seconds == pytest.approx(1.6)


@pytest.mark.parametrize("share", [0.92, 1.0, 1.1])
def test_what_may_be_chance_changes_nothing(share: float) -> None:
    seen = SeenTimes()
    for _ in range(20):
        seen.took(ROUNDS, 12, 12 * 0.01 * share, 0.01)
    assert seen.factor(ROUNDS) == 1.0


def test_a_kind_that_takes_less_is_trusted_more() -> None:
    seen = SeenTimes()
    for _ in range(20):
        seen.took(ROUNDS, 12, 12 * 0.005, 0.01)
    assert 0.5 < seen.factor(ROUNDS) < 0.7


def test_a_stream_is_expected_to_tell_tokens_as_dearly_as_the_cloud_alone() -> None:
    seen = SeenTimes()
    for _ in range(20):
        seen.took(ALONE, 10, 10 * 0.02, 0.01)
    assert seen.factor(STREAM) == seen.factor(ALONE) > 1.5
    assert seen.factor(ROUNDS) == 1.0
    for _ in range(20):
        seen.took(STREAM, 10, 10 * 0.01, 0.01)
    assert seen.factor(STREAM) < 1.3


def test_one_pause_of_the_machine_counts_no_more_than_four_times_the_time() -> None:
    seen, paused = SeenTimes(), SeenTimes()
    seen.took(ALONE, 6, 6 * 0.04, 0.01)
    paused.took(ALONE, 6, 60.0, 0.01)
    assert paused.of_kinds == seen.of_kinds == {Kind.CLOUD_ALONE: Seen(6.0, 24.0)}


def test_a_kind_that_was_slow_is_tried_again_in_the_end() -> None:
    seen = SeenTimes([(Kind.STREAM, Seen(40.0, 80.0))])
    assert seen.factor(STREAM) > 1.5
    for _ in range(100):
        seen.took(ALONE, 20, 0.2, 0.01)
    assert seen.factor(STREAM) == 1.0


def test_no_token_tells_nothing() -> None:
    seen = SeenTimes()
    seen.took(ALONE, 0, 1.0, 0.01)
    seen.took(ALONE, 5, 1.0, 0.0)
    assert (seen.of_kinds, seen.totals) == ({}, {})


def test_steps_count_as_in_the_kind_that_slowed_them_least_within_reason() -> None:
    """Drafting beside passes on one core makes both slow; the cloud alone would not suffer it."""
    seen = SeenTimes()
    assert (seen.draft_s(0.3), seen.pass_s(0.3, 0.0)) == (0.3, 0.3)
    seen.passed(Kind.CLOUD_ALONE, 0.05)
    seen.drafted(Kind.ROUNDS, 0.01)
    for _ in range(30):
        seen.passed(Kind.STREAM, 0.1)
        seen.drafted(Kind.STREAM, 0.02)
    assert seen.pass_s(0.1, 0.0) == pytest.approx(0.05)
    assert seen.draft_s(0.02) == pytest.approx(0.01)
    least_s = seen.pass_s(0.2, 0.0)
    assert least_s == pytest.approx(0.08), "not less than four tenths of what is seen now"


def test_what_becomes_slower_in_use_is_slower_for_all() -> None:
    """The machine, or the link's other end, is busier than it was. Once the others drifted towards
    the kind in use, however long ago they were tried, and what it slows was forgotten."""
    seen = SeenTimes()
    seen.passed(Kind.CLOUD_ALONE, 0.05)
    seen.drafted(Kind.ROUNDS, 0.01)
    for took in (1.0, 2.0):
        for _ in range(400):
            seen.passed(Kind.STREAM, 0.1 * took)
            seen.drafted(Kind.STREAM, 0.02 * took)
        assert seen.of_kinds[Kind.CLOUD_ALONE].pass_s == pytest.approx(0.05 * took)
        assert seen.of_kinds[Kind.ROUNDS].draft_s == pytest.approx(0.01 * took)


def test_the_first_passes_of_a_kind_count_alike() -> None:
    """One of them may still have run beside what was done before."""
    seen = SeenTimes()
    for took_s in (0.2, *(9 * [0.1])):
        seen.passed(Kind.ROUNDS, took_s)
    assert seen.of_kinds[Kind.ROUNDS].pass_s == pytest.approx(0.11)


def test_passes_over_drafts_count_by_what_a_draft_is_believed_to_take_by_now() -> None:
    seen = SeenTimes()
    for _ in range(40):
        seen.passed(Kind.STREAM, 0.08, drafts=4)
    assert seen.of_kinds[Kind.STREAM].first_s(0.0) == pytest.approx(0.08)
    assert seen.of_kinds[Kind.STREAM].first_s(0.25) == pytest.approx(0.04)
    assert seen.pass_s(0.1, 0.25) == pytest.approx(0.04)


@pytest.mark.parametrize(("took_s", "slows"), [(0.05, False), (0.0594, False), (0.062, True)])
def test_drafting_slows_where_passes_take_a_fifth_longer_beside_it(
    took_s: float, slows: bool
) -> None:
    seen = SeenTimes()
    for _ in range(6):
        assert not seen.slows(0.1)
        seen.passed(Kind.ROUNDS_AHEAD, 1.2 * took_s, drafts=2)
    assert not seen.slows(0.1), "nothing to compare with"
    seen.passed(Kind.CLOUD_ALONE, 0.05)
    assert seen.slows(0.1) == slows


def test_a_pass_alone_is_known_for_300_tokens() -> None:
    seen = SeenTimes()
    assert not seen.knows_alone
    seen.passed(Kind.CLOUD_ALONE, 0.05)
    seen.took(ALONE, 400, 20.0, 0.05)
    for _ in range(29):
        seen.took(STREAM, 10, 0.5, 0.05)
    assert seen.knows_alone
    seen.took(STREAM, 10, 0.5, 0.05)
    assert not seen.knows_alone


def test_a_step_that_is_believed_faster_by_now_is_not_held_to_what_was_seen() -> None:
    """The first step of a process took long; it is to be tried again."""
    seen = SeenTimes()
    seen.drafted(Kind.STREAM, 0.04)
    seen.passed(Kind.STREAM, 0.2)
    assert (seen.draft_s(0.01), seen.pass_s(0.1, 0.0)) == (0.01, 0.1)


def test_one_stretch_counts_for_four_times_or_a_quarter_at_most() -> None:
    """A machine that stood still for a moment, or tokens that came in one burst."""
    for took_s, counts in ((100.0, 4.0), (1e-6, 0.25)):
        seen = SeenTimes()
        seen.took(STREAM, 10, took_s, 0.01)
        own = seen.of_kinds[Kind.STREAM]
        assert own.relative / own.tokens == pytest.approx(counts)


def test_where_overhead_counts_untried_kinds_are_believed_by_the_messages_they_need() -> None:
    seen = SeenTimes()
    factors = [seen.factor(schedule, 0.25) for schedule in (ALONE, ROUNDS, STREAM)]
    assert factors == pytest.approx([1.25, 0.8, 1.25**4])
    assert seen.factor(ALONE, 9.0) == pytest.approx(1.5), "within reason"
    for _ in range(40):
        seen.took(ROUNDS, 12, 12 * 0.012, 0.01)
    assert seen.factor(ROUNDS, 0.25) == pytest.approx(seen.factor(ROUNDS), rel=0.05)
