"""What one side's machine refuses, drops and answers, frame by frame and as time passes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tandem.core.errors import InvalidArgument, ProtocolError
from tandem.core.probs import SamplingParams
from tandem.core.processors import Processors
from tandem.core.randomness import SeededRandom
from tandem.core.stopping import FinishReason
from tandem.core.tokens import (
    EMPTY_PREFIX,
    PrefixedTokens,
    PrefixMismatch,
    TokenSource,
    extend_prefix,
)
from tandem.specdec.events import Commit, Finish, Reconnect
from tandem.specdec.liveness import Liveness, LivenessTimes, LostCloud, Phase
from tandem.specdec.messages import Cancel, GoingAway, Ping, Pong
from tandem.two_sided.protocol.draft_head import DraftHead
from tandem.two_sided.protocol.messages import (
    AggregationRequest,
    CollaborationOpen,
    CollaborationOpened,
    ContextDocument,
    DecodingOpen,
    DecodingTarget,
    Fetch,
    SideDraftFrame,
    TargetFrame,
    ToDecoder,
    ToPeer,
)
from tandem.two_sided.protocol.mixture import Side, coupled_side, side_weights
from tandem.two_sided.protocol.presets import (
    AGGREGATION_PRESETS,
    LocalProbs,
    Placement,
    ProbsPayload,
)
from tandem.two_sided.protocol.side_machine import SideMachine
from tandem.two_sided.protocol.top_list import TopList, top_list
from tests.composed_presets import composed
from tests.unit.two_sided.side_frames import (
    ALL_OF_SURE,
    PROBS,
    cloud,
    device,
    frame,
    head,
    queued,
    request_for,
    token_sources,
    tokens,
    told,
)


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
        machine.drafted(frame(token=device_token, probs=ALL_OF_SURE), 0.0)
        outputs = machine.receive(frame(token=cloud_token, probs=listed), 0.0)
        assert (tokens(outputs), token_sources(outputs)) == ([token], [token_source])
        for target in told(outputs, TargetFrame):
            assert target.token_sources == (token_source,)


def test_a_draft_is_sent_once_per_stream() -> None:
    machine = device("dragon placement=cloud")
    assert len(told(machine.drafted(frame(), 0.0), SideDraftFrame)) == 1
    assert told(machine.drafted(frame((0,)), 0.0), SideDraftFrame)[0].base == 3
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
    machine.drafted(frame(probs=PROBS), 0.0)
    listed = TopList(np.array([0]), np.array([1.0], dtype=np.float32), 0.0, 0.0)
    outputs = machine.receive(frame(probs=listed), 0.0)
    assert isinstance(outputs[-1], Finish)
    fetched = told(machine.receive(Fetch(1, 2, head(()), count=4), 0.0), SideDraftFrame)
    assert [len(each.probs.ids) for each in fetched] == [4]
    assert len(told(machine.receive(Ping(1, 2, head(()), nonce=1), 0.0), Pong)) == 1


def test_a_restarted_decoder_s_drafts_are_sent_once() -> None:
    machine = device("dragon placement=cloud")
    machine.drafted(frame(), 0.0)
    machine.decoder_restarted()
    sent = told(machine.drafted(frame(), 0.0), SideDraftFrame)
    assert sent == [], "the same draft of the same text was sent"
    outputs = machine.receive(TargetFrame(1, 2, head(()), (3,)), 0.0)
    assert told(outputs, DecodingTarget)[0].token_ids == (3,)
    assert len(told(machine.drafted(frame((3,)), 0.0), SideDraftFrame)) == 1


def test_a_decoder_that_begins_again_answers_what_was_asked_of_the_one_before() -> None:
    """The device asks once, and would wait for ever: pings are answered all the while."""
    machine = cloud("dragon-coupled", sampling=SamplingParams(0.0))
    machine.drafted(frame(probs=PROBS), 0.0)
    machine.decoder_restarted()
    assert machine.receive(Fetch(1, 2, head(()), count=4), 0.0) == []
    (answer,) = told(machine.drafted(frame(probs=PROBS), 0.0), SideDraftFrame)
    assert (answer.base, len(answer.probs.ids)) == (2, 4)
    assert told(machine.drafted(frame((0,), probs=PROBS), 0.0), SideDraftFrame)[0].base == 3
    assert machine.drafted(frame((0,), probs=PROBS), 0.0) == [], "once"


def test_a_side_keeps_no_more_distributions_than_may_be_drafted_ahead() -> None:
    preset = composed("dragon placement=cloud ahead=2")
    machine = cloud(preset=preset, max_tokens=90)
    assert machine.receive(frame((0,) * 4), 0.0) == []
    with pytest.raises(InvalidArgument, match="base: 7 is more than 4"):
        machine.receive(frame((0,) * 5), 0.0)


def test_drafts_that_the_other_side_decided_are_not_kept() -> None:
    """It never sends drafts of its own that say how far it has come."""
    machine = cloud("dragon-device", sampling=SamplingParams(0.0))
    machine.drafted(frame(probs=PROBS), 0.0)
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
        machine.drafted(frame(answer, committed=1), 0.0)
        assert queued(machine) == (waiting, 0), answer


@pytest.mark.parametrize(("token", "left"), [(0, 1), (3, 0)])
def test_a_token_takes_the_first_draft_and_where_it_differs_all(token: int, left: int) -> None:
    machine = device("dragon placement=cloud")
    decided(machine, 2)
    assert queued(machine) == (0, 0)
    for answer in ((2,), (2, 0)):
        machine.drafted(frame(answer, base=2 + len(answer)), 0.0)
    decided(machine, token)
    assert queued(machine) == (left, 0)
    assert machine.stats.drafted == {0: 1, 1: 0}
    assert machine.stats.accepted == {0: int(token == 0), 1: 0}


def test_a_decided_draft_is_fetched_until_the_other_side_is_past_it() -> None:
    machine = cloud("dragon-coupled", sampling=GREEDY)
    for answer in ((), (0,)):
        machine.drafted(frame(answer, probs=PROBS), 0.0)
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
    outputs = machine.drafted(frame(token=3, probs=ALL_OF_SURE), 0.0)
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
    machine.drafted(frame(token=0, probs=ALL_OF_SURE), 0.0)
    machine.drafted(frame((0,), token=2, probs=ALL_OF_SURE), 0.0)
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
    outputs = machine.drafted(frame((0, 0), probs=ALL_OF_SURE), 0.0)
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


def test_nothing_follows_the_token_that_ends_the_text() -> None:
    """Though both sides' drafts of what would are there."""
    machine = device(sampling=GREEDY, eos_token_ids=frozenset({0}))
    for answer in ((), (0,)):
        machine.drafted(frame(answer, probs=ALL_OF_SURE), 0.0)
    machine.receive(frame((0,), probs=LISTED), 0.0)
    outputs = machine.receive(frame(probs=LISTED), 0.0)
    assert tokens(outputs) == [0]
    assert outputs[-1] == Finish(FinishReason.STOP)


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
    machine.drafted(frame(probs=mine), 0.0)
    theirs = TopList(
        np.array([1]), np.array([0.6], dtype=np.float32), np.float32(0.4), np.float32(0.4)
    )
    outputs = machine.receive(frame(token=1, probs=theirs), 0.0)
    assert tokens(outputs) == [1]


def test_a_draft_stays_until_this_side_has_committed_its_position() -> None:
    """The other side may be ahead: with lists that it has, this side decides the same token."""
    machine = cloud("dragon-coupled", sampling=GREEDY)
    machine.drafted(frame(probs=PROBS), 0.0)
    machine.receive(frame((0,), probs=LISTED, committed=3), 0.0)
    assert queued(machine)[0] == 1
    assert tokens(machine.receive(frame(probs=LISTED, committed=3), 0.0))[:1] == [0]


DRAGON = AGGREGATION_PRESETS["dragon"]
SAMPLING = SamplingParams(temperature=0.5, top_k=3)
BANNED = Processors(banned_token_ids=(9,))
REQUEST = AggregationRequest(
    session=7,
    prompt_ids=(1, 2, 3),
    vocabulary_hash="hash",
    vocabulary_size=50,
    sampling=SAMPLING,
    seed=11,
    max_tokens=20,
    preset=replace(DRAGON, placement=Placement.CLOUD, ahead=5, reweigh_every=6),
    committed_ids=(4, 5),
    eos_token_ids=frozenset({0}),
    query="which?",
    documents=3,
    processors=BANNED,
)
TEXTS = (ContextDocument("one", 0.5), ContextDocument("two", -0.5, imported=True))


def test_a_session_at_a_decoder_opens_with_all_that_the_request_says() -> None:
    found = REQUEST.decoding_opening(Side.CLOUD, prompt="a question", documents=TEXTS)
    assert found == DecodingOpen(
        session=7,
        base=0,
        prefix_hash=0,
        prompt="a question",
        committed_ids=(4, 5),
        documents=TEXTS,
        sampling=SAMPLING,
        seed=11,
        side=Side.CLOUD,
        probs=LocalProbs(payload=ProbsPayload.HEAD, head=64),
        ahead=5,
        max_tokens=20,
        preset="dragon",
        reweigh_every=6,
        processors=BANNED,
        joined=False,
    )


@pytest.mark.parametrize("name", AGGREGATION_PRESETS)
def test_documents_are_joined_where_one_side_decodes_alone(name: str) -> None:
    request = replace(REQUEST, preset=AGGREGATION_PRESETS[name])
    found = request.decoding_opening(Side.DEVICE, prompt="a question", documents=TEXTS)
    assert found.joined is (name in {"crcg-device", "crcg-cloud", "drcg-text", "drcg-kv"})
    assert found.preset == name


def test_a_stream_to_the_cloud_opens_at_the_committed_text() -> None:
    committed = PrefixedTokens((1, 2, 3, 8, 9))
    found = REQUEST.opening(committed, 0.25)
    assert found == CollaborationOpen(
        session=7,
        base=5,
        prefix_hash=extend_prefix(EMPTY_PREFIX, (1, 2, 3, 8, 9)),
        request=replace(REQUEST, committed_ids=(8, 9)),
        log_mass=0.25,
    )
    assert found.answer_header == {
        "session": 7,
        "base": 5,
        "prefix_hash": extend_prefix(EMPTY_PREFIX, (1, 2, 3, 8, 9)),
    }


def test_a_side_s_draft_goes_to_the_other_side_with_what_is_known_of_it() -> None:
    machine = device("dragon placement=cloud")
    machine.receive(Ping(1, 2, head(()), nonce=1), 1.0)
    known = DraftHead(np.array([0]), np.array([1.0]))
    drafted = frame(token=3, probs=known, log_mass=0.5, decode_s=0.25)
    (sent,) = told(machine.drafted(drafted, 3.5), SideDraftFrame)
    assert sent == SideDraftFrame(
        session=1,
        base=2,
        prefix_hash=head(()),
        token_id=3,
        probs=known,
        log_mass=0.5,
        committed=2,
        decode_s=0.25,
        held_s=2.5,
        heard=2,
    )


def test_the_cloud_opens_with_its_weight_and_its_limit() -> None:
    machine = SideMachine(Side.CLOUD, request_for("dragon-device"), peer_log_mass=0.0)
    assert machine.opened(1.5, 0.0) == [
        ToPeer(
            CollaborationOpened(
                session=1,
                base=2,
                prefix_hash=head(()),
                log_mass=1.5,
                max_tokens=4,
            )
        )
    ]


def test_a_decided_token_goes_to_the_other_side_and_to_the_decoder() -> None:
    machine = device()
    machine.drafted(frame(), 0.0)
    outputs = machine.receive(frame(), 0.0)
    assert outputs[0] == ToPeer(
        TargetFrame(
            session=1,
            base=2,
            prefix_hash=head(()),
            token_ids=(0,),
            hands_over=False,
            token_sources=(TokenSource.BOTH,),
        )
    )
    assert outputs[1] == ToDecoder(
        DecodingTarget(session=1, base=2, prefix_hash=head(()), token_ids=(0,), last=False)
    )


def test_the_device_keeps_what_the_cloud_said_of_itself() -> None:
    machine = SideMachine(Side.DEVICE, request_for("dragon-device"), log_mass=0.0)
    assert machine.peer_opened is None
    machine.connect(0.0)
    said = CollaborationOpened(1, 2, head(()), log_mass=0.0, max_tokens=4, documents=2)
    machine.receive(said, 0.0)
    assert machine.peer_opened is said


def test_a_whole_answer_that_is_decided_at_once_is_one_side_s_too() -> None:
    """Its drafts were there before the decoder said what its documents weigh."""
    request = request_for("drdg-sw", max_tokens=2)
    machine = SideMachine(Side.CLOUD, request, peer_log_mass=-90.0)
    for answer in ((), (0,)):
        assert machine.drafted(frame(answer), 0.0) == []
    (target,) = told(machine.opened(0.0, 0.0), TargetFrame)
    assert target.token_ids == (0, 0)
    assert target.token_sources == (TokenSource.CLOUD,) * 2


def test_both_ends_may_be_given_another_generator_than_the_seed_s() -> None:
    """A coin of that generator says whose draft is the token."""
    weights = side_weights(0.0, 0.0)
    for seed in range(8):
        rng = SeededRandom(seed)
        machine = SideMachine(Side.CLOUD, request_for("dragon-coupled"), peer_log_mass=0.0, rng=rng)
        machine.opened(0.0, 0.0)
        decided = machine.drafted(frame(probs=None), 0.0) != []
        assert decided is (coupled_side(weights, rng, 2) is Side.CLOUD), seed


TIMES = LivenessTimes(ping_after_s=1.0, dead_after_s=3.0, give_up_after_s=10.0)


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


def test_given_up_a_device_goes_on_with_its_own_drafts() -> None:
    machine = watched(LostCloud.EDGE)
    machine.drafted(frame(token=3), 0.0)
    outputs = [output for _, output in ticked(machine, 11.0)]
    (commit,) = [output for output in outputs if isinstance(output, Commit)]
    assert commit == Commit((3,), unverified=True)
    assert commit.token_sources == (TokenSource.EDGE,)
    assert machine.phase is Phase.ALONE
    assert machine.stats.unverified_tokens == 1
    more = machine.drafted(frame((3,), token=2), 11.0)
    assert tokens(more) == [2]
    assert told(more, SideDraftFrame) == []


@pytest.mark.parametrize("policy", list(LostCloud))
def test_a_waiting_device_goes_on_where_it_was(policy: LostCloud) -> None:
    machine = watched(policy)
    machine.drafted(frame(), 0.0)
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
        machine.drafted(frame((0,) * length), 1.0)
        machine.receive(frame((0,) * length, committed=3), 1.0)
    assert machine.finish_reason is FinishReason.LENGTH, "never more than was asked for"


def test_a_cloud_with_less_room_shortens_the_answer() -> None:
    machine = SideMachine(Side.DEVICE, request_for("dragon-device"), log_mass=0.0)
    machine.connect(0.0)
    machine.receive(CollaborationOpened(1, 2, head(()), log_mass=0.0, max_tokens=1), 0.0)
    machine.drafted(frame(), 0.0)
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
    stopped.drafted(frame(), 0.0)
    assert stopped.stop()[-1] == Finish(FinishReason.STOP)
    assert queued(stopped) == (0, 0)
    assert stopped.drafted(frame(), 0.0) == []
    assert stopped.receive(frame(), 0.0) == []
    ended = cloud().receive(Cancel(1, 2, head(())), 0.0)
    assert ended == [Finish(FinishReason.CANCELLED)]


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
    machine.drafted(frame(), 0.0)
    machine.drafted(frame((0,)), 0.0)
    outputs = machine.receive(frame(), 0.0)
    (target,) = told(outputs, TargetFrame)
    assert (target.token_ids, target.hands_over) == ((0,), True)
    assert [sent.base for sent in told(outputs, SideDraftFrame)] == [3]
    moved = [machine.aggregation_side]
    assert machine.stats.side_moves == 1
    back = TargetFrame(1, 3, head((0,)), (0,), hands_over=True)
    machine.receive(back, 0.0)
    assert [*moved, machine.aggregation_side] == [Side.CLOUD, Side.DEVICE]
    machine.drafted(frame((0, 0)), 0.0)
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
    last.drafted(frame(), 0.0)
    (target,) = told(last.receive(frame(), 0.0), TargetFrame)
    assert not target.hands_over
    assert last.stats.side_moves == 0


def test_a_list_too_short_is_asked_for_once_and_what_was_due_is_sent_before() -> None:
    preset = replace(AGGREGATION_PRESETS["dragon-coupled"], top=1)
    machine = device("dragon-coupled", preset=preset, sampling=GREEDY)
    flat = np.full(4, 0.25, dtype=np.float32)
    near = np.array([0.2, 0.25, 0.25, 0.3], dtype=np.float32)
    assert len(told(machine.drafted(frame(probs=near), 0.0), SideDraftFrame)) == 1
    short = top_list(flat, 1)
    outputs = machine.receive(frame(probs=short), 0.0)
    assert told(outputs, Fetch) == [Fetch(1, 2, head(()), count=8)]
    assert tokens(outputs) == []
    assert machine.stats.fetches == 1
    assert told(machine.receive(frame(probs=short), 0.0), Fetch) == [], "once"
    outputs = machine.receive(frame(probs=top_list(flat, 4)), 0.0)
    assert tokens(outputs) == [3]
    machine.receive(frame((3,), probs=short), 0.0)
    outputs = machine.drafted(frame((3,), probs=near), 0.0)
    assert len(told(outputs, SideDraftFrame)) == len(told(outputs, Fetch)) == 1


def test_more_is_told_of_a_draft_that_still_stands() -> None:
    machine = cloud("dragon-coupled", sampling=GREEDY)
    (sent,) = told(machine.drafted(frame(probs=PROBS), 0.0), SideDraftFrame)
    assert isinstance(sent.probs, TopList)
    asked = Fetch(1, 2, head(()), count=2)
    (more,) = told(machine.receive(asked, 0.0), SideDraftFrame)
    assert len(more.probs.ids) == 2
    assert told(machine.receive(replace(asked, count=9), 0.0), SideDraftFrame)[0].base == 2
    assert told(machine.receive(replace(asked, prefix_hash=7), 0.0), SideDraftFrame) == []
    nothing = cloud("dragon-coupled")
    nothing.drafted(frame(probs=None), 0.0)
    with pytest.raises(InvalidArgument, match="fetch"):
        nothing.receive(asked, 0.0)


def test_one_coin_for_the_answer_sends_it_whole() -> None:
    request = request_for("drdg-sw", committed_ids=(3,))
    machine = SideMachine(Side.CLOUD, request, peer_log_mass=-90.0)
    machine.opened(0.0, 0.0)
    answer: tuple[int, ...] = (3,)
    for token in (2, 1):
        outputs = machine.drafted(frame(answer, token=token), 0.0)
        assert tokens(outputs) == [token]
        assert told(outputs, TargetFrame) == told(outputs, SideDraftFrame) == []
        answer = (*answer, token)
    (target,) = told(machine.drafted(frame(answer, token=0), 0.0), TargetFrame)
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


def test_a_cloud_is_told_of_no_end_that_is_to_be_ignored() -> None:
    request = request_for("dragon", eos_token_ids=frozenset({9}), ignore_eos=True)
    machine = SideMachine(Side.DEVICE, request, log_mass=0.5)
    (opening,) = told(machine.connect(0.0), CollaborationOpen)
    assert opening.request.eos_token_ids == frozenset()
    assert not opening.request.ignore_eos
