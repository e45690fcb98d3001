"""Where an answer ends, and what a frame leaves unsaid."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tandem.core.randomness import SeededRandom
from tandem.core.stopping import FinishReason
from tandem.specdec.choices import Schedule
from tandem.specdec.cloud import VerifyWork
from tandem.specdec.committed_text import CommittedText
from tandem.specdec.events import DraftWork
from tandem.specdec.judge import Judge
from tandem.specdec.messages import GoingAway, Opened, Work
from tandem.specdec.rules import acceptance_rule
from tandem.specdec.tree_growth import TreeGrowth
from tests.virtual_time.cases import preset, scheduled, tree
from tests.virtual_time.cloud_frames import opened_cloud
from tests.virtual_time.edge_frames import MODELS, PROBS
from tests.virtual_time.lockstep import request_for


def text(
    max_tokens: int = 4, stop: int = 9, ends: frozenset[int] = frozenset({0})
) -> CommittedText:
    request = request_for(preset("coupled", 2), MODELS, max_tokens=max_tokens, ends=ends)
    return CommittedText(request, lambda token: token == stop)


def test_an_answer_ends_with_its_last_token_an_end_or_a_stop_string() -> None:
    assert text().append((1, 2)) == ((1, 2), None)
    assert text().append((1, 2, 1, 2, 1)) == ((1, 2, 1, 2), FinishReason.LENGTH)
    assert text().append((1, 0, 1)) == ((1, 0), FinishReason.STOP)
    assert text().append((1, 9, 1)) == ((1, 9), FinishReason.STOP)
    assert text().append((1, 2, 1, 0)) == ((1, 2, 1, 0), FinishReason.STOP)


@pytest.mark.parametrize(("room", "length"), [(2, 2), (4, 4), (9, 4)])
def test_less_room_shortens_an_answer_and_more_does_not_lengthen_it(room: int, length: int) -> None:
    limited = text()
    limited.limit(room)
    assert limited.append((1,) * 9) == ((1,) * length, FinishReason.LENGTH)
    assert len(limited.tokens) == 2 + length


def test_an_answer_that_ignores_ends_goes_on_after_them() -> None:
    request = request_for(preset("coupled", 2), MODELS, max_tokens=4, ends=frozenset({0}))
    params = replace(request.params, ignore_eos=True)
    endless = CommittedText(replace(request, params=params), lambda token: False)
    assert endless.append((0, 1, 0, 2)) == ((0, 1, 0, 2), FinishReason.LENGTH)


def test_the_cloud_s_ends_take_the_place_of_those_assumed() -> None:
    taken = text()
    taken.take_eos(frozenset({1}))
    assert taken.append((0, 1)) == ((0, 1), FinishReason.STOP)


def test_a_cloud_says_how_long_it_stays() -> None:
    cloud = opened_cloud(preset("coupled", 2))
    assert cloud.going_away(2.5) == GoingAway(7, 0, 2, cloud.committed.prefix, grace_s=2.5)


def test_what_a_frame_does_not_say() -> None:
    """A cloud of an older version measures nothing, and has no exits."""
    assert Work() == Work(0.0, 0.0, batch_size=1, target_passes=0, drafts=0)
    assert Opened(1, 0, 2, 9, 8, 64, frozenset(), "model").exits == 0


def test_the_positions_of_a_pass_follow_what_the_kv_holds() -> None:
    judge = Judge.__new__(Judge)
    chain = VerifyWork(4, (5, 6, 7), logits_to_keep=2, drafts=2, judge=judge)
    assert (chain.kept, chain.positions) == (4, [6, 7])
    assert chain.contexts((1,) * 4) == [(1, 1, 1, 1, 5, 6), (1, 1, 1, 1, 5, 6, 7)]
    branching = VerifyWork(*(4, (5, 6, 7), 3, 3, judge), parents=(-1, 0, 0), path=(2,))
    assert (branching.kept, branching.positions) == (5, [6, 7, 7])
    assert branching.contexts((1,) * 5)[1:] == [(*(1,) * 5, 5, 6), (*(1,) * 5, 5, 7)]


def test_a_tree_grows_to_its_last_layer_or_until_all_have_ended() -> None:
    rule = acceptance_rule(tree((2, 2)), 1, SeededRandom(1))
    for ends, complete in ((frozenset[int](), False), (frozenset({0, 1, 2}), True)):
        growth = TreeGrowth(DraftWork(0, (1,), 2, 2, ends, expansion=(2, 2)), rule)
        assert growth.width == 2
        assert not growth.grow([PROBS])
        assert len(growth.newest) == 2
        assert growth.newest_parents == (-1, -1)
        assert growth.grow([PROBS, PROBS])
        assert (len(growth.newest) == 0) is complete
    deeper = TreeGrowth(DraftWork(0, (1,), 2, 3, frozenset({0, 1, 2}), expansion=(1, 1, 1)), rule)
    assert not deeper.grow([PROBS])
    assert deeper.grow([PROBS]), "nothing is left to expand"


def test_a_tree_goes_on_beside_a_node_that_ends_the_text() -> None:
    rule = acceptance_rule(tree((3, 1)), 1, SeededRandom(1))
    growth = TreeGrowth(DraftWork(0, (1,), 2, 2, frozenset(), expansion=(3, 1)), rule)
    growth.grow([PROBS])
    first = growth.newest_token_ids[0]
    growth = TreeGrowth(DraftWork(0, (1,), 2, 2, frozenset({first}), expansion=(3, 1)), rule)
    growth.grow([PROBS])
    assert growth.newest_token_ids[0] == first
    growth.grow([PROBS] * 3)
    assert growth.newest_parents == (1, 2)


def test_a_window_that_is_one_chunk_is_stop_and_wait() -> None:
    assert Schedule(2, 2).stop_and_wait
    assert not Schedule(4, 2).stop_and_wait
    assert not scheduled("coupled", Schedule(2, 2, decode_when_idle=True)).schedule.stop_and_wait
