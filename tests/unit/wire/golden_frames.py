"""The golden frames: every kind of message as bytes, with what it decodes to.

`golden/NAME.vN.json` keeps frames as version N of the format has them. A kept frame is never
changed: peers of that version send it. To keep another (a new kind of message, or a new form of one
that an older program must still be understood in), add it to `FRAMES` and run

    python -m tests.unit.wire.golden_frames

which adds what no file has yet to the files of the newest version.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from enum import Enum
from pathlib import Path
from typing import Any

import numpy as np
from google.protobuf import text_format
from google.protobuf.message import Message

from tandem.core.probs import SamplingParams
from tandem.core.processors import Grammar, GrammarKind, Processors, Thinking
from tandem.core.prompt import Turn
from tandem.core.sparse_payload import FullPayload, SparsePayload
from tandem.core.tokens import TokenSource
from tandem.generation.request import GenerationRequest, request_from_proto, request_to_proto
from tandem.specdec.choices import CloudDrafts
from tandem.specdec.messages import (
    Cancel,
    Committed,
    Drafts,
    GenerationParams,
    GoingAway,
    Opened,
    Ping,
    Pong,
    PromptLogprobs,
    TokenLogprob,
    Work,
)
from tandem.specdec.presets import PRESETS
from tandem.specdec.rounds.messages import (
    EarlyVerdict,
    FullDistribution,
    HiddenStates,
    NeedFullDistribution,
    Recovered,
)
from tandem.two_sided.protocol.draft_head import DraftHead
from tandem.two_sided.protocol.messages import (
    CollaborationOpen,
    CollaborationOpened,
    DecodingTarget,
    DecodingText,
    Fetch,
    TargetFrame,
)
from tandem.two_sided.protocol.top_list import top_list
from tandem.two_sided.serving.decoder_codec import AggregatorCodec, DecoderCodec
from tandem.two_sided.serving.peer_codec import CloudSideCodec, DeviceCodec
from tandem.wire.verifier_codec import CloudCodec, EdgeCodec
from tandem_api.aggregator.v1 import aggregator_pb2
from tandem_api.common.v1 import generation_pb2
from tandem_api.decoding.v1 import decoding_pb2
from tandem_api.verifier.v1 import verifier_pb2
from tests.unit.two_sided import test_decoder_codec as decoder_examples
from tests.unit.two_sided import test_peer_codec as peer_examples
from tests.unit.wire import test_verifier_codec as verifier_examples

FOLDER = Path(__file__).parent / "golden"
NEWEST = 1
HEAD = verifier_examples.HEAD
HEADED_TOKEN = 7
HEAD_WITH_REST = DraftHead(np.array([3, 7]), np.array([0.5, 0.125]), rest_id=299)
HEAD_OF_REST = DraftHead(np.array([3]), np.array([0.75]), rest_id=258, from_rest=True)
HEAD_ALONE = DraftHead(np.array([7]), np.array([1.0]))
VOCABULARY = verifier_examples.VOCABULARY
NEWER = ("picospec-preverify", "cloud-draft", "auto")
STATES = np.array([[0.5, -2.0], [1024.25, 0.0]], dtype=np.float32)
"""Hidden states of `verifier_examples.MODEL`'s size."""
PROCESSORS = Processors(
    ((7, -1.5), (1, 2.0)), 0.5, -0.25, 1.5, (2, 3), (1, 7), Grammar(GrammarKind.REGEX, "a+")
)


@dataclass(frozen=True, slots=True)
class Conversation:
    """One direction of a stream: its frames' type, and the two ends, whose stream is open."""

    kind: type[Message]
    encode: Callable[[Any], Message]
    decode: Callable[[Any], Any]
    messages: Mapping[str, Any]
    oneof: str = "message"


def _verify_request() -> Conversation:
    probs = verifier_examples.PROBS
    opened = {
        f"open.{name}": replace(verifier_examples.opening(name), prompt_ids=(1, 2))
        for name in ("coupled", "dsd", "dssd", "tslt", "mc-dsd", "stream", "fsd", *NEWER)
    }
    of_dsd = opened["open.dsd"]  # kept when the preset's distributions were float32
    float32 = replace(of_dsd.settings, uplink_precision="float32")
    opened["open.dsd"] = replace(of_dsd, settings=float32)
    of_fsd = opened["open.fsd"]  # kept when the preset had two exits
    opened["open.fsd"] = replace(of_fsd, settings=replace(of_fsd.settings, exits=2))
    asked = GenerationParams(max_tokens=9, logprobs=True, top_logprobs=2, images=(b"png",))
    drafts: dict[str, tuple[str, Drafts]] = {
        "drafts.ids": ("coupled", Drafts(*HEAD, (1, 7), end_of_chunk=True)),
        "drafts.probabilities": ("dssd", Drafts(*HEAD, (1, 7), False, probabilities=(0.5, 0.25))),
        "drafts.distributions": ("dsd", Drafts(*HEAD, (1,), True, distributions=probs[None])),
        "drafts.tree": (
            "mc-dsd",
            Drafts(*HEAD, (1, 0), True, distributions=probs[None], parents=(-1, -1)),
        ),
    }

    def encode(message: Any) -> Message:
        preset = next((name for name, draft in drafts.values() if draft is message), "dsd")
        if isinstance(message, HiddenStates):
            preset = "split"
        exact = replace(PRESETS[preset].verify_settings, uplink_precision="float32")
        frame: Message = EdgeCodec(VOCABULARY, exact).encode(message)
        return frame

    def decode(frame: Any) -> Any:
        if frame.HasField("open"):
            return CloudCodec(verifier_examples.MODEL).decode(frame)
        sparse = "mc-dsd" if frame.drafts.sparse_probs else "dsd"
        if frame.HasField("hidden_states"):
            sparse = "split"
        opening = verifier_examples.opening(sparse)
        exact = replace(opening, settings=replace(opening.settings, uplink_precision="float32"))
        return verifier_examples.opened_cloud(exact).decode(frame)

    processed = GenerationParams(
        sampling=SamplingParams(0.5, min_p=0.25, typical_p=0.75),
        processors=PROCESSORS,
    )
    thinking = GenerationParams(processors=Processors(thinking=Thinking((6, 7), (5,), budget=0)))
    others = {
        "open.processors": replace(opened["open.coupled"], params=processed),
        "open.thinking": replace(opened["open.coupled"], params=thinking),
        "open.params": replace(opened["open.coupled"], params=asked),
        "open.prompt_logprobs": replace(
            opened["open.coupled"],
            params=GenerationParams(logprobs=True, top_logprobs=20, prompt_logprobs=True),
        ),
        "open.tenant": replace(opened["open.coupled"], tenant=bytes(range(16)), public_tokens=1),
        "open.memory": replace(
            opened["open.coupled"],
            allows_memory=True,
            settings=replace(opened["open.coupled"].settings, recalls=True),
        ),
        "recovered": Recovered(*HEAD, token_id=7),
        "need_full_distribution": NeedFullDistribution(*HEAD),
        "hidden_states": HiddenStates(*HEAD, states=STATES),
        "cancel": Cancel(*HEAD),
        "ping": Ping(*HEAD, nonce=2**32 - 1),
    }
    messages = opened | {name: draft for name, (_, draft) in drafts.items()} | others
    return Conversation(verifier_pb2.VerifyRequest, encode, decode, messages)


def _verify_response() -> Conversation:
    work = Work(0.5, 0.25, 3, 9, 4)
    answer = SparsePayload(
        np.array([0, 2]),
        np.array([0.5, 0.25], dtype=np.float32),
        0.25,
        np.array([5, 5]),
        np.array([0.125, 0.125], dtype=np.float32),
    )
    probs = verifier_examples.PROBS
    told = (TokenLogprob(-0.5, ((1, -0.5), (2, -1.0))), TokenLogprob(-2.0, ((3, -0.25),)))
    messages = {
        "opened": Opened(*HEAD, 64, frozenset({0, 7}), "target"),
        "opened.batch_invariant": Opened(
            *(*HEAD, 64, frozenset({0}), "target"), batch_invariant=True, row_share=0.375
        ),
        "prompt_logprobs": PromptLogprobs(*HEAD, first=1, logprobs=told),
        "committed.accepted": Committed(*HEAD, 3, (), work),
        "committed.token": Committed(*HEAD, 2, (7,), work, told),
        "committed.tokens": Committed(*HEAD, 0, (1, 7), work, told),
        "committed.path": Committed(*HEAD, 2, (7,), work, path=(0, 2)),
        "committed.sparse": Committed(*HEAD, 1, (), work, draw_from=answer),
        "committed.full": Committed(*HEAD, 0, (), work, draw_from=FullPayload(probs)),
        "committed.cloud_drafts": Committed(
            *HEAD,
            token_ids=(1, 7),
            work=replace(work, drafts=0, cloud_drafts=4),
            cloud_accepted=1,
        ),
        "early_verdict.token": EarlyVerdict(*HEAD, 1, 3, False, 0, 0.5),
        "early_verdict.sparse": EarlyVerdict(*HEAD, 3, 0, True, answer, 1.0),
        "opened.cloud_drafts": Opened(
            *(*HEAD, 64, frozenset({0}), "target"), cloud_drafts=CloudDrafts.LOOKUP
        ),
        "full_distribution": FullDistribution(*HEAD, probs),
        "going_away": GoingAway(*HEAD),
        "pong": Pong(*HEAD, nonce=3),
    }
    cloud = CloudCodec(verifier_examples.MODEL, "cpu", "float32")
    edge = EdgeCodec(VOCABULARY, PRESETS["dssd"].verify_settings)
    return Conversation(verifier_pb2.VerifyResponse, cloud.encode, edge.decode, messages)


def _peer_ends(
    opening: CollaborationOpen = peer_examples.OPEN,
) -> tuple[DeviceCodec, CloudSideCodec]:
    """Of a stream that is open."""
    device = DeviceCodec(peer_examples.V, opening.request.preset.probs)
    cloud = CloudSideCodec()
    cloud.decode(device.encode(opening))
    cloud.opened(peer_examples.V)
    return device, cloud


def _headed(frame_or_message: Any) -> bool:
    """Whether it is a draft of a stream that was opened for heads of distributions, which nothing
    in its bytes tells."""
    draft = getattr(frame_or_message, "draft", frame_or_message)
    return getattr(draft, "token_id", None) == HEADED_TOKEN


def _both_ways() -> dict[str, Any]:
    draft, head = peer_examples.DRAFT, peer_examples.HEAD
    few = np.zeros(peer_examples.V, np.float32)
    few[[3, 5]] = 0.75, 0.25
    sources = (TokenSource.CLOUD, TokenSource.BOTH)
    return {
        "draft.ids": draft,
        "draft.sparse": replace(draft, probs=few),
        "draft.top": replace(draft, probs=top_list(few, 2)),
        "draft.head": replace(draft, token_id=HEADED_TOKEN, probs=HEAD_WITH_REST),
        "draft.head.rest": replace(draft, token_id=HEADED_TOKEN, probs=HEAD_OF_REST),
        "draft.head.alone": replace(draft, token_id=HEADED_TOKEN, probs=HEAD_ALONE),
        "target": TargetFrame(*head, (1, 299), True, sources),
        "fetch": Fetch(*head, count=40),
    }


def _collaborate_request() -> Conversation:
    device, cloud = _peer_ends()
    headed_device, headed_cloud = _peer_ends(peer_examples.HEADED)
    head, opened = peer_examples.HEAD, peer_examples.OPEN
    processed = replace(opened.request, processors=PROCESSORS)
    messages = _both_ways() | {
        "open": opened,
        "open.head": peer_examples.HEADED,
        "open.processors": replace(opened, request=processed),
        "cancel": Cancel(*head),
        "ping": Ping(*head, nonce=0),
    }

    def encode(message: Any) -> Message:
        frame: Message = (headed_device if _headed(message) else device).encode(message)
        return frame

    def decode(frame: Any) -> Any:
        if frame.HasField("open"):
            return CloudSideCodec().decode(frame)
        return (headed_cloud if _headed(frame) else cloud).decode(frame)

    return Conversation(aggregator_pb2.CollaborateRequest, encode, decode, messages)


def _collaborate_response() -> Conversation:
    device, cloud = _peer_ends()
    headed_device, headed_cloud = _peer_ends(peer_examples.HEADED)
    head = peer_examples.HEAD
    opened = CollaborationOpened(*head, -math.inf, 7, 2, 90)
    messages = _both_ways() | {
        "opened": opened,
        "going_away": GoingAway(*head),
        "pong": Pong(*head, nonce=9),
    }

    def encode(message: Any) -> Message:
        frame: Message = (headed_cloud if _headed(message) else cloud).encode(message)
        return frame

    def decode(frame: Any) -> Any:
        return (headed_device if _headed(frame) else device).decode(frame)

    return Conversation(aggregator_pb2.CollaborateResponse, encode, decode, messages)


def _decode_request() -> Conversation:
    head, opened = decoder_examples.HEAD, decoder_examples.OPEN
    messages = {
        "open.text": opened,
        "open.ids": replace(opened, prompt=(1, 2, 3)),
        "open.processors": replace(opened, processors=PROCESSORS, end_ids=(0, 7)),
        "open.chat": replace(opened, prompt=(Turn("user", "hello"),)),
        "open.head": replace(opened, probs=decoder_examples.HEADED),
        "target": DecodingTarget(*head, (1, 299), last=True),
        "cancel": Cancel(*head),
        "ping": Ping(*head, nonce=0),
    }
    aggregator = AggregatorCodec(decoder_examples.SPARSE)
    decoder = DecoderCodec(decoder_examples.V, 512)
    return Conversation(decoding_pb2.DecodeRequest, aggregator.encode, decoder.decode, messages)


def _decode_response() -> Conversation:
    head = decoder_examples.HEAD
    aggregator = AggregatorCodec(decoder_examples.SPARSE)
    decoder = DecoderCodec(decoder_examples.V, 512)
    decoder.decode(aggregator.encode(decoder_examples.OPEN))
    aggregator.decode(decoder.encode(decoder_examples.OPENED))
    headed_aggregator = AggregatorCodec(decoder_examples.HEADED)
    headed = DecoderCodec(decoder_examples.V, 512)
    headed.decode(
        headed_aggregator.encode(replace(decoder_examples.OPEN, probs=decoder_examples.HEADED))
    )
    headed_aggregator.decode(headed.encode(decoder_examples.OPENED))
    few = np.zeros(decoder_examples.V, np.float32)
    few[[3, 5]] = 0.75, 0.25

    def encode(message: Any) -> Message:
        frame: Message = (headed if _headed(message) else decoder).encode(message)
        return frame

    def decode(frame: Any) -> Any:
        return (headed_aggregator if _headed(frame) else aggregator).decode(frame)

    messages = {
        "opened": decoder_examples.OPENED,
        "draft": replace(decoder_examples.DRAFT, probs=few),
        "draft.head": replace(decoder_examples.DRAFT, token_id=HEADED_TOKEN, probs=HEAD_WITH_REST),
        "text": DecodingText(*head, "caf", 2, stopped=True),
        "text.token_texts": DecodingText(*head, "caf", 2, token_texts=("ca", "f")),
        "going_away": GoingAway(*head),
        "pong": Pong(*head, nonce=0),
    }
    return Conversation(decoding_pb2.DecodeResponse, encode, decode, messages)


def _generate_request() -> Conversation:
    def encode(request: GenerationRequest | None) -> Message:
        if request is None:
            return generation_pb2.GenerateRequest(cancel=generation_pb2.Cancel())
        return generation_pb2.GenerateRequest(start=request_to_proto(request))

    def decode(frame: Any) -> Any:
        return request_from_proto(frame.start) if frame.HasField("start") else None

    names = ("text", "ids", "chat", "all", "tree", "greedy")
    starts = zip(names, verifier_examples.REQUESTS, strict=True)
    messages = {f"start.{name}": request for name, request in starts} | {"cancel": None}
    return Conversation(generation_pb2.GenerateRequest, encode, decode, messages)


FRAMES: Mapping[str, Conversation] = {
    "verify_request": _verify_request(),
    "verify_response": _verify_response(),
    "collaborate_request": _collaborate_request(),
    "collaborate_response": _collaborate_response(),
    "decode_request": _decode_request(),
    "decode_response": _decode_response(),
    "generate_request": _generate_request(),
}


RENAMED = {"prefix_hash": "prefix"}
"""Fields of messages that had another name when their golden form was written."""


def described(value: Any) -> Any:
    """A message as JSON has it: floats bit for bit, as their shortest text."""
    if isinstance(value, Message):
        return text_format.MessageToString(value)
    if is_dataclass(value):
        named = {
            RENAMED.get(field.name, field.name): described(getattr(value, field.name))
            for field in fields(value)
        }
        return {"": type(value).__name__, **named}
    if isinstance(value, np.ndarray | np.generic):
        return {"": str(value.dtype), "values": described(value.tolist())}
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, float):
        return repr(value)
    if isinstance(value, frozenset):
        return sorted(value)
    return [described(item) for item in value] if isinstance(value, tuple | list) else value


def kept(name: str, version: int) -> dict[str, dict[str, Any]]:
    """The frames of a file, by their names; none where there is no file."""
    path = FOLDER / f"{name}.v{version}.json"
    return json.loads(path.read_text()) if path.exists() else {}


def add_missing() -> None:
    """Keep the frames that no file has."""
    FOLDER.mkdir(exist_ok=True)
    for name, conversation in FRAMES.items():
        known = [frame for version in range(1, NEWEST + 1) for frame in kept(name, version)]
        found = kept(name, NEWEST)
        for frame, message in conversation.messages.items():
            if frame not in known:
                raw = conversation.encode(message).SerializeToString(deterministic=True)
                decoded = described(conversation.decode(conversation.kind.FromString(raw)))
                found[frame] = {"bytes": raw.hex(), "decoded": decoded}
        lines = json.dumps(found, indent=1, ensure_ascii=False)
        (FOLDER / f"{name}.v{NEWEST}.json").write_text(lines + "\n")


if __name__ == "__main__":
    add_missing()
