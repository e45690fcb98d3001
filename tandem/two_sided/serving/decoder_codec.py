"""Frames between an aggregator and a decoder: plain values to protobuf and back. Invariant:
decoding bounds-checks everything a peer could get wrong, lengths before contents, and raises
InvalidArgument naming the field."""

import math
from typing import Any

import numpy as np

from tandem.core.codecs import (
    entries_from_bytes,
    entries_to_bytes,
    probs_from_bytes,
    probs_to_bytes,
    sparse_probs_from_bytes,
    sparse_probs_to_bytes,
)
from tandem.core.errors import InvalidArgument, check_count
from tandem.core.probs import MAX_VOCABULARY_SIZE, Truncation
from tandem.core.prompt import MAX_PROMPT_IDS
from tandem.core.stopping import MAX_STOPS, check_stops
from tandem.core.tokens import check_token_ids
from tandem.net.tenant import check_tenant_id
from tandem.two_sided.protocol.draft_head import DraftHead, DraftProbs
from tandem.two_sided.protocol.messages import (
    KV_PART_BYTES,
    ContextDocument,
    DecodeRequestMessage,
    DecodeResponseMessage,
    DecodingOpen,
    DecodingOpened,
    DecodingTarget,
    DecodingText,
    KvModel,
    KvPart,
    SentProbs,
    SideDraftFrame,
)
from tandem.two_sided.protocol.mixture import Side
from tandem.two_sided.protocol.presets import (
    MAX_AHEAD,
    MAX_REWEIGH_EVERY,
    Draw,
    LocalProbs,
    ProbsPayload,
)
from tandem.two_sided.protocol.top_list import TopList, received_list
from tandem.wire.common_codec import (
    MAX_EOS_TOKEN_IDS,
    choice_of,
    numbers_of,
    processors_from_proto,
    processors_to_proto,
    prompt_from_proto,
    prompt_to_proto,
    same_fields,
    sampling_from_proto,
    sampling_to_proto,
)
from tandem.wire.frame_codec import (
    CANCEL,
    GOING_AWAY,
    PING,
    PONG,
    FrameCodec,
    FramePart,
    check_seconds,
)
from tandem.wire.verifier_codec import describe_model
from tandem_api.decoding.v1 import decoding_pb2 as pb

MAX_DOCUMENTS = 64
_OPEN_FIELDS = (
    "committed_ids",
    "seed",
    "ahead",
    "max_tokens",
    "wants_text",
    "stop",
    "vocabulary_hash",
    "vocabulary_size",
    "preset",
    "reweigh_every",
    "wants_token_texts",
    "end_ids",
    "chat_template_kwargs",
    "joined",
)
_MODEL_FIELDS = ("model_name", "vocabulary_hash", "vocabulary_size", "context_length")
_OPENED_FIELDS = ("prompt_ids", "log_mass", "document_tokens", "max_tokens")
_DRAFT_FIELDS = ("token_id", "log_mass", "committed", "decode_s", "held_s", "heard")
_TEXT_FIELDS = ("text", "tokens", "stopped", "token_texts")
_DOCUMENT_FIELDS = (
    "text",
    "relevance",
    "imported",
    "imported_for",
    "owner",
    "in_conversation",
)
"""Fields of the same name in a message here and on the wire."""

_DRAWS = numbers_of(Draw, pb.Draw, "DRAW")
_PAYLOADS = numbers_of(ProbsPayload, pb.ProbsPayload, "PROBS_PAYLOAD")
_PRECISIONS = numbers_of(("float32", "float16"), pb.Precision, "PRECISION")


class AggregatorCodec(FrameCodec[DecodeRequestMessage, DecodeResponseMessage]):
    """The aggregator's end of one stream: encodes its frames, decodes the decoder's."""

    def __init__(self, probs: LocalProbs) -> None:
        self._probs = probs
        sent = (
            FramePart("open", DecodingOpen, _OPEN_FIELDS, write=_write_open),
            FramePart("target", DecodingTarget, ("token_ids", "last")),
            CANCEL,
            PING,
        )
        received = (
            FramePart("opened", DecodingOpened, _OPENED_FIELDS, read=self._read_opened),
            FramePart("text", DecodingText, _TEXT_FIELDS, read=_check_text),
            GOING_AWAY,
            PONG,
        )
        super().__init__(pb.DecodeRequest, sent, received)

    def _read_opened(self, opened: pb.Opened) -> dict[str, Any]:
        model = opened.model
        check_count(model.vocabulary_size, MAX_VOCABULARY_SIZE, "vocabulary_size")
        check_count(len(model.eos_token_ids), MAX_EOS_TOKEN_IDS, "eos_token_ids")
        check_count(len(opened.prompt_ids), MAX_PROMPT_IDS, "prompt_ids")
        check_count(len(opened.document_tokens), MAX_DOCUMENTS, "document_tokens")
        self.add((draft_part(self._probs, model.vocabulary_size),))
        check_token_ids(opened.prompt_ids, model.vocabulary_size, "prompt_ids")
        check_log_mass(opened.log_mass)
        return {
            **same_fields(model, _MODEL_FIELDS),
            "eos_token_ids": frozenset(model.eos_token_ids),
        }


class DecoderCodec(FrameCodec[DecodeResponseMessage, DecodeRequestMessage]):
    """The decoder's end of one stream: decodes the aggregator's frames, encodes its own. Whether
    what `open` names is of the model's vocabulary is for the session's machine to say."""

    def __init__(
        self, vocabulary_size: int, context_length: int, device: str = "", dtype: str = ""
    ) -> None:
        self._vocabulary_size = vocabulary_size
        self._context_length = context_length
        self._device = device
        self._dtype = dtype
        received = (
            FramePart("open", DecodingOpen, _OPEN_FIELDS, read=self._read_open),
            FramePart("target", DecodingTarget, ("token_ids", "last"), read=self._check_target),
            CANCEL,
            PING,
        )
        sent = (
            FramePart("opened", DecodingOpened, _OPENED_FIELDS, write=self._write_opened),
            FramePart("text", DecodingText, _TEXT_FIELDS),
            GOING_AWAY,
            PONG,
        )
        super().__init__(pb.DecodeResponse, sent, received)

    def _read_open(self, message: pb.Open) -> dict[str, Any]:
        fields = _read_open(message, self._context_length)
        self.add((draft_part(fields["probs"], self._vocabulary_size),))
        return fields

    def _check_target(self, target: pb.Target) -> dict[str, Any]:
        check_count(len(target.token_ids), self._context_length, "token_ids")
        check_token_ids(target.token_ids, self._vocabulary_size, "token_ids")
        return {}

    def _write_opened(self, opened: pb.Opened, message: DecodingOpened) -> None:
        opened.model.CopyFrom(describe_model(message, self._device, self._dtype))


def draft_part(choices: LocalProbs, vocabulary_size: int, *, lists: bool = False) -> FramePart:
    """Return the frame of a draft, which depends on how distributions are encoded. `lists`: whether
    there may be a top list in a distribution's place."""

    def write(proto: pb.Draft, draft: SideDraftFrame) -> None:
        if isinstance(draft.probs, TopList):
            proto.top.ids.extend(draft.probs.ids.tolist())
            proto.top.probabilities.extend(draft.probs.probs.tolist())
            proto.top.tail_mass = float(draft.probs.tail_mass)
        else:
            proto.probs = probs_to_payload(draft.probs, choices)

    def read(proto: pb.Draft) -> dict[str, Any]:
        check_token_ids((proto.token_id,), vocabulary_size, "token_id")
        probs: SentProbs = None
        if lists and proto.HasField("top"):
            probs = _read_list(proto.top, vocabulary_size)
        elif proto.probs or not lists:
            probs = probs_from_payload(proto.probs, choices, vocabulary_size, proto.token_id)
        check_log_mass(proto.log_mass)
        check_seconds(proto.decode_s, "decode_s")
        check_seconds(proto.held_s, "held_s")
        return {"probs": probs}

    return FramePart("draft", SideDraftFrame, _DRAFT_FIELDS, write, read)


def _read_list(top: pb.TopList, vocabulary_size: int) -> TopList:
    check_count(len(top.ids), vocabulary_size, "ids")
    check_count(len(top.probabilities), vocabulary_size, "probabilities")
    return received_list(
        np.array(top.ids, dtype=np.int64),
        np.array(top.probabilities, dtype=np.float32),
        top.tail_mass,
        vocabulary_size,
    )


def _check_text(text: pb.Text) -> dict[str, Any]:
    check_count(len(text.token_texts), text.tokens, "token_texts")
    return {}


REST_BYTES = 3
"""Of a token id, which `MAX_VOCABULARY_SIZE` allows."""
_HEAD_ALONE = 0
_WITH_REST = 1
_FROM_REST = 2


def probs_to_payload(probs: DraftProbs | None, choices: LocalProbs) -> bytes:
    """Return what is sent of a draft's distribution."""
    if probs is None or choices.payload is ProbsPayload.NONE:
        return b""
    if isinstance(probs, DraftHead):
        return _head_to_payload(probs, choices)
    if choices.payload is ProbsPayload.SPARSE:
        return sparse_probs_to_bytes(probs, choices.precision)
    return probs_to_bytes(probs, "float32")


def probs_from_payload(
    raw: bytes, choices: LocalProbs, vocabulary_size: int, token_id: int
) -> DraftProbs | None:
    """Return the distribution [V], or the head of it, that came with the draft `token_id`. Raises
    InvalidArgument("probs")."""
    if choices.payload is ProbsPayload.NONE:
        if raw:
            raise InvalidArgument("probs", f"{len(raw)} bytes where none were agreed on")
        return None
    if choices.payload is ProbsPayload.SPARSE:
        return sparse_probs_from_bytes(raw, vocabulary_size, choices.precision, "probs")
    if choices.payload is ProbsPayload.HEAD:
        head = _head_from_payload(raw, choices, vocabulary_size)
        head.validate(token_id, vocabulary_size)
        return head
    return probs_from_bytes(raw, vocabulary_size, "float32", "probs")


def _head_to_payload(head: DraftHead, choices: LocalProbs) -> bytes:
    entries = entries_to_bytes(head.ids, head.probs, choices.precision)
    if head.rest_id is None:
        return bytes([_HEAD_ALONE]) + entries
    kind = _FROM_REST if head.from_rest else _WITH_REST
    return bytes([kind]) + head.rest_id.to_bytes(REST_BYTES, "little") + entries


def _head_from_payload(raw: bytes, choices: LocalProbs, vocabulary_size: int) -> DraftHead:
    kind = raw[0] if raw else None
    if kind not in (_HEAD_ALONE, _WITH_REST, _FROM_REST):
        raise InvalidArgument("probs", "does not begin like the head of a distribution")
    begin = 1 if kind == _HEAD_ALONE else 1 + REST_BYTES
    ids, probs = entries_from_bytes(raw[begin:], vocabulary_size, choices.precision, "probs")
    if kind == _HEAD_ALONE:
        return DraftHead(ids, probs)
    rest_id = int.from_bytes(raw[1:begin], "little")
    return DraftHead(ids, probs, rest_id, from_rest=kind == _FROM_REST)


def probs_choices_from_proto(message: Any) -> LocalProbs:
    """Read the fields draw, probs, precision, local_top_k, local_top_p, cut_after_draw and
    head."""
    return LocalProbs(
        draw=choice_of(_DRAWS, message.draw, "draw"),
        payload=choice_of(_PAYLOADS, message.probs, "probs"),
        precision=choice_of(_PRECISIONS, message.precision, "precision"),
        truncation=Truncation(message.local_top_k, message.local_top_p),
        cut_after_draw=message.cut_after_draw,
        head=message.head,
    )


def probs_choices_to_proto(message: Any, choices: LocalProbs) -> None:
    """Write them into a message with those fields."""
    message.draw = _DRAWS[choices.draw]
    message.probs = _PAYLOADS[choices.payload]
    message.precision = _PRECISIONS[choices.precision]
    message.local_top_k = choices.truncation.top_k
    message.local_top_p = choices.truncation.top_p
    message.cut_after_draw = choices.cut_after_draw
    message.head = choices.head


def check_log_mass(log_mass: float) -> None:
    """Raise InvalidArgument unless h is a number or -inf."""
    if not log_mass < math.inf:  # False for NaN as well
        raise InvalidArgument("log_mass", f"{log_mass} is neither a number nor -inf")


def document_to_proto(document: ContextDocument) -> pb.ContextDocument:
    return pb.ContextDocument(**{name: getattr(document, name) for name in _DOCUMENT_FIELDS})


def document_from_proto(document: pb.ContextDocument) -> ContextDocument:
    if not math.isfinite(document.relevance):
        raise InvalidArgument("relevance", f"{document.relevance} is not a finite number")
    check_tenant_id(document.imported_for, "imported_for")
    return ContextDocument(**same_fields(document, _DOCUMENT_FIELDS))


def _write_open(message: pb.Open, opening: DecodingOpen) -> None:
    message.documents.extend(map(document_to_proto, opening.documents))
    message.sampling.CopyFrom(sampling_to_proto(opening.sampling))
    message.side = int(opening.side)
    probs_choices_to_proto(message, opening.probs)
    prompt_to_proto(message, opening.prompt)
    if opening.processors.active:
        message.processors.CopyFrom(processors_to_proto(opening.processors))


def _read_open(message: pb.Open, context_length: int) -> dict[str, Any]:
    for field, most in (
        ("documents", MAX_DOCUMENTS),
        ("committed_ids", context_length),
        ("stop", MAX_STOPS),
        ("end_ids", MAX_EOS_TOKEN_IDS),
    ):
        check_count(len(getattr(message, field)), most, field)
    check_stops(message.stop)
    if message.side not in (0, 1):
        raise InvalidArgument("side", f"{message.side} is neither 0 nor 1")
    if message.max_tokens < 1:
        raise InvalidArgument("max_tokens", "must be at least 1")
    for field, most in (("ahead", MAX_AHEAD), ("reweigh_every", MAX_REWEIGH_EVERY)):
        if getattr(message, field) > most:
            raise InvalidArgument(field, f"{getattr(message, field)} is above {most}")
    return {
        "side": Side(message.side),
        "prompt": prompt_from_proto(message, context_length),
        "documents": tuple(map(document_from_proto, message.documents)),
        "sampling": sampling_from_proto(message.sampling),
        "probs": probs_choices_from_proto(message),
        "processors": processors_from_proto(message.processors),
    }


MAX_HASH_CHARACTERS = 128


def model_to_proto(model: KvModel) -> pb.KvModel:
    return pb.KvModel(
        weights=model.weights, vocabulary_hash=model.vocabulary_hash, model_name=model.name
    )


def model_from_proto(message: pb.KvModel, field: str) -> KvModel:
    """Read it. Raises InvalidArgument naming `field`."""
    if not message.weights or not message.vocabulary_hash:
        raise InvalidArgument(field, "names no weights or no vocabulary")
    if max(map(len, (message.weights, message.vocabulary_hash))) > MAX_HASH_CHARACTERS:
        raise InvalidArgument(field, "has longer hashes than there are")
    return KvModel(message.weights, message.vocabulary_hash, message.model_name)


def part_to_proto(part: KvPart) -> pb.ExportDocumentsResponse:
    if isinstance(part, bytes):
        return pb.ExportDocumentsResponse(chunk=part)
    return pb.ExportDocumentsResponse(size_bytes=part)


def part_from_proto(message: pb.ExportDocumentsResponse) -> KvPart:
    """Read it. Raises InvalidArgument naming the field."""
    name = message.WhichOneof("part")
    if name is None:
        raise InvalidArgument("part", "the frame carries none")
    if name == "size_bytes":
        return message.size_bytes
    if not 1 <= (size := len(message.chunk)) <= KV_PART_BYTES:
        raise InvalidArgument("chunk", f"{size} bytes are not in 1…{KV_PART_BYTES}")
    return message.chunk
