"""Timelines of one session after a correction, worked by hand.

All use the times of `TIMES`: the edge hears of the correction at 4 + 1 = 5 s, a draft takes 2 s,
a frame of n drafts 0.5 + n/4 s and 3 s of way, a pass over n tokens 9 + n s, a verdict 4.125 s."""

from dataclasses import replace

import pytest

from lab.analysis.epoch_timeline import Decided, Expected, StepTimes, expected, timeline
from tandem.specdec.choices import Schedule

TIMES = StepTimes(
    draft_s=2,
    pass_s=10,
    further_s=1,
    up_s=3,
    down_s=4,
    frame_s=0.5,
    token_s=0.25,
    verdict_s=0.125,
    correction_s=1,
)
STOP_AND_WAIT = Schedule(2, 2)
ALONE = Schedule(0, 1, decode_when_idle=True)
STREAM = Schedule(4, 2, decode_when_idle=True)
TOKEN_BY_TOKEN = Schedule(4, 2, verify_on_arrival=True, bonus=False, token_by_token=True)
UNEVEN = Schedule(3, 2)
NO_BONUS = Schedule(2, 2, bonus=False)

Row = tuple[float, float, bool, int, int, int, int]
"""accepted_s, rejected_s, judged, passes, fed, frames, drafted"""


def rows(
    schedule: Schedule,
    depth: int,
    times: StepTimes = TIMES,
    *,
    head_s: float = 0.0,
) -> list[Row]:
    return [
        (found.accepted.moment_s, found.rejected.moment_s, found.judged, *work(found.accepted))
        for found in timeline(schedule, times, depth, head_s=head_s)
    ]


def work(decided: Decided) -> tuple[int, int, int, int]:
    return decided.passes, decided.fed, decided.frames, decided.drafted


def test_times_left_out_are_nothing() -> None:
    assert StepTimes(1, 2, 3) == StepTimes(1, 2, 3, 0, 0, 0, 0, 0, 0, 0, 0)
    assert timeline(STOP_AND_WAIT, TIMES, 1)[0].accepted.moment_s == 25, "nothing drafted before"


def test_the_cloud_alone_takes_a_pass_a_token() -> None:
    # What the edge hears of is as good as drafted: it never drafts that itself.
    assert rows(ALONE, 3) == [
        (10, 10, False, 1, 1, 0, 0),
        (20, 20, False, 2, 2, 0, 1),
        (30, 30, False, 3, 3, 0, 2),
    ]


def test_stop_and_wait() -> None:
    # Heard at 5, two drafts until 9, frame until 10, arrived at 13, a pass over three tokens until
    # 25. The verdict is heard at 29.125: two drafts until 33.125, arrived at 37.125, passed at
    # 49.125.
    first, second = (25.0, 25.0), (49.125, 49.125)
    assert rows(STOP_AND_WAIT, 6) == [
        (*first, True, 1, 3, 1, 2),
        (*first, True, 1, 3, 1, 2),
        (*first, False, 1, 3, 1, 2),
        (*second, True, 2, 6, 2, 5),
        (*second, True, 2, 6, 2, 5),
        (*second, False, 2, 6, 2, 5),
    ]


def test_without_a_bonus_the_next_first_draft_is_judged_on_arrival() -> None:
    # Arrived at 37.125, where a rejection is known before the pass; the pass feeds no other token.
    assert rows(NO_BONUS, 4) == [
        (25, 25, True, 1, 3, 1, 2),
        (25, 25, True, 1, 3, 1, 2),
        (48.125, 37.125, True, 2, 5, 2, 4),
        (48.125, 48.125, True, 2, 5, 2, 4),
    ]
    assert work(timeline(NO_BONUS, TIMES, 3)[2].rejected) == (1, 3, 2, 4), "no second pass"


@pytest.mark.parametrize(
    ("head_s", "passed_s"),
    [
        (1.0, 24.0),  # half a step: both drafts ready at 8
        (2.0, 23.0),  # one step, at 7
        (3.0, 22.0),  # one and a half, at 6
        (4.0, 21.0),  # both, sent at once
        (30.0, 21.0),  # no more than a chunk
    ],
)
def test_a_branch_that_comes_true_was_begun_before(head_s: float, passed_s: float) -> None:
    found = rows(STOP_AND_WAIT, 6, head_s=head_s)
    assert found[:2] == [(passed_s, passed_s, True, 1, 3, 1, 2)] * 2
    # Only the first chunk is had for nothing.
    assert found[3][0] == passed_s + 24.125


def test_a_branch_of_an_edge_that_drafts_in_no_time_holds_a_chunk() -> None:
    times = replace(TIMES, draft_s=0)
    assert rows(STOP_AND_WAIT, 2, times, head_s=1.0)[0] == (21, 21, True, 1, 3, 1, 2)


def test_a_stream_goes_on_at_the_cloud_until_drafts_come() -> None:
    # The cloud decodes at 10 and 20. The chunk for the first two positions arrives at 13: position
    # 1 is known by then, the second draft is judged by the pass under way at 20 and committed by
    # the one that runs until 33, with the chunk that has come meanwhile.
    found = rows(STREAM, 8)
    assert [row[0] for row in found] == [10, 33, 33, 33, 33, 33, 43, 66]
    assert [row[1] for row in found] == [10, 20, 33, 33, 33, 33, 43, 53]
    assert [row[2] for row in found] == [True, True, True, True, True, False, True, True]
    assert [row[3:] for row in found[:2]] == [(1, 1, 1, 2), (3, 6, 3, 5)]


def test_the_cloud_overtakes_a_slow_edge() -> None:
    # A draft takes 40 s. What is being drafted is void as soon as the edge hears of the cloud's
    # token, every 10 s, so no draft is ever sent.
    found = rows(Schedule(4, 1, decode_when_idle=True), 12, replace(TIMES, draft_s=40))
    assert [row[0] for row in found] == [10.0 * (1 + n) for n in range(12)]
    assert all((row[2], row[5]) == (False, 0) for row in found)
    # Heard at 14.125, 24.125 ...: by 40 s the edge knows of three tokens.
    assert [row[6] for row in found[:5]] == [0, 1, 2, 3, 4]


def test_tokens_are_sent_and_judged_as_they_come() -> None:
    # Drafted at 7, 9, 11, 13; each frame takes 0.75 s. The first arrives at 10.75 and is passed at
    # 21.75 with the token before it; three more until 33.75.
    assert rows(TOKEN_BY_TOKEN, 5) == [
        (21.75, 21.75, True, 1, 2, 4, 4),
        (33.75, 21.75, True, 2, 5, 5, 5),
        (33.75, 33.75, True, 2, 5, 5, 5),
        (33.75, 33.75, True, 2, 5, 5, 5),
        (43.75, 33.75, True, 3, 6, 7, 7),
    ]


def test_tokens_that_are_sent_as_they_come_are_judged_by_the_chunk() -> None:
    # Arrived at 10.75, 12.75, 14.75 and 16.75; the second ends a chunk: a pass over three tokens
    # until 24.75, then one over the other two drafts alone until 35.75. By then the edge, which
    # heard of the first pass at 28.875, has filled its window with two more.
    whole_chunks = replace(TOKEN_BY_TOKEN, verify_on_arrival=False)
    assert rows(whole_chunks, 4) == [
        (24.75, 24.75, True, 1, 3, 4, 4),
        (24.75, 24.75, True, 1, 3, 4, 4),
        (35.75, 24.75, True, 2, 5, 6, 6),
        (35.75, 35.75, True, 2, 5, 6, 6),
    ]


def test_a_part_of_a_chunk_is_not_judged_though_its_distribution_is_known() -> None:
    # Heard at 28.875; the first of the second chunk arrives at 34.625, the other at 36.625. Only
    # then is the first judged, by what the last pass left.
    parts = replace(NO_BONUS, token_by_token=True)
    assert rows(parts, 4) == [
        (24.75, 24.75, True, 1, 3, 2, 2),
        (24.75, 24.75, True, 1, 3, 2, 2),
        (47.625, 36.625, True, 2, 5, 4, 4),
        (47.625, 47.625, True, 2, 5, 4, 4),
    ]


def test_a_window_that_is_no_multiple_of_the_chunk_sends_a_part() -> None:
    # Two drafts in a frame until 10, the third alone at 11.75; passes over 3 tokens until 25, then
    # over the third and the next alone.
    assert rows(UNEVEN, 4) == [
        (25, 25, True, 1, 3, 2, 3),
        (25, 25, True, 1, 3, 2, 3),
        (35, 25, True, 2, 4, 3, 5),
        (35, 35, True, 2, 4, 3, 5),
    ]


def test_work_that_comes_due_waits_for_a_pass_under_way() -> None:
    assert rows(STOP_AND_WAIT, 1, replace(TIMES, wait_s=6))[0][0] == 31


def test_a_tree_feeds_its_siblings_with_drafts_only() -> None:
    tree = replace(TIMES, siblings=3)
    assert rows(STOP_AND_WAIT, 1, tree)[0] == (28, 28, True, 1, 6, 1, 2)
    assert rows(ALONE, 2, tree) == rows(ALONE, 2)


def test_frames_queue_on_a_narrow_link() -> None:
    # Each frame takes 5.25 s, so they follow each other: up at 12.25, 17.5, 22.75, 28.
    found = rows(TOKEN_BY_TOKEN, 2, replace(TIMES, frame_s=5))
    assert found[0][:2] == (26.25, 26.25)
    assert found[1][:2] == (37.25, 26.25)


def figures(schedule: Schedule, rate: float, *, hit_rate: float = 0.0) -> Expected:
    head_s = 4.0 if hit_rate else 0.0
    return expected(schedule, TIMES, rate, hit_rate=hit_rate, head_s=head_s)


def test_expected_of_stop_and_wait_is_the_closed_form() -> None:
    # Each round yields 1 + a + a² tokens; a² of them end without a correction, whose answer takes
    # 0.875 s less: 1 s of correction against 0.125 s.
    rate = 0.6
    tokens = 1 + rate + rate**2
    found = figures(STOP_AND_WAIT, rate)
    assert found.tpot_s == pytest.approx((25 - 0.875 * rate**2) / tokens, rel=1e-2)
    assert found.passes == pytest.approx(1 / tokens, rel=1e-2)
    assert found.fed == pytest.approx(3 / tokens, rel=1e-2)
    assert found.frames == pytest.approx(1 / tokens, rel=1e-2)
    assert found.corrections == pytest.approx((1 - rate**2) / tokens, rel=1e-2)


def test_expected_when_every_draft_fails_or_none() -> None:
    assert figures(STOP_AND_WAIT, 0.0) == Expected(25, 1, 3, 1, 2, 1)
    always = figures(STOP_AND_WAIT, 1.0)
    assert always.tpot_s == pytest.approx(24.125 / 3, rel=1e-4)
    assert always.passes == pytest.approx(1 / 3)
    assert always.corrections == pytest.approx(0, abs=1e-5)


def test_expected_of_the_cloud_alone() -> None:
    for rate in (0.0, 0.5, 0.9, 1.0):
        found = figures(ALONE, rate)
        assert (found.tpot_s, found.passes, found.fed) == pytest.approx((10, 1, 1))
        assert (found.frames, found.corrections) == (0, 0)


def test_hits_mix_two_epochs() -> None:
    # An epoch that begins with a hit ends 4 s earlier, whatever the rate.
    rate = 0.5
    missed, mixed = figures(STOP_AND_WAIT, rate), figures(STOP_AND_WAIT, rate, hit_rate=0.25)
    hit = figures(STOP_AND_WAIT, rate, hit_rate=1.0)
    assert missed.tpot_s - hit.tpot_s == pytest.approx(4 * missed.corrections)
    assert mixed.tpot_s == pytest.approx(0.75 * missed.tpot_s + 0.25 * hit.tpot_s)
    assert mixed.passes == pytest.approx(missed.passes)


def test_expected_beyond_what_was_followed_goes_on_as_it_did() -> None:
    """At 0.97 a tenth of the epochs is longer than the deepest timeline."""
    rate = 0.97
    tokens = 1 + rate + rate**2
    found = figures(STOP_AND_WAIT, rate)
    assert found.tpot_s == pytest.approx((25 - 0.875 * rate**2) / tokens, rel=1e-2)
    assert found.passes == pytest.approx(1 / tokens, rel=1e-2)
