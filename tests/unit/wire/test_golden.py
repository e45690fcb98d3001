"""The formats of the wire as they are kept: golden bytes decode to their golden form, and every
kind of frame has golden bytes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields
from typing import Any

import pytest
from google.protobuf.message import Message

from tandem.core.tokens import EMPTY_PREFIX, extend_prefix
from tandem.specdec.messages import GenerationParams
from tandem.specdec.presets import VerifySettings
from tests.unit.wire.golden_frames import FRAMES, NEWEST, described, kept

ADVICE = (
    "the format of the wire has changed. Peers of the kept version send these bytes: make them"
    " decode as before. What is new gets a golden frame of its own, as"
    " tests/unit/wire/golden_frames.py says. Never edit a kept frame."
)
UNKNOWN = bytes([0xC2, 0x3E, 4, *b"newr", 0xC8, 0x3E, 7])
"""Two fields, 1000 and 1001, that no message has."""


def golden() -> Iterator[tuple[str, int, str, dict[str, Any]]]:
    for name in FRAMES:
        for version in range(1, NEWEST + 1):
            for frame, content in kept(name, version).items():
                yield name, version, frame, content


@pytest.mark.parametrize("name", FRAMES)
def test_every_kind_of_frame_is_kept(name: str) -> None:
    conversation = FRAMES[name]
    found = {
        conversation.kind.FromString(bytes.fromhex(content["bytes"])).WhichOneof(conversation.oneof)
        for of, _, _, content in golden()
        if of == name
    }
    wanted = {
        field.name
        for field in conversation.kind.DESCRIPTOR.oneofs_by_name[conversation.oneof].fields
    }
    assert found == wanted, "add what is missing to golden_frames.FRAMES and run it"


def test_golden_frames_decode_to_their_golden_form() -> None:
    for name, version, frame, content in golden():
        found = decoded(name, bytes.fromhex(content["bytes"]))
        wanted = named_as_today(content["decoded"])
        assert not differences(wanted, found), f"{name}.v{version} {frame}: {ADVICE}"


def test_what_is_sent_today_is_kept_in_the_newest_version() -> None:
    """Byte for byte: an encoder that changes is noticed, not only a decoder."""
    for name, conversation in FRAMES.items():
        known = {frame: content["bytes"] for of, _, frame, content in golden() if of == name}
        for frame, message in conversation.messages.items():
            raw = conversation.encode(message).SerializeToString(deterministic=True)
            assert raw.hex() == known[frame], f"{name} {frame}: {ADVICE}"


def test_fields_of_a_newer_peer_are_ignored_at_every_depth() -> None:
    for name, _, frame, content in golden():
        conversation = FRAMES[name]
        message = conversation.kind.FromString(bytes.fromhex(content["bytes"]))
        add_unknown(message)
        raw = message.SerializeToString()
        assert len(raw) > len(bytes.fromhex(content["bytes"]))
        assert decoded(name, raw) == decoded(name, bytes.fromhex(content["bytes"])), frame


def test_the_prefix_hash_is_pinned() -> None:
    """Peers of two versions, and requests that outlast an update, compare it."""
    assert EMPTY_PREFIX == 0x9E3779B97F4A7C15
    assert extend_prefix(EMPTY_PREFIX, (1, 2, 3)) == PREFIX_OF_1_2_3
    assert extend_prefix(EMPTY_PREFIX, (0, 151_935, 2**32 - 1)) == PREFIX_OF_FAR_IDS


PREFIX_OF_1_2_3 = 0xDF3EDB33C0E6539C
PREFIX_OF_FAR_IDS = 0x963F68E49E33EA2F


def decoded(name: str, raw: bytes) -> Any:
    conversation = FRAMES[name]
    return described(conversation.decode(conversation.kind.FromString(raw)))


def named_as_today(golden_form: Any) -> Any:
    """An opening was kept when it held a whole `Preset`, of which the cloud was told a part, and a
    request when its parameters were fields of its own."""
    if not isinstance(golden_form, dict) or "preset" not in golden_form:
        return golden_form
    if golden_form[""] == "GenerationRequest":
        params = {each.name for each in fields(GenerationParams)} & golden_form.keys()
        nested = {"": "GenerationParams", **{name: golden_form[name] for name in params}}
        others = {name: value for name, value in golden_form.items() if name not in params}
        return {**others, "params": nested}
    if golden_form[""] != "Open" or not isinstance(golden_form["preset"], dict):
        return golden_form
    preset = golden_form["preset"]
    flat = {**preset["schedule"], **preset, "preset_name": preset["name"]}
    known = (field.name for field in fields(VerifySettings))  # some were added since
    settings = {name: flat[name] for name in known if name in flat}
    others = {name: value for name, value in golden_form.items() if name != "preset"}
    return {**others, "settings": {"": "VerifySettings", **settings}}


def differences(golden_form: Any, found: Any, path: str = "") -> list[str]:
    """Where `found` is not the golden form; fields that were added since do not count."""
    if isinstance(golden_form, dict) and isinstance(found, dict):
        return [
            difference
            for key, value in golden_form.items()
            for difference in differences(value, found.get(key, "absent"), f"{path}.{key}")
        ]
    if isinstance(golden_form, list) and isinstance(found, list) and len(golden_form) == len(found):
        return [
            difference
            for index, (one, other) in enumerate(zip(golden_form, found, strict=True))
            for difference in differences(one, other, f"{path}[{index}]")
        ]
    return [] if golden_form == found else [f"{path}: {found!r}, not {golden_form!r}"]


def add_unknown(message: Message) -> None:
    """Fields of a newer version, in the message and in all that it holds."""
    for field, value in message.ListFields():
        if field.message_type is not None:
            for part in value if field.is_repeated else (value,):
                add_unknown(part)
    message.MergeFromString(UNKNOWN)
