"""Which drafts of both sides count, for how long, and which a token makes void."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tandem.core.errors import InvalidArgument, ProtocolError
from tandem.core.probs import SamplingParams
from tandem.core.stopping import FinishReason
from tandem.core.tokens import TokenSource
from tandem.specdec.events import Finish
from tandem.two_sided.protocol.messages import DecodingTarget, Fetch, SideDraftFrame, TargetFrame
from tandem.two_sided.protocol.mixture import Side
from tandem.two_sided.protocol.presets import AGGREGATION_PRESETS
from tandem.two_sided.protocol.side_machine import SideMachine
from tandem.two_sided.protocol.top_list import TopList
from tests.unit.two_sided.test_side_machine import (
    ALL_OF_SURE,
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

GREEDY = SamplingParams(temperature=0.0)
LISTED = TopList(np.array([0]), np.array([1.0], dtype=np.float32), 0.0, 0.0)


def decided(machine: SideMachine, *token_ids: int) -> None:
    """The other side's word on what follows the committed text."""
    committed = machine.committed
    target = TargetFrame(1, len(committed), committed.prefix, token_ids)
    machine.receive(target, 0.0)


def test_own_drafts_follow_each_other_without_a_gap() -> None:
    machine = device()
    for answer, waiting in (
        ((0,), 0),  # the first position is missing
        ((), 1),
        ((), 1),  # it is there
        ((3,), 1),  # after another text
        ((0,), 2),
        ((0, 0), 3),
    ):
        machine.drafted(own(answer, committed=1), 0.0)
        assert queued(machine) == (waiting, 0), answer


@pytest.mark.parametrize(("token", "left"), [(0, 1), (3, 0)])
def test_a_token_takes_the_first_draft_and_where_it_differs_all(token: int, left: int) -> None:
    machine = device("dragon placement=cloud")
    decided(machine, 2)
    assert queued(machine) == (0, 0)
    for answer in ((2,), (2, 0)):
        machine.drafted(own(answer, base=2 + len(answer)), 0.0)
    decided(machine, token)
    assert queued(machine) == (left, 0)
    assert machine.stats.drafted == {0: 1, 1: 0}
    assert machine.stats.accepted == {0: int(token == 0), 1: 0}


def test_a_decided_draft_is_fetched_until_the_other_side_is_past_it() -> None:
    machine = cloud("dragon-coupled", sampling=GREEDY)
    for answer in ((), (0,)):
        machine.drafted(own(answer, probs=PROBS), 0.0)
    assert tokens(machine.receive(frame(probs=LISTED), 0.0)) == [0]

    def fetched(answer: tuple[int, ...], text: tuple[int, ...] | None = None) -> list[int]:
        asked = Fetch(1, 2 + len(answer), head(answer if text is None else text), count=3)
        frames = told(machine.receive(asked, 0.0), SideDraftFrame)
        return [len(each.probs.ids) for each in frames]

    assert fetched(()) == [3]
    assert fetched((0,)) == [3], "not decided yet"
    assert fetched((), text=(1,)) == []
    machine.receive(frame((0, 0), probs=LISTED, committed=2), 0.0)
    assert fetched(()) == [3]
    machine.receive(frame((0, 0), probs=LISTED, committed=3), 0.0)
    assert fetched(()) == []
    assert fetched((0,)) == [3]


def test_the_newest_of_the_other_side_s_drafts_counts() -> None:
    machine = device(sampling=GREEDY)
    for token in (1, 0):
        assert machine.receive(frame(token=token, probs=LISTED), 0.0) == []
    assert queued(machine) == (0, 1)
    outputs = machine.drafted(own(token=3, probs=ALL_OF_SURE), 0.0)
    assert (tokens(outputs), token_sources(outputs)) == ([0], [TokenSource.CLOUD])
    machine.receive(frame(probs=LISTED), 0.0)
    assert queued(machine) == (0, 0), "its position is committed"


@pytest.mark.parametrize(("token", "left"), [(0, 3), (3, 0)])
def test_of_the_other_side_s_drafts_those_of_the_committed_text_count(
    token: int, left: int
) -> None:
    machine = device("dragon placement=cloud")
    for length in range(4):
        machine.receive(frame((0,) * length), 0.0)
    decided(machine, token)
    assert queued(machine) == (0, left)


def test_a_draft_that_waits_for_its_text_counts_once_that_is_committed() -> None:
    machine = device("dragon placement=cloud")
    machine.receive(frame((1,)), 0.0)
    decided(machine, 0)
    assert queued(machine) == (0, 0)
    early = device("dragon placement=cloud")
    early.receive(frame((0,)), 0.0)
    assert queued(early) == (0, 0)
    decided(early, 0)
    assert queued(early) == (0, 1)


def test_tokens_are_told_with_where_they_begin_whose_they_are_and_why_they_end() -> None:
    machine = device(sampling=GREEDY, max_tokens=3)
    machine.drafted(own(token=0, probs=ALL_OF_SURE), 0.0)
    machine.drafted(own((0,), token=2, probs=ALL_OF_SURE), 0.0)
    machine.receive(frame((0,), token=0, probs=LISTED), 0.0)
    outputs = machine.receive(frame(token=3, probs=LISTED), 0.0)
    sources = (TokenSource.DEVICE, TokenSource.CLOUD)
    (target,) = told(outputs, TargetFrame)
    assert (target.base, target.prefix_hash, target.token_ids) == (2, head(()), (0, 0))
    assert target.token_sources == sources == tuple(token_sources(outputs))
    (for_decoder,) = told(outputs, DecodingTarget)
    assert (for_decoder.base, for_decoder.prefix_hash) == (2, head(()))
    assert (for_decoder.token_ids, for_decoder.last) == ((0, 0), False)
    assert machine.stats.accepted == {0: 1, 1: 1}
    assert machine.stats.drafted == {0: 2, 1: 2}
    machine.receive(frame((0, 0), probs=LISTED), 0.0)
    outputs = machine.drafted(own((0, 0), probs=ALL_OF_SURE), 0.0)
    assert outputs[-1] == Finish(FinishReason.LENGTH)
    (target,) = told(outputs, TargetFrame)
    assert (target.base, target.prefix_hash) == (4, head((0, 0)))
    assert [each.last for each in told(outputs, DecodingTarget)] == [True]


def test_drafts_up_to_the_end_of_the_answer_are_kept() -> None:
    shorter = cloud("dragon placement=cloud", max_tokens=2)
    shorter.receive(frame(), 0.0)
    shorter.receive(frame((0,)), 0.0)
    assert queued(shorter) == (0, 2)
    assert shorter.receive(frame((0, 0)), 0.0) == []
    assert queued(shorter) == (0, 2), "beyond it they are nobody's fault, and not kept"
    whole = device("dragon placement=cloud")
    assert whole.receive(frame((0,) * 3), 0.0) == []
    with pytest.raises(InvalidArgument, match="base: 6 lies beyond the answer"):
        device().receive(frame((0,) * 4), 0.0)


def test_ids_alone_may_come_as_far_ahead_as_the_answer_is_long() -> None:
    preset = replace(AGGREGATION_PRESETS["dragon-coupled"], ahead=1)
    machine = device("dragon-coupled", preset=preset)
    assert machine.receive(frame((0,) * 3, probs=None), 0.0) == []


def test_before_the_cloud_has_opened_its_frames_mean_nothing() -> None:
    """A coin needs both sides' h: a token of the cloud's would come from nowhere."""
    machine = SideMachine(Side.DEVICE, request_for("drdg-sw"), log_mass=0.0)
    machine.connect(0.0)
    assert machine.receive(frame(), 0.0) == []
    assert machine.receive(Fetch(1, 2, head(()), count=3), 0.0) == []
    with pytest.raises(ProtocolError, match="this side decides"):
        machine.receive(TargetFrame(1, 2, head(()), (0,)), 0.0)
    assert queued(machine) == (0, 0)
    assert machine.aggregation_side is None


def test_what_is_told_beyond_the_end_of_the_answer_is_not_committed() -> None:
    machine = device("dragon placement=cloud", max_tokens=3)
    sources = (TokenSource.CLOUD, TokenSource.BOTH, TokenSource.DEVICE, TokenSource.RECOVERED)
    target = TargetFrame(1, 2, head(()), (0, 1, 2, 3), token_sources=sources)
    outputs = machine.receive(target, 0.0)
    assert (tokens(outputs), token_sources(outputs)) == ([0, 1, 2], [*sources[:3]])
    assert outputs[-1] == Finish(FinishReason.LENGTH)
    (for_decoder,) = told(outputs, DecodingTarget)
    assert (for_decoder.token_ids, for_decoder.last) == ((0, 1, 2), True)


def test_a_side_that_answers_alone_keeps_none_of_the_other_s_drafts() -> None:
    for name, side in (("crcg-cloud", cloud), ("crcg-device", device)):
        machine = side(name)
        assert machine.receive(frame(probs=None), 0.0) == []
        assert queued(machine) == (0, 0)


def test_the_other_side_s_likely_token_counts_even_where_it_is_none_of_ours() -> None:
    """A list of one entry is enough: this side knows its own share of what the other names."""
    preset = replace(AGGREGATION_PRESETS["dragon-device"], top=1)
    machine = device(preset=preset, sampling=GREEDY)
    mine = np.array([0.4, 0.35, 0.125, 0.125], dtype=np.float32)
    machine.drafted(own(probs=mine), 0.0)
    theirs = TopList(
        np.array([1]), np.array([0.6], dtype=np.float32), np.float32(0.4), np.float32(0.4)
    )
    outputs = machine.receive(frame(token=1, probs=theirs), 0.0)
    assert tokens(outputs) == [1]


def test_a_draft_stays_until_this_side_has_committed_its_position() -> None:
    """The other side may be ahead: with lists that it has, this side decides the same token."""
    machine = cloud("dragon-coupled", sampling=GREEDY)
    machine.drafted(own(probs=PROBS), 0.0)
    machine.receive(frame((0,), probs=LISTED, committed=3), 0.0)
    assert queued(machine)[0] == 1
    assert tokens(machine.receive(frame(probs=LISTED, committed=3), 0.0))[:1] == [0]
