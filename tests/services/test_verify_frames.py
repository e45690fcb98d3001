"""Wrong frames over real gRPC, each with its exact status, and frames mutated at random: nobody
else on the server notices."""

from __future__ import annotations

import random
from collections.abc import Sequence

import numpy as np
import pytest
from google.protobuf.message import DecodeError

from tandem.backends.interface import ForwardRequest
from tandem_api.verifier.v1 import verifier_pb2 as pb
from tests.faults_of_frames import DRAFTS, OPENINGS, RECOVERED, STATES, VOID, Fault, Size
from tests.services.scripted_suite import CONTEXT, VOCABULARY, scripted_suite, target_engine
from tests.services.verifier_peer import (
    PROMPT,
    Ending,
    control,
    draft,
    edge_peer,
    endings_of,
    honest_draft,
    opening,
    own_text,
    raw_ending,
    unharmed,
)

SIZE = Size(VOCABULARY, CONTEXT)
STATES_OF_PROMPT = np.array(PROMPT, dtype="<f4").tobytes()


def check_refused(faults: Sequence[Fault], endings: Sequence[Ending]) -> None:
    for fault, ending in zip(faults, endings, strict=True):
        assert ending.code == fault.status, fault
        assert ending.details.startswith(fault.details), fault


async def test_wrong_openings_are_refused_by_name() -> None:
    endings = await endings_of([(each.wrong(opening(each.preset), SIZE),) for each in OPENINGS])
    check_refused(OPENINGS, endings)
    assert not any(ending.answers for ending in endings)


async def test_wrong_drafts_are_refused_by_name() -> None:
    streams = [
        (opening(each.preset), each.wrong(honest_draft(each.preset), SIZE)) for each in DRAFTS
    ]
    check_refused(DRAFTS, await endings_of(streams))


async def test_wrong_states_are_refused_by_name() -> None:
    honest = control("hidden_states", after=(), states=STATES_OF_PROMPT)
    streams = [(opening(each.preset), each.wrong(honest, SIZE)) for each in STATES]
    check_refused(STATES, await endings_of(streams))


async def test_wrong_tokens_of_the_edge_are_refused_by_name() -> None:
    """The verifier has refused a draft, and waits for the token that the edge draws."""
    engine = target_engine()
    (logits,) = engine.forward([ForwardRequest(engine.open(8), PROMPT, 1)])
    unlikely = draft((int(logits[0].argmin()),), probabilities=[1.0])
    endings = []
    async with scripted_suite() as suite, unharmed(suite):
        for fault in RECOVERED:
            async with edge_peer(suite.verifier.target) as peer:
                await peer.send(opening(), unlikely)
                assert (await peer.answer("committed")).committed.HasField("sparse")
                await peer.send(fault.wrong(control("recovered", token_id=1), SIZE))
                endings.append(await peer.ending())
    check_refused(RECOVERED, endings)


async def test_a_second_opening_ends_the_stream() -> None:
    (ending,) = await endings_of([(opening(), opening())])
    assert (ending.code, ending.details.split(":")[0]) == ("INVALID_ARGUMENT", "open")


async def test_drafts_that_follow_another_text_are_dropped() -> None:
    late = []
    for change in VOID.values():
        late.append(honest_draft("dssd"))
        change(late[-1], SIZE)
    (ending,) = await endings_of([(opening(), *late, control("ping"), control("cancel"))])
    assert ending.code == "OK"
    assert set(ending.kinds()) == {"opened", "pong"}


async def test_a_stream_without_frames_is_refused() -> None:
    async with scripted_suite() as suite, unharmed(suite):
        ending = await raw_ending(suite.verifier.target)
    assert (ending.code, ending.details) == ("INVALID_ARGUMENT", "open: the stream ended before it")


async def test_late_and_repeated_drafts_are_dropped() -> None:
    """After a refusal those that follow the refused one mean nothing; after an acceptance a second
    copy of the round says nothing new."""
    own = own_text(PROMPT, 3, 8)
    async with (
        scripted_suite() as suite,
        unharmed(suite),
        edge_peer(suite.verifier.target) as peer,
    ):
        refused = draft(((own[0] + 1) % VOCABULARY, 1))
        await peer.send(opening("coupled"), refused)
        committed = (await peer.answer("committed")).committed
        assert (committed.accepted, [*committed.token_ids]) == (0, own[:1])
        # A replay, and what had left before the verdict came: both are void, neither is an error.
        late = draft((2, 3), after=(*PROMPT, (own[0] + 1) % VOCABULARY, 1))
        await peer.send(refused, late, control("ping", nonce=77))
        assert (await peer.answer("pong")).pong.nonce == 77
        accepted = draft(own[1:4], after=(*PROMPT, own[0]))
        await peer.send(accepted)
        committed = (await peer.answer("committed")).committed
        assert (committed.accepted, [*committed.token_ids]) == (3, own[4:5])
        await peer.send(accepted, control("cancel"))
        ending = await peer.ending()
    assert ending.code == "OK"
    assert ending.kinds().count("committed") == 2


async def test_a_20_mb_frame_is_resource_exhausted() -> None:
    large = draft((1,), distributions=b"\0" * 20 * 2**20)
    async with scripted_suite() as suite, unharmed(suite):
        raw = (opening("dsd").SerializeToString(), large.SerializeToString())
        ending = await raw_ending(suite.verifier.target, *raw)
    assert ending.code == "RESOURCE_EXHAUSTED"


@pytest.mark.parametrize("before", [(), (opening().SerializeToString(),)], ids=["first", "later"])
async def test_bytes_that_are_no_message_are_refused(before: tuple[bytes, ...]) -> None:
    async with scripted_suite() as suite, unharmed(suite):
        ending = await raw_ending(suite.verifier.target, *before, b"\xff" * 40)
    assert ending.code == "INVALID_ARGUMENT"
    assert ending.details.startswith("message: ")


async def test_an_edge_may_leave_at_any_moment() -> None:
    streams: list[tuple[pb.VerifyRequest, ...]] = [
        (),
        (opening(),),
        (opening(), honest_draft("dssd")),
    ]
    async with scripted_suite() as suite, unharmed(suite):
        for frames in streams:
            async with edge_peer(suite.verifier.target) as peer:
                await peer.send(*frames)


HUGE = 2**32 - 1


async def test_mutated_frames_never_make_an_internal_error() -> None:
    """Conversations with a few bytes or a field changed. They may end well or be refused, nothing
    else; and the server serves on."""
    source = random.Random(20)
    allowed = {
        "OK",
        "INVALID_ARGUMENT",
        "FAILED_PRECONDITION",
        "DATA_LOSS",
        "RESOURCE_EXHAUSTED",
    }
    seen = set()
    async with scripted_suite() as suite:
        for block in range(4):
            async with unharmed(suite):
                for _ in range(40):
                    frames = _mutated(source)
                    ending = await raw_ending(suite.verifier.target, *frames)
                    assert ending.code in allowed, (block, ending, [raw.hex() for raw in frames])
                    seen.add(ending.code)
    assert {"OK", "INVALID_ARGUMENT", "FAILED_PRECONDITION"} <= seen


def _mutated(source: random.Random) -> list[bytes]:
    preset, first = source.choice(
        [("dssd", honest_draft("dssd")), ("dsd", honest_draft("dsd")), ("coupled", draft((6, 7)))]
    )
    frames = [opening(preset), first, control("ping", nonce=1), control("recovered")]
    raw = [frame.SerializeToString() for frame in frames]
    for _ in range(source.randint(0, 2)):
        which = source.randrange(len(raw))
        raw[which] = source.choice((_flip, _cut, _repeat, _set_field))(raw[which], source)
    if source.random() < 0.1:
        source.shuffle(raw)
    return raw


def _flip(raw: bytes, source: random.Random) -> bytes:
    changed = bytearray(raw)
    for _ in range(source.randint(1, 3) if raw else 0):
        changed[source.randrange(len(raw))] ^= 1 << source.randrange(8)
    return bytes(changed)


def _cut(raw: bytes, source: random.Random) -> bytes:
    return raw[: source.randrange(len(raw) + 1)]


def _repeat(raw: bytes, source: random.Random) -> bytes:
    """Protobuf merges a message that comes twice: lists grow."""
    return raw * 2


def _set_field(raw: bytes, source: random.Random) -> bytes:
    try:
        frame = pb.VerifyRequest.FromString(raw)
    except DecodeError:  # mutated already
        return raw
    field = source.choice(("session", "base", "prefix"))
    setattr(frame, field, source.choice((0, 1, 2, 4, HUGE)))
    if frame.HasField("open"):
        name = source.choice(
            (
                "window",
                "max_tokens",
                "payload_top",
                "acceptance",
                "uplink",
                "rejection_payload",
                "bonus",
            )
        )
        owner = frame.open.params if name == "max_tokens" else frame.open
        setattr(owner, name, source.choice((0, 1, 2, 3)))
    return frame.SerializeToString()
