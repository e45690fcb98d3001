"""The link model's arithmetic: FIFO, bandwidth, jitter, cuts; all in virtual time."""

import math
import random
from itertools import pairwise

import pytest

from tandem.core.errors import InvalidArgument
from tandem.netem.link_model import (
    Link,
    LinkSettings,
    link_from,
    settings_from,
)


def arrivals(link: Link, times: list[float], size_bytes: int = 100) -> list[float]:
    return [link.send(size_bytes, now) for now in times]


def random_times(seed: int, count: int = 500) -> list[float]:
    rng = random.Random(seed)
    return sorted(rng.uniform(0, 2) for _ in range(count))


def test_delay_alone_shifts_time() -> None:
    link = Link(LinkSettings(delay_s=0.25), seed=1)
    assert arrivals(link, [0.0, 0.5, 0.5]) == [0.25, 0.75, 0.75]


def test_messages_queue_for_bandwidth() -> None:
    link = Link(LinkSettings(delay_s=1.0, bytes_per_s=100), seed=1)
    # 50 bytes take 0.5 s; the second waits for the first, the third finds the sender idle.
    assert link.send(50, 0.0) == 1.5
    assert link.send(50, 0.25) == 2.0
    assert link.send(50, 3.0) == 4.5
    assert link.send(0, 3.0) == 4.5


@pytest.mark.parametrize("bytes_per_s", [None, 50_000.0])
@pytest.mark.parametrize("seed", range(5))
def test_jitter_never_reorders_and_stays_within_its_bounds(
    seed: int, bytes_per_s: float | None
) -> None:
    settings = LinkSettings(delay_s=0.05, jitter_s=0.03, bytes_per_s=bytes_per_s)
    link = Link(settings, seed)
    times = random_times(seed)
    out = arrivals(link, times)
    assert out == sorted(out)
    sparse = Link(settings, seed)
    for index in range(200):  # far apart, so that no message waits for another
        sent = 10.0 * index
        transmission_s = 0.0 if bytes_per_s is None else 100 / bytes_per_s
        propagation_s = sparse.send(100, sent) - sent - transmission_s
        assert 0.02 - 1e-9 <= propagation_s <= 0.08 + 1e-9


def test_same_seed_same_arrivals() -> None:
    settings = LinkSettings(delay_s=0.05, jitter_s=0.03, bytes_per_s=1e5)
    times = random_times(1)
    first, again, other = (arrivals(Link(settings, seed), times) for seed in (4, 4, 5))
    assert first == again
    assert first != other


def test_a_trace_is_replayed_in_turn() -> None:
    link = Link(LinkSettings(delay_s=1.0, jitter_trace=(0.0, 0.5, -2.0)), seed=0)
    assert arrivals(link, [0.0, 10.0, 20.0, 30.0, 40.0]) == [1.0, 11.5, 20.0, 31.0, 41.5]
    assert link.settings.longest_propagation_s == 1.5


def test_nothing_arrives_while_cut() -> None:
    link = Link(LinkSettings(delay_s=1.0), seed=0)
    link.cut(5.0)
    link.restore(8.0)
    assert arrivals(link, [3.9, 4.0, 6.9, 7.0, 7.5]) == [4.9, 8.0, 8.0, 8.0, 8.5]


def test_delivery_keeps_order_through_many_cuts() -> None:
    link = Link(LinkSettings(delay_s=0.05, jitter_s=0.05), seed=0)
    for start in range(4):
        link.cut(start * 0.5)
        link.restore(start * 0.5 + 0.2)
    out = arrivals(link, random_times(8))
    assert out == sorted(out)
    assert not any(start * 0.5 <= at < start * 0.5 + 0.2 for at in out for start in range(4))


def test_cuts_must_follow_each_other() -> None:
    link = Link(LinkSettings(), seed=0)
    link.cut(1.0)
    with pytest.raises(InvalidArgument, match="at"):
        link.restore(0.5)
    link.restore(3.0)
    with pytest.raises(InvalidArgument, match="at"):
        link.cut(2.0)


def test_a_pair_has_two_independent_directions() -> None:
    pair = link_from(rtt_s=0.1, mbps=8, jitter_s=0.02, seed=7)
    assert pair.up.settings == pair.down.settings == settings_from(0.1, 8, 0.02)
    assert pair.up.settings.delay_s == 0.05
    assert pair.up.settings.bytes_per_s == 1e6
    times = [10.0 * index for index in range(20)]
    assert arrivals(pair.up, times) != arrivals(pair.down, times)


@pytest.mark.parametrize(
    ("field", "bad"),
    [
        ("delay_s", -0.1),
        ("delay_s", math.nan),
        ("jitter_s", math.inf),
        ("bytes_per_s", 0.0),
        ("bytes_per_s", math.nan),
        ("jitter_trace", ()),
        ("jitter_trace", (0.1, math.nan)),
    ],
)
def test_bad_settings_are_named(field: str, bad: float | tuple[float, ...]) -> None:
    with pytest.raises(InvalidArgument) as caught:
        LinkSettings(**{field: bad})  # type: ignore[arg-type]
    assert caught.value.field == field


@pytest.mark.parametrize(("loss", "burst"), [(0.02, 1.0), (0.1, 4.0), (0.3, 2.0)])
def test_losses_have_their_share_and_come_in_bursts(loss: float, burst: float) -> None:
    link = Link(LinkSettings(delay_s=0.01, loss=loss, loss_burst=burst, resend_s=0.2), seed=5)
    # A minute apart, so that none waits for another: what is late was lost itself.
    late = [link.send(100, 60.0 * n) - 60.0 * n > 0.1 for n in range(20_000)]
    share = sum(late) / len(late)
    bursts = sum(now and not before for before, now in pairwise([False, *late]))
    assert share == pytest.approx(loss, rel=0.12)
    assert sum(late) / bursts == pytest.approx(max(burst, 1 / (1 - loss)), rel=0.12)


def test_a_lost_message_holds_up_those_behind_it() -> None:
    link = Link(LinkSettings(delay_s=0.01, loss=0.2, resend_s=0.5), seed=1)
    arrivals_s = [link.send(100, 0.01 * n) for n in range(200)]
    assert arrivals_s == sorted(arrivals_s)
    held_up = [n for n, at in enumerate(arrivals_s) if at - 0.01 * n > 0.1]
    assert len(held_up) > 100
