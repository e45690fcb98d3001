"""What one side counts of a request, and how long it remembers what it sent."""

from __future__ import annotations

import math
from typing import Any

import pytest

from tandem.two_sided.protocol.counters import AggregationCounters, AggregationStats, RoundTrips
from tandem.two_sided.protocol.messages import SideDraftFrame
from tandem.two_sided.protocol.mixture import Side


class Heard:
    def __init__(self) -> None:
        self.all: list[tuple[Any, ...]] = []

    def decoded(self, *of: Any) -> None:
        self.all.append(("decoded", *of))

    def exchanged(self, *of: Any) -> None:
        self.all.append(("exchanged", *of))

    def drafted(self, *of: Any) -> None:
        self.all.append(("drafted", *of))

    def verified(self, *of: Any) -> None:
        self.all.append(("verified", *of))


def frame(heard: int = 1, held_s: float = 0.25) -> SideDraftFrame:
    return SideDraftFrame(1, 0, 2, 9, 0, None, 0.0, committed=2, held_s=held_s, heard=heard)


def test_streams_losses_and_tokens_add_up() -> None:
    counters = AggregationCounters(None)
    assert counters.stats == AggregationStats()
    assert counters.stats.resumes == 0
    for resumes in range(3):
        counters.begin_stream()
        assert counters.stats.resumes == resumes
    for silent_s in (0.5, 2.0, 1.0):
        counters.lost_stream(silent_s)
    assert (counters.stats.links_lost, counters.stats.loss_noticed_s) == (3, 2.0)
    counters.committed(3, unverified=False)
    assert (counters.stats.tokens, counters.stats.unverified_tokens) == (3, 0)
    counters.committed(2, unverified=True)
    assert (counters.stats.tokens, counters.stats.unverified_tokens) == (5, 2)


def test_drafts_are_counted_by_side() -> None:
    heard = Heard()
    counters = AggregationCounters(heard)
    assert counters.stats.acceptance_rate(Side.CLOUD) is None
    for accepted in (True, False, True, True):
        counters.verified(Side.CLOUD, accepted)
    assert counters.stats.acceptance_rate(Side.CLOUD) == 0.75
    assert counters.stats.acceptance_rate(Side.DEVICE) is None
    assert counters.stats.drafted == {Side.DEVICE: 0, Side.CLOUD: 4}
    for decode_s in (0.5, 0.25, 0.0):
        counters.decoded(Side.DEVICE, 7, decode_s)
    assert counters.stats.decode_s == {Side.DEVICE: 0.75, Side.CLOUD: 0.0}
    told = [entry for entry in heard.all if entry[0] == "decoded"]
    assert told == [("decoded", Side.DEVICE, 7, 0.5), ("decoded", Side.DEVICE, 7, 0.25)]


@pytest.mark.parametrize("side", list(Side))
def test_an_exchange_has_both_frames_sizes_the_way_up_first(side: Side) -> None:
    heard = Heard()
    counters = AggregationCounters(heard)
    counters.begin_stream()
    counters.trips.sent(1.0)
    counters.trips.sized(500)
    counters.answered(frame(), side, 90, 3.0)
    sizes = (500, 90) if side is Side.DEVICE else (90, 500)
    assert heard.all == [("drafted", side.other, 90), ("exchanged", *sizes, 2.0, 0.25)]
    counters.answered(frame(), side, 0, 3.0)
    assert len(heard.all) == 2, "of no known size, and answered before"
    counters.trips.sent(4.0)
    counters.answered(frame(2, math.inf), side, 90, 5.0)
    assert len(heard.all) == 2, "no duration"
    counters.begin_stream()
    counters.answered(frame(), side, 90, 6.0)
    assert heard.all[2:] == [("drafted", side.other, 90)], "nothing was sent on this stream"


def test_round_trips_are_told_by_side_without_what_was_held_back() -> None:
    counters = AggregationCounters(None)
    counters.begin_stream()
    assert counters.stats.round_trip_s(Side.CLOUD) is None
    for sent_s, took_s in ((1.0, 0.5), (2.0, 0.75), (3.0, 2.25)):
        counters.trips.sent(sent_s)
        counters.answered(frame(int(sent_s)), Side.DEVICE, 90, sent_s + took_s)
    assert counters.stats.round_trip_s(Side.CLOUD) == 0.5, "the median, 0.25 s less"
    assert counters.stats.round_trip_s(Side.DEVICE) is None
    counters.trips.sent(9.0)
    counters.answered(frame(4, math.inf), Side.DEVICE, 90, 9.5)
    assert len(counters.stats.round_trips_s[Side.CLOUD]) == 3, "no duration"


def test_256_sent_frames_are_remembered() -> None:
    for sent, remembered in ((256, True), (257, False)):
        trips = RoundTrips()
        for _ in range(sent):
            trips.sent(1.0)
            trips.sized(10)
        assert (trips.size(1) == 10) == remembered
        assert trips.size(2) == 10
        assert (trips.elapsed_s(1, 3.0) == 2.0) == remembered


def test_what_was_answered_is_forgotten_with_all_before_it() -> None:
    trips = RoundTrips()
    for now in (1.0, 2.0, 3.0):
        trips.sent(now)
        trips.sized(10)
    assert trips.elapsed_s(2, 5.0) == 3.0
    assert [trips.size(number) for number in (1, 2, 3)] == [0, 10, 10]
    assert trips.elapsed_s(1, 5.0) is None
    assert trips.elapsed_s(3, 5.0) == 2.0


def test_a_frame_is_held_from_when_the_newest_came() -> None:
    trips = RoundTrips()
    assert (trips.heard, trips.held_s(5.0)) == (0, 0.0)
    for now in (1.0, 2.0):
        trips.received(now)
    assert (trips.heard, trips.held_s(5.0)) == (2, 3.0)
    assert trips.held_s(1.5) == 0.0, "never less than nothing"


def test_unverified_tokens_add_up_and_the_sink_hears_of_each_side() -> None:
    heard = Heard()
    counters = AggregationCounters(heard)
    for count, unverified in ((3, True), (2, False), (4, True)):
        counters.committed(count, unverified)
    assert (counters.stats.tokens, counters.stats.unverified_tokens) == (9, 7)
    counters.decoded(Side.CLOUD, 9, 0.5)
    counters.verified(Side.CLOUD, accepted=True)
    assert heard.all == [("decoded", Side.CLOUD, 9, 0.5), ("verified", Side.CLOUD, 1.0)]
