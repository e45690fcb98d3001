"""What one side's machine refuses, drops and answers, frame by frame."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tandem.core.errors import InvalidArgument, ProtocolError
from tandem.core.probs import SamplingParams
from tandem.core.stopping import FinishReason
from tandem.core.tokens import EMPTY_PREFIX, PrefixMismatch, TokenSource, extend_prefix
from tandem.specdec.events import Commit, Finish
from tandem.specdec.messages import Cancel, Ping, Pong
from tandem.two_sided.protocol.draft_head import DraftHead
from tandem.two_sided.protocol.messages import (
    AggregationRequest,
    CollaborationOpened,
    DecodingTarget,
    Fetch,
    SideDraftFrame,
    SideOutput,
    TargetFrame,
    ToDecoder,
    ToPeer,
)
from tandem.two_sided.protocol.mixture import Side
from tandem.two_sided.protocol.presets import AGGREGATION_PRESETS, Placement
from tandem.two_sided.protocol.side_machine import SideMachine
from tandem.two_sided.protocol.top_list import TopList
from tests.composed_presets import composed

V = 4
DEVICE = Placement.DEVICE
PROMPT = (1, 2)
PROBS = np.array([0.7, 0.1, 0.1, 0.1], dtype=np.float32)
SURE = DraftHead(np.array([0]), np.array([1.0]))
ALL_OF_SURE = np.array([1, 0, 0, 0], dtype=np.float32)
"""As a side's own decoder has it at temperature 0."""


def request_for(name: str, **changes: Any) -> AggregationRequest:
    return replace(
        AggregationRequest(
            session=1,
            prompt_ids=PROMPT,
            vocabulary_hash="h",
            vocabulary_size=V,
            sampling=SamplingParams(),
            seed=3,
            max_tokens=4,
            preset=composed(name),
        ),
        **changes,
    )


def queued(machine: SideMachine) -> tuple[int, int]:
    """Numbers of drafts that follow the committed text: this side's, the other side's."""
    return len(list(machine._own)), len(list(machine._peers))


def device(name: str = "dragon-device", **changes: Any) -> SideMachine:
    """A device whose cloud has opened."""
    machine = SideMachine(Side.DEVICE, request_for(name, **changes), log_mass=0.0)
    machine.connect(0.0)
    machine.receive(CollaborationOpened(1, 2, head(()), log_mass=0.0, max_tokens=4), 0.0)
    return machine


def cloud(name: str = "dragon-device", **changes: Any) -> SideMachine:
    machine = SideMachine(Side.CLOUD, request_for(name, **changes), peer_log_mass=0.0)
    machine.opened(0.0, 0.0)
    return machine


def head(answer: tuple[int, ...]) -> int:
    """Hash of prompt and answer."""
    return extend_prefix(EMPTY_PREFIX, (*PROMPT, *answer))


def frame(answer: tuple[int, ...] = (), token: int = 0, **changes: Any) -> SideDraftFrame:
    """The other side's draft after an answer so far."""
    found = SideDraftFrame(
        1, 2 + len(answer), head(answer), token_id=token, probs=SURE, log_mass=0.0, committed=2
    )
    return replace(found, **changes)


def own(answer: tuple[int, ...] = (), token: int = 0, **changes: Any) -> SideDraftFrame:
    found = SideDraftFrame(
        1, 2 + len(answer), head(answer), token_id=token, probs=SURE, log_mass=0.0, committed=2
    )
    return replace(found, **changes)


def tokens(outputs: list[SideOutput]) -> list[int]:
    return [token for each in outputs if isinstance(each, Commit) for token in each.token_ids]


def token_sources(outputs: list[SideOutput]) -> list[TokenSource]:
    return [
        token_source
        for each in outputs
        if isinstance(each, Commit)
        for token_source in each.token_sources
    ]


def told(outputs: list[SideOutput], kind: type) -> list[Any]:
    return [
        each.message
        for each in outputs
        if isinstance(each, ToPeer | ToDecoder) and isinstance(each.message, kind)
    ]


@pytest.mark.parametrize(
    ("device_token", "cloud_token", "token", "token_source"),
    [
        (0, 0, 0, TokenSource.BOTH),
        (0, 1, 0, TokenSource.DEVICE),
        (1, 0, 0, TokenSource.CLOUD),
        (1, 2, 0, TokenSource.RECOVERED),
    ],
)
def test_a_token_says_whose_draft_it_was(
    device_token: int, cloud_token: int, token: int, token_source: TokenSource
) -> None:
    greedy = SamplingParams(temperature=0.0)  # then the token is the mixture's argmax, 0
    listed = TopList(np.array([token]), np.array([1.0], dtype=np.float32), 0.0, 0.0)
    for name in ("dragon-device", "dragon-coupled"):
        machine = device(name, sampling=greedy)
        machine.drafted(own(token=device_token, probs=ALL_OF_SURE), 0.0)
        outputs = machine.receive(frame(token=cloud_token, probs=listed), 0.0)
        assert (tokens(outputs), token_sources(outputs)) == ([token], [token_source])
        for target in told(outputs, TargetFrame):
            assert target.token_sources == (token_source,)


def test_a_told_token_says_what_the_other_side_says_of_it() -> None:
    machine = device("dragon placement=cloud")
    target = TargetFrame(
        1, 2, head(()), (0, 1), token_sources=(TokenSource.BOTH, TokenSource.RECOVERED)
    )
    assert token_sources(machine.receive(target, 0.0)) == [TokenSource.BOTH, TokenSource.RECOVERED]
    assert token_sources(machine.receive(TargetFrame(1, 4, head((0, 1)), (2,)), 0.0)) == []


def test_drafts_of_another_text_do_not_count() -> None:
    machine = device()
    machine.drafted(own(), 0.0)
    stale = frame(prefix_hash=5, committed=0)
    assert machine.receive(stale, 0.0) == []
    assert tokens(machine.receive(frame(), 0.0)) == [0]
    assert machine.receive(frame(), 0.0) == [], "its position is decided"


def test_an_aggregator_tells_and_does_not_send_its_drafts() -> None:
    assert told(device().drafted(own(), 0.0), SideDraftFrame) == []
    assert len(told(cloud().drafted(own(), 0.0), SideDraftFrame)) == 1
    assert len(told(device("dragon placement=cloud").drafted(own(), 0.0), SideDraftFrame)) == 1


def test_a_draft_is_sent_once_per_stream() -> None:
    machine = device("dragon placement=cloud")
    assert len(told(machine.drafted(own(), 0.0), SideDraftFrame)) == 1
    assert told(machine.drafted(own((0,)), 0.0), SideDraftFrame)[0].base == 3
    machine.lost(1.0)
    again = told(machine.connect(1.0), SideDraftFrame)
    assert [each.base for each in again] == [2, 3]


BROKEN: dict[str, tuple[Callable[[], SideMachine], Any, type[Exception], str]] = {
    "foreign session": (device, frame(session=9), ProtocolError, "session"),
    "target at the aggregator": (
        device,
        TargetFrame(1, 2, head(()), (0,)),
        ProtocolError,
        "TargetFrame",
    ),
    "target without one": (
        lambda: device("dragon-coupled"),
        TargetFrame(1, 2, head(()), (0,)),
        ProtocolError,
        "TargetFrame",
    ),
    "gap": (cloud, TargetFrame(1, 3, head((0,)), (0,)), InvalidArgument, "base"),
    "other text": (cloud, TargetFrame(1, 2, 7, (0,)), PrefixMismatch, "position 2"),
    "committed other text": (device, frame(prefix_hash=7), PrefixMismatch, "position 2"),
    "ping of another text": (cloud, Ping(1, 2, 7, nonce=1), PrefixMismatch, "position 2"),
    "no distribution": (device, frame(probs=None), InvalidArgument, "probs"),
    "a whole distribution": (device, frame(probs=PROBS), InvalidArgument, "probs"),
    "a cut distribution's head": (
        lambda: device("dragon-device payload=sparse top_k=64"),
        frame(),
        InvalidArgument,
        "probs",
    ),
    "distribution by coin": (lambda: device("dragon-coupled"), frame(), InvalidArgument, "probs"),
    "beyond the answer": (device, frame(base=6, committed=0), InvalidArgument, "base"),
    "opened twice": (
        device,
        CollaborationOpened(1, 2, head(()), log_mass=0.0, max_tokens=4),
        ProtocolError,
        "Opened",
    ),
    "cancelled by the cloud": (device, Cancel(1, 2, head(())), ProtocolError, "Cancel"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_what_breaks_the_conversation_is_refused_and_changes_nothing(case: str) -> None:
    make, message, error, words = BROKEN[case]
    machine = make()
    with pytest.raises(error, match=words):
        machine.receive(message, 0.0)
    assert machine.committed.since(2) == ()
    assert queued(machine) == (0, 0)


def test_a_connection_needs_the_decoder_s_word_and_happens_once() -> None:
    machine = SideMachine(Side.DEVICE, request_for("dragon"))
    with pytest.raises(ProtocolError, match="not opened"):
        machine.connect(0.0)
    machine.opened(0.0, 0.0)
    machine.connect(0.0)
    with pytest.raises(ProtocolError):
        machine.connect(0.0)


def test_a_done_cloud_still_answers_what_the_device_needs() -> None:
    machine = cloud("dragon-coupled", sampling=SamplingParams(0.0), max_tokens=1)
    machine.drafted(own(probs=PROBS), 0.0)
    listed = TopList(np.array([0]), np.array([1.0], dtype=np.float32), 0.0, 0.0)
    outputs = machine.receive(frame(probs=listed), 0.0)
    assert isinstance(outputs[-1], Finish)
    fetched = told(machine.receive(Fetch(1, 2, head(()), count=4), 0.0), SideDraftFrame)
    assert [len(each.probs.ids) for each in fetched] == [4]
    assert len(told(machine.receive(Ping(1, 2, head(()), nonce=1), 0.0), Pong)) == 1


def test_a_restarted_decoder_s_drafts_are_sent_once() -> None:
    machine = device("dragon placement=cloud")
    machine.drafted(own(), 0.0)
    machine.decoder_restarted()
    sent = told(machine.drafted(own(), 0.0), SideDraftFrame)
    assert sent == [], "the same draft of the same text was sent"
    outputs = machine.receive(TargetFrame(1, 2, head(()), (3,)), 0.0)
    assert told(outputs, DecodingTarget)[0].token_ids == (3,)
    assert len(told(machine.drafted(own((3,)), 0.0), SideDraftFrame)) == 1


def test_a_decoder_that_begins_again_answers_what_was_asked_of_the_one_before() -> None:
    """The device asks once, and would wait for ever: pings are answered all the while."""
    machine = cloud("dragon-coupled", sampling=SamplingParams(0.0))
    machine.drafted(own(probs=PROBS), 0.0)
    machine.decoder_restarted()
    assert machine.receive(Fetch(1, 2, head(()), count=4), 0.0) == []
    (answer,) = told(machine.drafted(own(probs=PROBS), 0.0), SideDraftFrame)
    assert (answer.base, len(answer.probs.ids)) == (2, 4)
    assert told(machine.drafted(own((0,), probs=PROBS), 0.0), SideDraftFrame)[0].base == 3
    assert machine.drafted(own((0,), probs=PROBS), 0.0) == [], "once"


def test_a_side_keeps_no_more_distributions_than_may_be_drafted_ahead() -> None:
    preset = composed("dragon placement=cloud ahead=2")
    machine = cloud(preset=preset, max_tokens=90)
    assert machine.receive(frame((0,) * 4), 0.0) == []
    with pytest.raises(InvalidArgument, match="base: 7 is more than 4"):
        machine.receive(frame((0,) * 5), 0.0)


def test_drafts_that_the_other_side_decided_are_not_kept() -> None:
    """It never sends drafts of its own that say how far it has come."""
    machine = cloud("dragon-device", sampling=SamplingParams(0.0))
    machine.drafted(own(probs=PROBS), 0.0)
    fetch = Fetch(1, 2, head(()), count=4)
    assert told(machine.receive(fetch, 0.0), SideDraftFrame)
    machine.receive(TargetFrame(1, 2, head(()), token_ids=(0,)), 0.0)
    assert not told(machine.receive(fetch, 0.0), SideDraftFrame)


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
