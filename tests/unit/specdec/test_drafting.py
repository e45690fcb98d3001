"""How much is drafted when, and when it leaves."""

from __future__ import annotations

from dataclasses import replace
from math import inf
from typing import Any

import numpy as np
import pytest

from tandem.core.codecs import Precision, sparse_wire_probs, wire_probs
from tandem.core.errors import ProtocolError
from tandem.core.probs import Truncation, truncate
from tandem.core.tokens import PrefixedTokens
from tandem.specdec.choices import Control, Schedule
from tandem.specdec.drafting import Drafting, bulk_bytes, draft_frame, probs_to_draft_from
from tandem.specdec.events import Drafted, DraftTask, EdgeRequest
from tandem.specdec.messages import Draft, Frame, GenerationParams
from tandem.specdec.presets import PRESETS, Preset, find_preset
from tests.virtual_time.cases import preset, scheduled
from tests.virtual_time.edge_frames import MODELS, drafts_of
from tests.virtual_time.lockstep import request_for

NO_ENDS = frozenset[int]()
CHUNKS = scheduled("coupled", Schedule(6, 2, verify_on_arrival=True))
PIECES = scheduled("coupled", Schedule(6, 2, verify_on_arrival=True, token_by_token=True))
AHEAD = preset("predraft", 2)


def drafting(chosen: Preset = CHUNKS, max_tokens: int = 12) -> Drafting:
    request = request_for(chosen, MODELS, max_tokens=max_tokens)
    return Drafting(request, PrefixedTokens(request.prompt_ids))


def take(one: Drafting, *token_ids: int, draft_s: float = 0.0) -> None:
    work = one.begin(len(token_ids), NO_ENDS)
    assert one.take(work, drafts_of(*token_ids), work.position + len(token_ids) - 1, draft_s)


def frames(one: Drafting, budget_s: float = inf) -> list[tuple[tuple[int, ...], bool]]:
    return [(sent.token_ids, sent.end_of_chunk) for sent in one.send_due(0, budget_s)]


def test_what_is_due_is_the_rest_of_a_chunk_in_the_window_and_the_answer() -> None:
    one = drafting()
    assert one.draftable == 2
    take(one, 0)
    assert one.draftable == 1, "of the chunk"
    take(one, 1)
    assert one.draftable == 0, "it is to be sent first"
    assert frames(one) == [((0, 1), True)]
    assert one.draftable == 2
    take(one, 0, 1)
    frames(one)
    take(one, 0, 1)
    frames(one)
    assert one.draftable == 0, "the window is full"
    short = drafting(max_tokens=3)
    take(short, 0, 1)
    frames(short)
    assert (short.room, short.draftable) == (1, 1)
    assert drafting(preset("ar")).draftable == 0


def test_a_chunk_leaves_whole_and_the_answer_s_last_one_as_it_is() -> None:
    one = drafting()
    take(one, 0)
    assert frames(one) == []
    take(one, 1)
    take(one, 2)
    assert frames(one) == [((0, 1), True)]
    last = drafting(max_tokens=1)
    take(last, 0)
    assert frames(last) == [((0,), True)]


def test_pieces_leave_as_they_come_and_the_last_one_ends_the_chunk() -> None:
    one = drafting(PIECES)
    take(one, 0)
    assert frames(one) == [((0,), False)]
    assert one.chunk_is_open
    assert one.draftable == 1
    take(one, 1)
    assert frames(one) == [((1,), True)]
    assert not one.chunk_is_open
    assert one.draftable == 2


def test_a_chunk_that_took_its_time_is_whole() -> None:
    one = drafting()
    take(one, 0, draft_s=0.5)
    assert frames(one, budget_s=0.51) == []
    assert frames(one, budget_s=0.5) == [((0,), True)]
    take(one, 1, draft_s=0.25)
    assert frames(one, budget_s=0.5) == [], "a chunk of its own"
    one.discard()
    take(one, 1, draft_s=0.25)
    assert frames(one, budget_s=0.5) == []
    take(one, 2, draft_s=0.25)
    take(one, 0, draft_s=0.25)
    assert frames(one, budget_s=0.5) == [((1, 2), True)], "and the rest is not overdue"


def test_the_time_of_a_chunk_runs_on_while_its_pieces_leave() -> None:
    schedule = Schedule(4, 4, verify_on_arrival=True, token_by_token=True)
    one = drafting(scheduled("coupled", schedule))
    take(one, 0, draft_s=0.3)
    assert frames(one, budget_s=0.5) == [((0,), False)]
    take(one, 1, draft_s=0.3)
    assert frames(one, budget_s=0.5) == [((1,), True)]
    take(one, 2, draft_s=0.3)
    assert frames(one, budget_s=0.5) == [((2,), False)], "the next chunk"


def test_a_closed_window_lets_out_what_was_drafted_one_by_one() -> None:
    one = drafting()
    take(one, 0, 1)
    one.schedule = replace(one.schedule, window=0, chunk=0)
    assert frames(one) == [((0,), True), ((1,), True)]


def test_another_schedule_waits_for_the_end_of_a_chunk() -> None:
    other = Schedule(1, 1)
    one = drafting()
    one.begin(1, NO_ENDS)
    one.follow(other, drafts_ahead=False)
    assert one.schedule == CHUNKS.schedule, "a work is under way"
    one.interrupt()
    one.follow(other, drafts_ahead=False)
    assert one.schedule == other
    for chosen in (CHUNKS, PIECES):
        begun = drafting(chosen)
        take(begun, 0)
        frames(begun)
        begun.follow(other, drafts_ahead=False)
        assert begun.schedule == chosen.schedule, "a chunk is begun"
        take(begun, 1)
        frames(begun)
        begun.follow(other, drafts_ahead=False)
        assert begun.schedule == other
    begun = drafting(PIECES)
    take(begun, 0)
    frames(begun)
    begun.follow(other, drafts_ahead=False)
    begun.reconnected()
    assert not begun.chunk_is_open
    assert begun.sent == 0
    begun.follow(other, drafts_ahead=False)
    assert begun.schedule == PIECES.schedule, "it is to be sent again"


def test_tokens_are_handed_over_one_by_one_where_somebody_waits_for_each() -> None:
    reports = replace(CHUNKS, control=Control.LATENCY_AWARE)
    for chosen, count, stepwise in (
        *[(CHUNKS, 2, False), (PIECES, 2, True), (PIECES, 1, False)],
        *[(reports, 2, True), (reports, 1, False)],
    ):
        assert drafting(chosen).begin(count, NO_ENDS).stepwise is stepwise
    assert drafting(AHEAD).begin(1, NO_ENDS).alternatives == 4
    assert drafting(CHUNKS).begin(1, NO_ENDS).alternatives == 0


def test_a_work_ends_with_its_last_token_or_an_end() -> None:
    one = drafting(PIECES)
    work = one.begin(2, frozenset({2}))
    one.take(work, drafts_of(0), 2)
    assert one.task is work
    one.take(work, drafts_of(1), 3)
    assert one.task is None
    assert not one.take(work, drafts_of(1), 3)
    ended = one.begin(2, frozenset({2}))
    one.take(ended, drafts_of(2), 4)
    assert one.task is None
    assert one.kv_length == 4


def waiting(max_tokens: int = 12) -> Drafting:
    """A chunk is out."""
    one = drafting(AHEAD, max_tokens)
    take(one, 0, 1)
    frames(one)
    return one


@pytest.mark.parametrize(("max_tokens", "count"), [(12, 3), (5, 3), (4, 2)])
def test_ahead_the_cloud_s_token_and_a_chunk_are_drafted(max_tokens: int, count: int) -> None:
    one = waiting(max_tokens)
    work = one.begin_ahead()
    assert work is not None
    assert (work.position, work.count, work.guess, work.stepwise) == (4, count, True, True)
    assert one.begin_ahead() is None, "once"


def test_nothing_is_drafted_ahead_that_would_not_fit_or_not_follow() -> None:
    assert waiting(max_tokens=3).begin_ahead() is None, "the cloud's token is the last"
    assert drafting(AHEAD).begin_ahead() is None, "nothing is out"
    unsent = drafting(AHEAD)
    take(unsent, 0)
    assert unsent.begin_ahead() is None
    assert drafting(CHUNKS).begin_ahead() is None
    for changed in ({"bonus": False}, {"verify_on_arrival": True}):
        one = waiting()
        one.schedule = replace(one.schedule, **changed)
        assert one.begin_ahead() is None


def test_what_was_drafted_ahead_follows_the_token_it_predicted() -> None:
    one = waiting()
    work = one.begin_ahead()
    assert work is not None
    one.take(work, drafts_of(2), 4)
    one.take(work, drafts_of(0), 5)
    assert len(one.token_ids) == 2
    assert one.adopt_ahead() == 1
    assert [draft.token_id for draft in one.drafts] == [0, 1, 0]
    assert one.ahead is None


def test_the_token_before_what_was_drafted_ahead_is_fed_again() -> None:
    one = waiting()
    work = one.begin_ahead()
    assert work is not None
    one.take(work, drafts_of(2), 5)
    assert one.kv_length == 5
    assert one.discard_ahead() == [work]
    assert (one.kv_length, one.ahead, one.task) == (3, None, None)
    assert one.discard_ahead() == []


def test_a_discard_keeps_the_kv_of_what_is_committed() -> None:
    one = drafting()
    take(one, 0, 1)
    assert one.kv_length == 3
    assert one.unfed(4, 3) == (1,)
    assert one.unfed(4, 1) == (2, 0, 1)
    assert one.unfed(3, 1) == (2, 0)
    assert one.context == (1, 2, 0, 1)
    work = one.begin(1, NO_ENDS)
    assert one.discard() == [work]
    assert (one.kv_length, one.position, one.task) == (2, 2, None)
    assert one.unfed(2, 1) == (2,)
    one.adopt_prefix(1)
    one.discard()
    assert one.kv_length == 1, "it never held more"


def test_a_branch_that_came_true_goes_on_where_it_is() -> None:
    one = drafting()
    task = DraftTask(0, (1,), 3, 3, stepwise=True)
    one.go_on_with(task, taken=1)
    assert one.adopt(drafts_of(0)) == 1
    assert one.task is task
    assert one.take(task, drafts_of(1), 9)
    assert one.task is task, "one of three is missing"
    assert one.take(task, drafts_of(1), 9)
    assert one.task is None
    assert one.token_ids == (0, 1, 1)


@pytest.mark.parametrize("begun", ["task", "draft"])
def test_a_prefix_is_adopted_before_anything_is_drafted(begun: str) -> None:
    one = drafting()
    one.adopt_prefix(1)
    assert one.begin(2, NO_ENDS).token_ids == (2,)
    if begun == "draft":
        one.interrupt()
        take(one, 0)
    with pytest.raises(ProtocolError, match="adopt_prefix"):
        one.adopt_prefix(2)


def test_a_frame_asks_the_cloud_to_wait_where_it_would_go_on_alone() -> None:
    """Only if the schedule in force differs from the preset's in that."""
    goes_on = Schedule(4, 2, decode_when_idle=True)
    for chosen, followed, hold in (
        (goes_on, goes_on, False),
        (goes_on, replace(goes_on, decode_when_idle=False), True),
        (replace(goes_on, decode_when_idle=False), goes_on, False),
    ):
        one = drafting(scheduled("coupled", chosen))
        one.follow(followed, drafts_ahead=False)
        take(one, 0, 1)
        assert [sent.hold for sent in one.send_due(0)] == [hold]


@pytest.mark.parametrize("chosen", [CHUNKS, PIECES, preset("coupled", 4)])
def test_what_is_sent_again_on_a_second_stream_is_what_was_sent(chosen: Preset) -> None:
    """Nothing that waits to be sent, and as much of a chunk as was."""
    one = drafting(chosen)
    assert one.resent(0) == []
    for token_id in (0, 1, 0):
        take(one, token_id)
        one.send_due(0)
    sent = one.sent
    again = one.resent(3)
    assert one.sent == sent
    assert [token for frame in again for token in frame.token_ids] == [0, 1, 0][:sent]
    assert [frame.base for frame in again] == [2, 4][: len(again)]
    assert {frame.epoch for frame in again} <= {3}
    whole = [frame.end_of_chunk for frame in again]
    assert whole == ([True, False] if chosen is PIECES else [True] * len(whole))


SHARES = np.array([0.25, 0.25, 0.5], dtype=np.float32)


def test_a_chunk_carries_what_its_uplink_names() -> None:
    frame = Frame(session=1, epoch=2, base=3, prefix_hash=4)
    chunk = [Drafted(token_id, SHARES) for token_id in (2, 0)]
    ids = draft_frame(frame, chunk, PRESETS["coupled"])
    assert (ids.session, ids.epoch, ids.base, ids.prefix_hash) == (1, 2, 3, 4)
    assert (ids.token_ids, ids.end_of_chunk) == ((2, 0), True)
    assert (ids.probabilities, ids.distributions) == (None, None)
    split = draft_frame(frame, chunk, PRESETS["dssd"])
    assert (split.probabilities, split.distributions) == ((0.5, 0.25), None)
    for name in ("dsd", "tslt"):
        full = draft_frame(frame, chunk, PRESETS[name])
        assert full.probabilities is None
        assert full.distributions is not None
        np.testing.assert_array_equal(full.distributions, np.stack([SHARES, SHARES]))


@pytest.mark.parametrize(
    ("name", "choices", "wanted"),
    [
        ("dsd", {}, 3 * 2 * 1000),
        ("dsd", {"uplink_precision": "float32"}, 3 * 4 * 1000),
        ("dssd-full", {}, 4 * 1000),
        ("dssd", {}, 0),
        ("tslt", {}, 0),
        ("coupled", {}, 0),
    ],
)
def test_whole_distributions_are_bulk(name: str, choices: dict[str, Any], wanted: int) -> None:
    chosen = replace(find_preset(name), **choices)
    frames = [Draft(1, 0, 9, 0, token_ids=ids, end_of_chunk=True) for ids in ((5, 6), (7,))]
    request = EdgeRequest(1, (1,), "", 1000, GenerationParams(max_tokens=8), chosen)
    assert bulk_bytes(frames, request) == wanted


@pytest.mark.parametrize("name", ["dsd", "tslt", "coupled"])
@pytest.mark.parametrize("precision", ["float32", "float16"])
def test_a_draft_is_drawn_from_what_its_uplink_can_carry(name: str, precision: Precision) -> None:
    chosen = replace(find_preset(name), uplink_precision=precision, truncation=Truncation(top_k=2))
    probs = np.array([0.3, 0.25, 0.45], dtype=np.float32)
    cut = truncate(probs, chosen.truncation)
    rounded = {"dsd": wire_probs(cut, "float16"), "tslt": sparse_wire_probs(cut, "float16")}
    expected = rounded.get(name, cut) if precision == "float16" else cut
    np.testing.assert_array_equal(probs_to_draft_from(probs, chosen), expected)
    if precision == "float16" and name in rounded:
        assert (expected != cut).any()
