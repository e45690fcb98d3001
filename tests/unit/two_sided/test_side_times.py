"""What one side's machine does as time passes, and where a stream or an answer ends."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tandem.core.errors import InvalidArgument
from tandem.core.probs import SamplingParams
from tandem.core.stopping import FinishReason
from tandem.core.tokens import TokenSource
from tandem.specdec.events import Commit, Finish, Reconnect
from tandem.specdec.liveness import Liveness, LivenessTimes, LostCloud, Phase
from tandem.specdec.messages import Cancel, GoingAway, Ping, Pong
from tandem.two_sided.protocol.messages import (
    CollaborationOpen,
    CollaborationOpened,
    DecodingTarget,
    Fetch,
    SideDraftFrame,
    TargetFrame,
)
from tandem.two_sided.protocol.mixture import Side
from tandem.two_sided.protocol.presets import AGGREGATION_PRESETS
from tandem.two_sided.protocol.side_machine import SideMachine
from tandem.two_sided.protocol.top_list import TopList, top_list
from tests.unit.two_sided.test_side_machine import (
    PROBS,
    cloud,
    device,
    frame,
    head,
    own,
    queued,
    request_for,
    token_sources,
    tokens,
    told,
)

TIMES = LivenessTimes(ping_after_s=1.0, dead_after_s=3.0, give_up_after_s=10.0)
GREEDY = SamplingParams(temperature=0.0)


def watched(policy: LostCloud, name: str = "dragon-device", **changes: Any) -> SideMachine:
    """A device, and when it last heard of its cloud: at 0."""
    machine = SideMachine(
        Side.DEVICE,
        request_for(name, **changes),
        log_mass=0.0,
        liveness=Liveness(policy, TIMES, 0.0),
    )
    machine.connect(0.0)
    machine.receive(CollaborationOpened(1, 2, head(()), log_mass=0.0, max_tokens=4), 0.0)
    return machine


def ticked(machine: SideMachine, until: float, since: float = 0.0) -> list[Any]:
    """What ticks every fifth of a second bring."""
    ticks = range(round(since * 5) + 1, round(until * 5) + 1)
    return [(tick / 5, output) for tick in ticks for output in machine.tick(tick / 5)]


def test_a_silent_cloud_is_pinged_then_lost_then_given_up() -> None:
    machine = watched(LostCloud.FAIL)
    (at, ping), (lost_at, lost) = ticked(machine, 3.0)
    assert (at, lost_at) == (1.0, 3.0)
    assert ping.message == Ping(1, 2, head(()), nonce=1)
    assert lost == Reconnect()
    assert machine.phase is Phase.CONNECTING
    assert (machine.stats.links_lost, machine.stats.loss_noticed_s) == (1, 3.0)
    ((ended_at, finish),) = ticked(machine, 11.0, since=3.0)
    assert (ended_at, finish) == (10.0, Finish(FinishReason.ERROR))
    assert machine.finish_reason is FinishReason.ERROR
    assert machine.tick(20.0) == []


def test_a_frame_of_the_cloud_ends_its_silence() -> None:
    machine = watched(LostCloud.FAIL)
    machine.receive(Pong(1, 2, head(()), nonce=1), 0.8)
    assert [at for at, _ in ticked(machine, 3.6)] == [1.8]
    assert machine.tick(3.8) == [Reconnect()]


def test_who_watches_nobody_loses_nobody() -> None:
    assert device().tick(1e9) == []


def test_given_up_a_device_goes_on_with_its_own_drafts() -> None:
    machine = watched(LostCloud.EDGE)
    machine.drafted(own(token=3), 0.0)
    outputs = [output for _, output in ticked(machine, 11.0)]
    (commit,) = [output for output in outputs if isinstance(output, Commit)]
    assert commit == Commit((3,), unverified=True)
    assert commit.token_sources == (TokenSource.EDGE,)
    assert machine.phase is Phase.ALONE
    assert machine.stats.unverified_tokens == 1
    more = machine.drafted(own((3,), token=2), 11.0)
    assert tokens(more) == [2]
    assert told(more, SideDraftFrame) == []


@pytest.mark.parametrize("policy", list(LostCloud))
def test_a_waiting_device_goes_on_where_it_was(policy: LostCloud) -> None:
    machine = watched(policy)
    machine.drafted(own(), 0.0)
    machine.receive(frame(), 0.0)
    machine.receive(frame((0,), committed=3), 0.1)
    assert queued(machine) == (0, 1)
    assert machine.lost(0.5) == [Reconnect()]
    assert machine.lost(0.6) == []
    assert queued(machine) == (0, 0), "the cloud sends its drafts again"
    (opening,) = told(machine.connect(1.0), CollaborationOpen)
    assert (opening.base, opening.request.committed_ids) == (3, (0,))
    assert opening.log_mass == 0.0
    again = CollaborationOpened(1, 3, head((0,)), log_mass=0.0, max_tokens=9)
    machine.receive(again, 1.0)
    assert machine.stats.resumes == 1
    for length in (1, 2, 3):
        assert machine.finish_reason is None, "four tokens were asked for"
        machine.drafted(own((0,) * length), 1.0)
        machine.receive(frame((0,) * length, committed=3), 1.0)
    assert machine.finish_reason is FinishReason.LENGTH, "never more than was asked for"


def test_a_cloud_with_less_room_shortens_the_answer() -> None:
    machine = SideMachine(Side.DEVICE, request_for("dragon-device"), log_mass=0.0)
    machine.connect(0.0)
    machine.receive(CollaborationOpened(1, 2, head(()), log_mass=0.0, max_tokens=1), 0.0)
    machine.drafted(own(), 0.0)
    outputs = machine.receive(frame(), 0.0)
    assert outputs[-1] == Finish(FinishReason.LENGTH)
    assert [target.last for target in told(outputs, DecodingTarget)] == [True]


def test_a_departing_cloud_is_left_at_once() -> None:
    machine = device()
    assert machine.receive(GoingAway(1, 2, head(())), 0.0) == [Reconnect()]
    assert machine.phase is Phase.CONNECTING
    (said,) = told(cloud().going_away(0.0), GoingAway)
    assert said == GoingAway(1, 2, head(()))


def test_only_a_connected_device_tells_the_cloud_that_it_ends() -> None:
    for machine, tells in ((device(), 1), (cloud(), 0)):
        outputs = machine.cancel()
        assert len(told(outputs, Cancel)) == tells
        assert outputs[-1] == Finish(FinishReason.CANCELLED)
        assert machine.cancel() == machine.stop() == []
    away = device()
    away.lost(0.0)
    assert away.stop() == [Finish(FinishReason.STOP)]
    stopped = device()
    stopped.drafted(own(), 0.0)
    assert stopped.stop()[-1] == Finish(FinishReason.STOP)
    assert queued(stopped) == (0, 0)
    assert stopped.drafted(own(), 0.0) == []
    assert stopped.receive(frame(), 0.0) == []
    ended = cloud().receive(Cancel(1, 2, head(())), 0.0)
    assert ended == [Finish(FinishReason.CANCELLED)]


def test_a_ping_is_answered_with_its_number() -> None:
    (pong,) = told(cloud().receive(Ping(1, 2, head(()), nonce=7), 0.0), Pong)
    assert pong == Pong(1, 2, head(()), nonce=7)
    assert device().receive(pong, 0.0) == []


class Away:
    """Moves the aggregation at every token."""

    def __call__(self, position: int, aggregating: Side) -> Side:
        return aggregating.other


def test_the_side_that_hands_over_sends_its_drafts_and_no_last_token_does() -> None:
    machine = SideMachine(
        Side.DEVICE, request_for("dragon-device"), log_mass=0.0, placement_policy=Away()
    )
    machine.connect(0.0)
    machine.receive(CollaborationOpened(1, 2, head(()), log_mass=0.0, max_tokens=4), 0.0)
    machine.drafted(own(), 0.0)
    machine.drafted(own((0,)), 0.0)
    outputs = machine.receive(frame(), 0.0)
    (target,) = told(outputs, TargetFrame)
    assert (target.token_ids, target.hands_over) == ((0,), True)
    assert [sent.base for sent in told(outputs, SideDraftFrame)] == [3]
    moved = [machine.aggregation_side]
    assert machine.stats.side_moves == 1
    back = TargetFrame(1, 3, head((0,)), (0,), hands_over=True)
    machine.receive(back, 0.0)
    assert [*moved, machine.aggregation_side] == [Side.CLOUD, Side.DEVICE]
    machine.drafted(own((0, 0)), 0.0)
    machine.receive(frame((0, 0), committed=4), 0.0)
    assert machine.stats.side_moves == 2
    last = SideMachine(
        Side.DEVICE,
        request_for("dragon-device", max_tokens=1),
        log_mass=0.0,
        placement_policy=Away(),
    )
    last.connect(0.0)
    last.receive(CollaborationOpened(1, 2, head(()), log_mass=0.0, max_tokens=1), 0.0)
    last.drafted(own(), 0.0)
    (target,) = told(last.receive(frame(), 0.0), TargetFrame)
    assert not target.hands_over
    assert last.stats.side_moves == 0


def test_a_list_too_short_is_asked_for_once_and_what_was_due_is_sent_before() -> None:
    preset = replace(AGGREGATION_PRESETS["dragon-coupled"], top=1)
    machine = device("dragon-coupled", preset=preset, sampling=GREEDY)
    flat = np.full(4, 0.25, dtype=np.float32)
    near = np.array([0.2, 0.25, 0.25, 0.3], dtype=np.float32)
    assert len(told(machine.drafted(own(probs=near), 0.0), SideDraftFrame)) == 1
    short = top_list(flat, 1)
    outputs = machine.receive(frame(probs=short), 0.0)
    assert told(outputs, Fetch) == [Fetch(1, 2, head(()), count=8)]
    assert tokens(outputs) == []
    assert machine.stats.fetches == 1
    assert told(machine.receive(frame(probs=short), 0.0), Fetch) == [], "once"
    outputs = machine.receive(frame(probs=top_list(flat, 4)), 0.0)
    assert tokens(outputs) == [3]
    machine.receive(frame((3,), probs=short), 0.0)
    outputs = machine.drafted(own((3,), probs=near), 0.0)
    assert len(told(outputs, SideDraftFrame)) == len(told(outputs, Fetch)) == 1


def test_more_is_told_of_a_draft_that_still_stands() -> None:
    machine = cloud("dragon-coupled", sampling=GREEDY)
    (sent,) = told(machine.drafted(own(probs=PROBS), 0.0), SideDraftFrame)
    assert isinstance(sent.probs, TopList)
    asked = Fetch(1, 2, head(()), count=2)
    (more,) = told(machine.receive(asked, 0.0), SideDraftFrame)
    assert len(more.probs.ids) == 2
    assert told(machine.receive(replace(asked, count=9), 0.0), SideDraftFrame)[0].base == 2
    assert told(machine.receive(replace(asked, prefix_hash=7), 0.0), SideDraftFrame) == []
    nothing = cloud("dragon-coupled")
    nothing.drafted(own(probs=None), 0.0)
    with pytest.raises(InvalidArgument, match="fetch"):
        nothing.receive(asked, 0.0)


def test_one_coin_for_the_answer_sends_it_whole() -> None:
    request = request_for("drdg-sw", committed_ids=(3,))
    machine = SideMachine(Side.CLOUD, request, peer_log_mass=-90.0)
    machine.opened(0.0, 0.0)
    answer: tuple[int, ...] = (3,)
    for token in (2, 1):
        outputs = machine.drafted(own(answer, token=token), 0.0)
        assert tokens(outputs) == [token]
        assert told(outputs, TargetFrame) == told(outputs, SideDraftFrame) == []
        answer = (*answer, token)
    (target,) = told(machine.drafted(own(answer, token=0), 0.0), TargetFrame)
    assert target == TargetFrame(
        1, 3, head((3,)), (2, 1, 0), token_sources=(TokenSource.CLOUD,) * 3
    )
    away = SideMachine(Side.DEVICE, request_for("drdg-sw"), log_mass=-90.0)
    away.connect(0.0)
    away.receive(CollaborationOpened(1, 2, head(()), log_mass=0.0, max_tokens=4), 0.0)
    outputs = away.receive(TargetFrame(1, 2, head(()), (2, 1), token_sources=()), 0.0)
    assert tokens(outputs) == [2, 1]
    assert token_sources(outputs) == []


def test_a_done_device_asks_and_answers_nothing() -> None:
    machine = device()
    machine.cancel()
    assert machine.receive(Ping(1, 2, head(()), nonce=1), 0.0) == []
    assert machine.receive(Fetch(1, 2, head(()), count=1), 0.0) == []


def test_an_opening_belongs_to_the_text_that_it_names() -> None:
    machine = SideMachine(
        Side.DEVICE,
        request_for("dragon placement=cloud", eos_token_ids=frozenset({9})),
        log_mass=0.5,
    )
    (opening,) = told(machine.connect(0.0), CollaborationOpen)
    assert opening.answer_header == {
        "session": 1,
        "base": 2,
        "prefix_hash": head(()),
    }
    assert opening.request.eos_token_ids == {9}
    ignoring = replace(machine.request, ignore_eos=True)
    frame_of = ignoring.opening(machine.committed, 0.5)
    assert frame_of.request.eos_token_ids == frozenset()
    assert not frame_of.request.ignore_eos
    assert cloud().phase is Phase.RUNNING
