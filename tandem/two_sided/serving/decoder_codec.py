"""Frames between an aggregator and a decoder: plain values to protobuf and back. Invariant:
decoding bounds-checks everything a peer could get wrong, lengths before contents, and raises
InvalidArgument naming the field."""

import math
from typing import Any

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
from tandem.two_sided.protocol.decoder_messages import (
    ContextDocument,
    DecodeRequestMessage,
    DecodeResponseMessage,
    DecodingCost,
    DecodingDraft,
    DecodingOpen,
    DecodingOpened,
    DecodingRelevance,
    DecodingTarget,
    DecodingText,
    DocumentUse,
)
from tandem.two_sided.protocol.draft_head import DraftHead, DraftProbs
from tandem.two_sided.protocol.frames import Cancel, Frame, FrameHeader, GoingAway, Ping, Pong
from tandem.two_sided.protocol.messages import KV_PART_BYTES, DocumentKv, KvModel, KvPart
from tandem.two_sided.protocol.mixture import Side
from tandem.two_sided.protocol.presets import (
    MAX_AHEAD,
    MAX_REWEIGH_EVERY,
    Draw,
    LocalProbs,
    ProbsPayload,
)
from tandem.wire.common_codec import (
    MAX_EOS_TOKEN_IDS,
    choice_of,
    processors_from_proto,
    processors_to_proto,
    prompt_from_proto,
    prompt_to_proto,
    sampling_from_proto,
    sampling_to_proto,
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
"""Fields of the same name in a message here and on the wire."""

DRAWS: dict[Draw, Any] = {
    Draw.INDEPENDENT: pb.DRAW_INDEPENDENT,
    Draw.GUMBEL: pb.DRAW_GUMBEL,
    Draw.LIKELIEST: pb.DRAW_LIKELIEST,
}
PAYLOADS: dict[ProbsPayload, Any] = {
    ProbsPayload.NONE: pb.PROBS_PAYLOAD_NONE,
    ProbsPayload.FULL: pb.PROBS_PAYLOAD_FULL,
    ProbsPayload.SPARSE: pb.PROBS_PAYLOAD_SPARSE,
    ProbsPayload.HEAD: pb.PROBS_PAYLOAD_HEAD,
}
PRECISIONS: dict[Any, Any] = {"float32": pb.PRECISION_FLOAT32, "float16": pb.PRECISION_FLOAT16}


class AggregatorCodec:
    """The aggregator's end of one stream: encodes its frames, decodes the decoder's."""

    def __init__(self, probs: LocalProbs) -> None:
        self._probs = probs
        self._vocabulary_size = 0

    def encode(self, message: DecodeRequestMessage) -> pb.DecodeRequest:
        frame = pb.DecodeRequest(**head_fields(message))
        match message:
            case DecodingOpen():
                frame.open.CopyFrom(_open_to_proto(message))
            case DecodingTarget():
                frame.target.token_ids.extend(message.token_ids)
                frame.target.last = message.last
                frame.target.SetInParent()
            case DecodingRelevance():
                frame.relevance.relevances.extend(message.relevances)
                frame.relevance.SetInParent()
            case _:
                fill_control(frame, message)
        return frame

    def decode(self, frame: pb.DecodeResponse) -> DecodeResponseMessage:
        """Read a frame. Raises InvalidArgument naming the field for anything no honest decoder
        would send."""
        header = header_of(frame)
        match frame.WhichOneof("message"):
            case "opened":
                return self._opened(header, frame.opened)
            case "draft":
                return self._draft(header, frame.draft)
            case "text":
                text = frame.text
                check_count(len(text.token_texts), text.tokens, "token_texts")
                spelt = tuple(text.token_texts)
                return DecodingText(
                    **header,
                    text=text.text,
                    tokens=text.tokens,
                    stopped=text.stopped,
                    token_texts=spelt,
                )
        control: GoingAway | Pong = read_control(header, frame)
        return control

    def _opened(self, header: FrameHeader, opened: pb.Opened) -> DecodingOpened:
        model = opened.model
        check_count(model.vocabulary_size, MAX_VOCABULARY_SIZE, "vocabulary_size")
        check_count(len(model.eos_token_ids), MAX_EOS_TOKEN_IDS, "eos_token_ids")
        check_count(len(opened.prompt_ids), MAX_PROMPT_IDS, "prompt_ids")
        check_count(len(opened.documents), MAX_DOCUMENTS, "documents")
        self._vocabulary_size = model.vocabulary_size
        check_token_ids(opened.prompt_ids, model.vocabulary_size, "prompt_ids")
        if opened.ahead > MAX_AHEAD:
            raise InvalidArgument("ahead", f"{opened.ahead} is above {MAX_AHEAD}")
        return DecodingOpened(
            **header,
            **same_fields(model, _MODEL_FIELDS),
            eos_token_ids=frozenset(model.eos_token_ids),
            prompt_ids=tuple(opened.prompt_ids),
            log_mass=check_log_mass(opened.log_mass),
            ahead=opened.ahead,
            max_tokens=opened.max_tokens,
            documents=tuple(DocumentUse(use.tokens, use.cached) for use in opened.documents),
            processes=opened.processes,
        )

    def _draft(self, header: FrameHeader, draft: pb.Draft) -> DecodingDraft:
        check_token_ids((draft.token_id,), self._vocabulary_size, "token_id")
        return DecodingDraft(
            **header,
            token_id=draft.token_id,
            probs=probs_from_payload(
                draft.probs, self._probs, self._vocabulary_size, draft.token_id
            ),
            log_mass=check_log_mass(draft.log_mass),
            committed=draft.committed,
            cost=DecodingCost(
                check_seconds(draft.decode_s, "decode_s"),
                check_seconds(draft.queue_s, "queue_s"),
                draft.batch_size,
            ),
        )


class DecoderCodec:
    """The decoder's end of one stream: decodes the aggregator's frames, encodes its own."""

    def __init__(
        self, vocabulary_size: int, context_length: int, device: str = "", dtype: str = ""
    ) -> None:
        self._vocabulary_size = vocabulary_size
        self._context_length = context_length
        self._device = device
        self._dtype = dtype
        self._probs = LocalProbs()

    def decode(self, frame: pb.DecodeRequest) -> DecodeRequestMessage:
        """Read it. Raises InvalidArgument naming the field."""
        header = header_of(frame)
        match frame.WhichOneof("message"):
            case "open":
                opening = _open_from_proto(header, frame.open, self._context_length)
                opening.probs.validate(self._vocabulary_size)
                check_token_ids(opening.committed_ids, self._vocabulary_size, "committed_ids")
                prompt_ids = [item for item in opening.prompt if isinstance(item, int)]
                check_token_ids(prompt_ids, self._vocabulary_size, "prompt")
                self._probs = opening.probs
                return opening
            case "target":
                check_count(len(frame.target.token_ids), self._context_length, "token_ids")
                token_ids = tuple(frame.target.token_ids)
                check_token_ids(token_ids, self._vocabulary_size, "token_ids")
                return DecodingTarget(**header, token_ids=token_ids, last=frame.target.last)
            case "relevance":
                check_count(len(frame.relevance.relevances), MAX_DOCUMENTS, "relevances")
                scores = tuple(frame.relevance.relevances)
                if not all(map(math.isfinite, scores)):
                    raise InvalidArgument("relevances", "are not all finite numbers")
                return DecodingRelevance(**header, relevances=scores)
        control: Cancel | Ping = read_control(header, frame)
        return control

    def encode(self, message: DecodeResponseMessage) -> pb.DecodeResponse:
        frame = pb.DecodeResponse(**head_fields(message))
        match message:
            case DecodingOpened():
                self._fill_opened(frame.opened, message)
            case DecodingDraft():
                draft = frame.draft
                cost = message.cost
                draft.token_id = message.token_id
                draft.probs = probs_to_payload(message.probs, self._probs)
                draft.log_mass = message.log_mass
                draft.committed = message.committed
                draft.decode_s = cost.decode_s
                draft.queue_s = cost.queue_s
                draft.batch_size = cost.batch_size
                draft.SetInParent()
            case DecodingText():
                text = frame.text
                text.text = message.text
                text.tokens = message.tokens
                text.stopped = message.stopped
                text.token_texts.extend(message.token_texts)
                text.SetInParent()
            case _:
                fill_control(frame, message)
        return frame

    def _fill_opened(self, opened: pb.Opened, message: DecodingOpened) -> None:
        opened.model.CopyFrom(describe_model(message, self._device, self._dtype))
        opened.prompt_ids.extend(message.prompt_ids)
        opened.log_mass = message.log_mass
        opened.ahead = message.ahead
        opened.max_tokens = message.max_tokens
        opened.processes = message.processes
        for use in message.documents:
            opened.documents.add(tokens=use.tokens, cached=use.cached)


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
        draw=choice_of(DRAWS, message.draw, "draw"),
        payload=choice_of(PAYLOADS, message.probs, "probs"),
        precision=choice_of(PRECISIONS, message.precision, "precision"),
        truncation=Truncation(message.local_top_k, message.local_top_p),
        cut_after_draw=message.cut_after_draw,
        head=message.head,
    )


def probs_choices_to_proto(message: Any, choices: LocalProbs) -> None:
    """Write them into a message with those fields."""
    message.draw = DRAWS[choices.draw]
    message.probs = PAYLOADS[choices.payload]
    message.precision = PRECISIONS[choices.precision]
    message.local_top_k = choices.truncation.top_k
    message.local_top_p = choices.truncation.top_p
    message.cut_after_draw = choices.cut_after_draw
    message.head = choices.head


_CONTROLS: dict[str, tuple[type[Any], tuple[str, ...]]] = {
    "cancel": (Cancel, ()),
    "ping": (Ping, ("nonce",)),
    "pong": (Pong, ("nonce",)),
    "going_away": (GoingAway, ("grace_s",)),
}


def fill_control(frame: Any, message: Cancel | Ping | Pong | GoingAway) -> None:
    """Put a control message, which all streams have, into a frame."""
    for name, (kind, fields) in _CONTROLS.items():
        if isinstance(message, kind):
            part = getattr(frame, name)
            part.SetInParent()
            for field in fields:
                setattr(part, field, getattr(message, field))


def read_control(header: FrameHeader, frame: Any) -> Any:
    """Return the control message of a frame. Raises InvalidArgument for a frame without any
    message."""
    name = frame.WhichOneof("message")
    if name not in _CONTROLS:
        raise InvalidArgument("message", "the frame carries none")
    kind, fields = _CONTROLS[name]
    return kind(**header, **same_fields(getattr(frame, name), fields))


def header_of(frame: Any) -> FrameHeader:
    """Return what every frame carries, as it came."""
    return {
        "session": frame.session,
        "epoch": frame.epoch,
        "base": frame.base,
        "prefix_hash": frame.prefix,
    }


def head_fields(message: Frame) -> dict[str, Any]:
    """Return what every frame carries, in the protocol's names."""
    return {
        "session": message.session,
        "epoch": message.epoch,
        "base": message.base,
        "prefix": message.prefix_hash,
    }


def same_fields(source: Any, names: tuple[str, ...]) -> dict[str, Any]:
    """Return these fields of a message or dataclass as keyword arguments, repeated ones as
    tuples."""
    values = {name: getattr(source, name) for name in names}
    plain = (str, bytes, int, float)
    return {name: it if isinstance(it, plain) else tuple(it) for name, it in values.items()}


def check_log_mass(log_mass: float) -> float:
    """Return h if it is a number or -inf; raises InvalidArgument."""
    if not log_mass < math.inf:  # False for NaN as well
        raise InvalidArgument("log_mass", f"{log_mass} is neither a number nor -inf")
    return log_mass


def check_seconds(seconds: float, field: str) -> float:
    if not 0 <= seconds < math.inf:
        raise InvalidArgument(field, f"{seconds} is not a duration")
    return seconds


_DOCUMENT_FIELDS = (
    "text",
    "relevance",
    "id",
    "imported",
    "imported_for",
    "owner",
    "in_conversation",
)


def document_to_proto(document: ContextDocument) -> pb.ContextDocument:
    return pb.ContextDocument(**same_fields(document, _DOCUMENT_FIELDS))


def document_from_proto(document: pb.ContextDocument) -> ContextDocument:
    if not math.isfinite(document.relevance):
        raise InvalidArgument("relevance", f"{document.relevance} is not a finite number")
    check_tenant_id(document.imported_for, "imported_for")
    return ContextDocument(**same_fields(document, _DOCUMENT_FIELDS))


def _open_to_proto(opening: DecodingOpen) -> pb.Open:
    message = pb.Open(
        **same_fields(opening, _OPEN_FIELDS),
        documents=[document_to_proto(document) for document in opening.documents],
        sampling=sampling_to_proto(opening.sampling),
        side=int(opening.side),
    )
    probs_choices_to_proto(message, opening.probs)
    prompt_to_proto(message, opening.prompt)
    if opening.processors.active:
        message.processors.CopyFrom(processors_to_proto(opening.processors))
    return message


def _open_from_proto(header: FrameHeader, message: pb.Open, context_length: int) -> DecodingOpen:
    check_count(len(message.documents), MAX_DOCUMENTS, "documents")
    check_count(len(message.committed_ids), context_length, "committed_ids")
    check_count(len(message.stop), MAX_STOPS, "stop")
    check_count(len(message.end_ids), MAX_EOS_TOKEN_IDS, "end_ids")
    check_stops(message.stop)
    if message.side not in (0, 1):
        raise InvalidArgument("side", f"{message.side} is neither 0 nor 1")
    if message.ahead > MAX_AHEAD:
        raise InvalidArgument("ahead", f"{message.ahead} is above {MAX_AHEAD}")
    if message.max_tokens < 1:
        raise InvalidArgument("max_tokens", "must be at least 1")
    if message.reweigh_every > MAX_REWEIGH_EVERY:
        raise InvalidArgument("reweigh_every", f"is above {MAX_REWEIGH_EVERY}")
    return DecodingOpen(
        **header,
        **same_fields(message, _OPEN_FIELDS),
        prompt=prompt_from_proto(message, context_length),
        documents=tuple(map(document_from_proto, message.documents)),
        sampling=sampling_from_proto(message.sampling),
        side=Side(message.side),
        probs=probs_choices_from_proto(message),
        processors=processors_from_proto(message.processors),
    )


SHA256_BYTES = 32
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


def part_to_proto(part: KvPart) -> pb.DocumentPart:
    if isinstance(part, bytes):
        return pb.DocumentPart(chunk=part)
    kv = pb.DocumentKv(
        model=model_to_proto(part.model),
        document=part.document,
        tokens=part.tokens,
        size_bytes=part.size_bytes,
        sha256=part.sha256,
    )
    return pb.DocumentPart(kv=kv)


def part_from_proto(message: pb.DocumentPart) -> KvPart:
    """Read it. Raises InvalidArgument naming the field."""
    match message.WhichOneof("part"):
        case "kv":
            return _kv_from_proto(message.kv)
        case "chunk":
            size = len(message.chunk)
            if not 1 <= size <= KV_PART_BYTES:
                raise InvalidArgument("chunk", f"{size} bytes are not in 1…{KV_PART_BYTES}")
            return message.chunk
    raise InvalidArgument("part", "the frame carries none")


def _kv_from_proto(kv: pb.DocumentKv) -> DocumentKv:
    if len(kv.document) > MAX_HASH_CHARACTERS:
        raise InvalidArgument("document", "is a longer hash than there are")
    for field in ("tokens", "size_bytes"):
        if getattr(kv, field) < 1:
            raise InvalidArgument(field, "must be at least 1")
    if len(kv.sha256) != SHA256_BYTES:
        raise InvalidArgument("sha256", f"has {len(kv.sha256)} bytes, not {SHA256_BYTES}")
    model = model_from_proto(kv.model, "model")
    return DocumentKv(
        model=model,
        document=kv.document,
        tokens=kv.tokens,
        size_bytes=kv.size_bytes,
        sha256=kv.sha256,
    )
