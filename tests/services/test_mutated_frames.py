"""Conversations with a verifier, mutated at random over real gRPC."""

from __future__ import annotations

import random

from google.protobuf.message import DecodeError

from tandem_api.verifier.v1 import verifier_pb2 as pb
from tests.services.scripted_suite import scripted_suite
from tests.services.verifier_peer import (
    control,
    draft,
    honest_draft,
    opening,
    raw_ending,
    unharmed,
)

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
