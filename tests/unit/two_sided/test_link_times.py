"""A link's latency and bandwidths, from frames of different sizes and their answers."""

from __future__ import annotations

import random

import pytest

from tandem.two_sided.protocol.link_times import LinkEstimate, LinkTimes

UP = 1.25e6
DOWN = 5e6


def exchange(
    estimate: LinkEstimate, source: random.Random, latency_s: float, jitter_s: float = 0.0
) -> None:
    up, down = source.choice((60, 400, 4_000, 20_000)), source.choice((40, 900, 30_000))
    held_s = source.uniform(0, 0.2)
    travel_s = latency_s + source.uniform(-jitter_s, jitter_s) + up / UP + down / DOWN
    estimate.exchanged(up, down, held_s + travel_s, held_s)


def times_of(estimate: LinkEstimate) -> LinkTimes:
    assert estimate.times is not None
    return estimate.times


def test_the_first_exchange_tells_the_latency() -> None:
    estimate = LinkEstimate()
    assert estimate.times is None
    estimate.exchanged(100, 100, 0.05)
    assert times_of(estimate).latency_s == pytest.approx(0.05)


def test_latency_and_both_bandwidths_are_found() -> None:
    estimate, source = LinkEstimate(), random.Random(1)
    for _ in range(200):
        exchange(estimate, source, 0.1, jitter_s=0.002)
    times = times_of(estimate)
    assert times.latency_s == pytest.approx(0.1, rel=0.03)
    assert times.up_bytes_per_s == pytest.approx(UP, rel=0.1)
    assert times.down_bytes_per_s == pytest.approx(DOWN, rel=0.3)
    both_ways_s = times.to_cloud_s(1e5) + times.to_device_s(1e5)
    assert both_ways_s == pytest.approx(0.1 + 0.08 + 0.02, rel=0.1)


def test_small_frames_alone_show_no_limit() -> None:
    estimate = LinkEstimate()
    for number in range(50):
        estimate.exchanged(60 + number % 3, 40, 0.08)
    times = times_of(estimate)
    assert times.latency_s == pytest.approx(0.08, rel=0.01)
    assert times.to_cloud_s(1000) + times.to_device_s(1000) == pytest.approx(0.08, rel=0.02)


@pytest.mark.parametrize("seed", range(5))
def test_noise_is_not_taken_for_a_limit(seed: int) -> None:
    """Sizes of drafts as they are, and a busy machine's delays, which follow nothing."""
    estimate, source = LinkEstimate(), random.Random(seed)
    for _ in range(300):
        sizes = source.choice((60, 90, 330, 420)), source.choice((50, 200, 300))
        estimate.exchanged(*sizes, elapsed_s=0.08 + source.expovariate(1 / 0.01))
        times = times_of(estimate)
        assert times.up_bytes_per_s == times.down_bytes_per_s == float("inf")


def test_a_changed_link_is_followed_within_ten_exchanges() -> None:
    estimate, source = LinkEstimate(), random.Random(2)
    for _ in range(200):
        exchange(estimate, source, 0.02)
    for _ in range(10):
        exchange(estimate, source, 0.3)
    assert times_of(estimate).latency_s == pytest.approx(0.3, rel=0.15)


def test_clocks_that_tick_make_no_negative_delay() -> None:
    estimate = LinkEstimate()
    for _ in range(20):
        estimate.exchanged(100, 100, elapsed_s=0.01, held_s=0.0101)
    assert times_of(estimate).latency_s == 0
    assert times_of(estimate).to_cloud_s(100) >= 0


@pytest.mark.parametrize(("ratio", "believed"), [(0.5, False), (0.7, True)])
def test_a_limit_is_believed_where_it_explains_sixteen_times_what_chance_would(
    ratio: float, believed: bool
) -> None:
    """Half of what it adds, over the noise: squared and times some 47 exchanges, of which the
    others are forgotten, that is 12 or 23."""
    estimate, noise_s = LinkEstimate(), 0.01
    for number in range(400):
        bulk = number % 2
        error_s = noise_s if number % 4 < 2 else -noise_s
        estimate.exchanged(20_000 * bulk, 100, 0.1 + error_s + 2 * ratio * noise_s * bulk)
    assert (times_of(estimate).up_bytes_per_s < float("inf")) is believed
    assert times_of(estimate).down_bytes_per_s == float("inf")


def test_too_few_exchanges_show_no_limit_however_clear() -> None:
    for exchanges, believed in ((6, False), (8, True)):
        estimate = LinkEstimate()
        for number in range(exchanges):
            bulk = number % 2
            estimate.exchanged(20_000 * bulk, 100, 0.1 + 0.1 * bulk + 1e-4 * (number % 4 < 2))
        assert (times_of(estimate).up_bytes_per_s < float("inf")) is believed
