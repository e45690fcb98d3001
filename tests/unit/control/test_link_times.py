"""A link's latency and bandwidths, from frames of different sizes and their answers."""

from __future__ import annotations

import random

import pytest

from tandem.control.link_times import LinkEstimate, LinkTimes

SLOW = LinkTimes(latency_s=0.040, up_s=8e-6, down_s=8e-7)
"""1 Mbit/s up, 10 Mbit/s down."""


def exchange(link: LinkEstimate, times: LinkTimes, up: int, down: int, more_s: float = 0.0) -> None:
    link.exchanged(up, down, times.exchange_s(up, down) + more_s)


def test_a_ping_and_two_frames_tell_the_latency_from_what_a_byte_adds() -> None:
    link = LinkEstimate()
    exchange(link, SLOW, 4000, 40)
    exchange(link, SLOW, 30, 30)
    exchange(link, SLOW, 4000, 40)
    assert link.times is not None
    assert link.times.latency_s == pytest.approx(SLOW.latency_s, rel=0.01)
    assert link.times.up_s == pytest.approx(SLOW.up_s, rel=0.01)


def test_both_directions_are_told_apart_by_answers_of_different_sizes() -> None:
    link = LinkEstimate()
    for up, down in ((100, 40), (100, 600_000), (30, 30), (200_000, 40), (200_000, 600_000)):
        exchange(link, SLOW, up, down)
    assert link.times is not None
    assert link.times.down_s == pytest.approx(SLOW.down_s, rel=0.02)
    assert link.times.up_s == pytest.approx(SLOW.up_s, rel=0.02)


def test_what_frames_of_one_size_leave_open_is_shared_by_latency_and_bytes() -> None:
    """A frame of another size then takes neither as long nor in proportion to its size."""
    link = LinkEstimate()
    exchange(link, SLOW, 4000, 40)
    assert link.times is not None
    assert link.times.exchange_s(4000, 40) == pytest.approx(SLOW.exchange_s(4000, 40), rel=0.01)
    whole_s = SLOW.exchange_s(4000, 40)
    assert whole_s / 2 < link.times.exchange_s(2000, 20) < whole_s


def test_one_exchange_that_had_to_wait_moves_little() -> None:
    link = LinkEstimate()
    for _ in range(8):
        exchange(link, SLOW, 4000, 40)
        exchange(link, SLOW, 30, 30)
    exchange(link, SLOW, 4000, 40, more_s=3.0)
    assert link.times is not None
    assert link.times.exchange_s(4000, 40) < 1.3 * SLOW.exchange_s(4000, 40)


@pytest.mark.parametrize("times", [10.0, 0.1])
def test_a_link_that_changes_is_believed_after_three_exchanges(times: float) -> None:
    link = LinkEstimate()
    for _ in range(12):
        exchange(link, SLOW, 4000, 40)
        exchange(link, SLOW, 30, 30)
    changed = LinkTimes(times * SLOW.latency_s, times * SLOW.up_s, times * SLOW.down_s)
    for _ in range(3):
        exchange(link, changed, 4000, 40)
    assert link.times is not None
    expected_s = changed.exchange_s(4000, 40)
    assert link.times.exchange_s(4000, 40) == pytest.approx(expected_s, rel=0.02)


def test_noise_makes_no_term_negative() -> None:
    noise = random.Random(1)
    link = LinkEstimate()
    for _ in range(40):
        up = noise.choice((30, 60, 90))
        exchange(link, LinkTimes(0.010), up, 40, more_s=noise.uniform(0, 0.004))
        assert link.times is not None
        assert min(link.times.latency_s, link.times.up_s, link.times.down_s) >= 0
    assert link.times is not None
    assert link.times.exchange_s(60, 40) == pytest.approx(0.012, abs=0.002)


def test_what_the_other_end_held_a_frame_for_is_no_time_of_the_link() -> None:
    link = LinkEstimate()
    link.exchanged(30, 30, elapsed_s=0.5, held_s=0.45)
    assert link.times is not None
    assert link.times.exchange_s(30, 30) == pytest.approx(0.05, rel=0.01)
