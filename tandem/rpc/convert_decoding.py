"""Frames between an aggregator and a decoder: plain values to protobuf and back.

Invariant: decoding bounds-checks everything a peer could get wrong and raises InvalidArgument
naming the field. Must not import torch.
"""

from __future__ import annotations

import math
from typing import Any

from tandem.core.aggregation import Side
from tandem.core.codecs import law_from_bytes, law_to_bytes
from tandem.core.errors import InvalidArgument
from tandem.core.laws import Array
from tandem.core.prompt import Prompt
from tandem.core.sparse_laws import sparse_law_from_bytes, sparse_law_to_bytes
from tandem.core.tokens import check_token_ids
from tandem.core.truncation import Truncation
from tandem.policy.aggregation_presets import (
    MAX_AHEAD,
    MAX_REWEIGH_EVERY,
    Draw,
    LawPayload,
    LocalLaw,
)
from tandem.protocol.decoding_messages import (
    DecodeRequestMessage,
    DecodeResponseMessage,
    DecodingCost,
    DecodingDraft,
    DecodingOpen,
    DecodingOpened,
    DecodingRelevance,
    DecodingTarget,
    DecodingText,
    Document,
    DocumentUse,
)
from tandem.protocol.messages import Cancel, GoingAway, Ping, Pong
from tandem.rpc.choices import choice_of
from tandem.rpc.convert_open import sampling_from_proto, sampling_to_proto
from tandem.rpc.prompts import prompt_from_proto, prompt_to_proto
from tandem_api.common.v1 import sampling_pb2
from tandem_api.decoding.v1 import decoding_pb2 as pb

MAX_DOCUMENTS = 64

DRAWS: dict[Draw, Any] = {
    Draw.INDEPENDENT: pb.DRAW_INDEPENDENT,
    Draw.SHARED_NOISE: pb.DRAW_SHARED_NOISE,
    Draw.LIKELIEST: pb.DRAW_LIKELIEST,
}
PAYLOADS: dict[LawPayload, Any] = {
    LawPayload.NONE: pb.LAW_PAYLOAD_NONE,
    LawPayload.FULL: pb.LAW_PAYLOAD_FULL,
    LawPayload.SPARSE: pb.LAW_PAYLOAD_SPARSE,
}
PRECISIONS: dict[Any, Any] = {
    "float32": pb.PRECISION_FLOAT32,
    "float16": pb.PRECISION_FLOAT16,
}


class AggregatorEnd:
    """The aggregator's end of one stream: encodes its frames, decodes the decoder's."""

    def __init__(self, law: LocalLaw) -> None:
        self._law = law
        self._vocabulary_size = 0

    def encode(self, message: DecodeRequestMessage) -> pb.DecodeRequest:
        frame = pb.DecodeRequest(
            session=message.session, epoch=message.epoch, base=message.base, prefix=message.prefix
        )
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
            case Cancel():
                frame.cancel.SetInParent()
            case Ping():
                frame.ping.nonce = message.nonce
                frame.ping.SetInParent()
        return frame

    def decode(self, frame: pb.DecodeResponse) -> DecodeResponseMessage:
        """Raises InvalidArgument naming the field for anything no honest decoder would send."""
        head = (frame.session, frame.epoch, frame.base, frame.prefix)
        match frame.WhichOneof("message"):
            case "opened":
                return self._opened(head, frame.opened)
            case "draft":
                return self._draft(head, frame.draft)
            case "text":
                text = frame.text
                return DecodingText(*head, text.text, text.tokens, text.stopped)
            case "going_away":
                return GoingAway(*head, grace_s=frame.going_away.grace_s)
            case "pong":
                return Pong(*head, nonce=frame.pong.nonce)
        raise InvalidArgument("message", "the frame carries none")

    def _opened(self, head: tuple[int, int, int, int], opened: pb.Opened) -> DecodingOpened:
        model = opened.model
        self._vocabulary_size = model.vocabulary_size
        check_token_ids(opened.prompt_ids, model.vocabulary_size, "prompt_ids")
        if opened.ahead > MAX_AHEAD:
            raise InvalidArgument("ahead", f"{opened.ahead} is above {MAX_AHEAD}")
        return DecodingOpened(
            *head,
            model_name=model.model_name,
            vocabulary_hash=model.vocabulary_hash,
            vocabulary_size=model.vocabulary_size,
            context_length=model.context_length,
            eos_token_ids=frozenset(model.eos_token_ids),
            prompt_ids=tuple(opened.prompt_ids),
            log_mass=check_log_mass(opened.log_mass),
            ahead=opened.ahead,
            max_tokens=opened.max_tokens,
            documents=tuple(DocumentUse(use.tokens, use.warm) for use in opened.documents),
        )

    def _draft(self, head: tuple[int, int, int, int], draft: pb.Draft) -> DecodingDraft:
        check_token_ids((draft.token_id,), self._vocabulary_size, "token_id")
        return DecodingDraft(
            *head,
            token_id=draft.token_id,
            law=law_from_payload(draft.law, self._law, self._vocabulary_size),
            log_mass=check_log_mass(draft.log_mass),
            settled=draft.settled,
            cost=DecodingCost(
                check_seconds(draft.decode_s, "decode_s"),
                check_seconds(draft.queue_s, "queue_s"),
                draft.batch_size,
            ),
        )


class DecoderEnd:
    """The decoder's end of one stream: decodes the aggregator's frames, encodes its own."""

    def __init__(self, vocabulary_size: int, device: str = "", dtype: str = "") -> None:
        self._vocabulary_size = vocabulary_size
        self._device = device
        self._dtype = dtype
        self._law = LocalLaw()

    def decode(self, frame: pb.DecodeRequest) -> DecodeRequestMessage:
        """Raises InvalidArgument naming the field."""
        head = (frame.session, frame.epoch, frame.base, frame.prefix)
        match frame.WhichOneof("message"):
            case "open":
                opening = _open_from_proto(head, frame.open)
                opening.law.validate(self._vocabulary_size)
                check_token_ids(opening.committed_ids, self._vocabulary_size, "committed_ids")
                check_token_ids(_ids_of(opening.prompt), self._vocabulary_size, "prompt")
                self._law = opening.law
                return opening
            case "target":
                token_ids = tuple(frame.target.token_ids)
                check_token_ids(token_ids, self._vocabulary_size, "token_ids")
                return DecodingTarget(*head, token_ids=token_ids, last=frame.target.last)
            case "relevance":
                scores = tuple(frame.relevance.relevances)
                if not all(map(math.isfinite, scores)):
                    raise InvalidArgument("relevances", "are not all finite numbers")
                return DecodingRelevance(*head, relevances=scores)
            case "cancel":
                return Cancel(*head)
            case "ping":
                return Ping(*head, nonce=frame.ping.nonce)
        raise InvalidArgument("message", "the frame carries none")

    def encode(self, message: DecodeResponseMessage) -> pb.DecodeResponse:
        frame = pb.DecodeResponse(
            session=message.session, epoch=message.epoch, base=message.base, prefix=message.prefix
        )
        match message:
            case DecodingOpened():
                self._fill_opened(frame.opened, message)
            case DecodingDraft():
                draft, cost = frame.draft, message.cost
                draft.token_id = message.token_id
                draft.law = law_to_payload(message.law, self._law)
                draft.log_mass = message.log_mass
                draft.settled = message.settled
                draft.decode_s, draft.queue_s = cost.decode_s, cost.queue_s
                draft.batch_size = cost.batch_size
                draft.SetInParent()
            case DecodingText():
                text = frame.text
                text.text, text.tokens, text.stopped = message.text, message.tokens, message.stopped
                text.SetInParent()
            case GoingAway():
                frame.going_away.grace_s = message.grace_s
            case Pong():
                frame.pong.nonce = message.nonce
                frame.pong.SetInParent()
        return frame

    def _fill_opened(self, opened: pb.Opened, message: DecodingOpened) -> None:
        opened.model.CopyFrom(
            sampling_pb2.ModelDescription(
                model_name=message.model_name,
                vocabulary_hash=message.vocabulary_hash,
                vocabulary_size=message.vocabulary_size,
                context_length=message.context_length,
                eos_token_ids=sorted(message.eos_token_ids),
                device=self._device,
                dtype=self._dtype,
            )
        )
        opened.prompt_ids.extend(message.prompt_ids)
        opened.log_mass = message.log_mass
        opened.ahead, opened.max_tokens = message.ahead, message.max_tokens
        for use in message.documents:
            opened.documents.add(tokens=use.tokens, warm=use.warm)


def law_to_payload(law: Array | None, choices: LocalLaw) -> bytes:
    """What of `law` [V] travels with its draft."""
    if law is None or choices.payload is LawPayload.NONE:
        return b""
    if choices.payload is LawPayload.SPARSE:
        return sparse_law_to_bytes(law, choices.precision)
    return law_to_bytes(law, "float32")


def law_from_payload(raw: bytes, choices: LocalLaw, vocabulary_size: int) -> Array | None:
    """The law [V] that came with a draft; raises InvalidArgument("law") if it is not one."""
    if choices.payload is LawPayload.NONE:
        if raw:
            raise InvalidArgument("law", f"{len(raw)} bytes where none were agreed on")
        return None
    if choices.payload is LawPayload.SPARSE:
        return sparse_law_from_bytes(raw, vocabulary_size, choices.precision, "law")
    return law_from_bytes(raw, vocabulary_size, "float32", "law")


def law_choices_from_proto(message: Any) -> LocalLaw:
    """From a message with the fields draw, law, precision, law_top_k, law_top_p, cut_after_draw."""
    return LocalLaw(
        draw=choice_of(DRAWS, message.draw, "draw"),
        payload=choice_of(PAYLOADS, message.law, "law"),
        precision=choice_of(PRECISIONS, message.precision, "precision"),
        truncation=Truncation(message.law_top_k, message.law_top_p),
        cut_after_draw=message.cut_after_draw,
    )


def law_choices_to_proto(message: Any, choices: LocalLaw) -> None:
    """Into a message with those fields."""
    message.draw = DRAWS[choices.draw]
    message.law = PAYLOADS[choices.payload]
    message.precision = PRECISIONS[choices.precision]
    message.law_top_k, message.law_top_p = choices.truncation.top_k, choices.truncation.top_p
    message.cut_after_draw = choices.cut_after_draw


def check_log_mass(log_mass: float) -> float:
    """h: a number or -inf."""
    if not log_mass < math.inf:  # False for NaN as well
        raise InvalidArgument("log_mass", f"{log_mass} is neither a number nor -inf")
    return log_mass


def check_seconds(seconds: float, field: str) -> float:
    if not 0 <= seconds < math.inf:
        raise InvalidArgument(field, f"{seconds} is not a duration")
    return seconds


def document_to_proto(document: Document) -> pb.Document:
    return pb.Document(id=document.id, text=document.text, relevance=document.relevance)


def document_from_proto(document: pb.Document) -> Document:
    if not math.isfinite(document.relevance):
        raise InvalidArgument("relevance", f"{document.relevance} is not a finite number")
    return Document(document.text, document.relevance, document.id)


def _open_to_proto(opening: DecodingOpen) -> pb.Open:
    message = pb.Open(
        committed_ids=opening.committed_ids,
        documents=[document_to_proto(document) for document in opening.documents],
        sampling=sampling_to_proto(opening.sampling),
        seed=opening.seed,
        side=int(opening.side),
        ahead=opening.ahead,
        max_tokens=opening.max_tokens,
        wants_text=opening.wants_text,
        stop=opening.stop,
        vocabulary_hash=opening.vocabulary_hash,
        vocabulary_size=opening.vocabulary_size,
        preset=opening.preset,
        reweigh_every=opening.reweigh_every,
    )
    law_choices_to_proto(message, opening.law)
    prompt_to_proto(message, opening.prompt)
    return message


def _open_from_proto(head: tuple[int, int, int, int], message: pb.Open) -> DecodingOpen:
    if len(message.documents) > MAX_DOCUMENTS:
        raise InvalidArgument("documents", f"at most {MAX_DOCUMENTS}")
    if message.side not in (0, 1):
        raise InvalidArgument("side", f"{message.side} is neither 0 nor 1")
    if message.ahead > MAX_AHEAD:
        raise InvalidArgument("ahead", f"{message.ahead} is above {MAX_AHEAD}")
    if message.max_tokens < 1:
        raise InvalidArgument("max_tokens", "must be at least 1")
    if message.reweigh_every > MAX_REWEIGH_EVERY:
        raise InvalidArgument("reweigh_every", f"is above {MAX_REWEIGH_EVERY}")
    return DecodingOpen(
        *head,
        prompt=prompt_from_proto(message),
        committed_ids=tuple(message.committed_ids),
        documents=tuple(map(document_from_proto, message.documents)),
        sampling=sampling_from_proto(message.sampling),
        seed=message.seed,
        side=Side(message.side),
        law=law_choices_from_proto(message),
        ahead=message.ahead,
        max_tokens=message.max_tokens,
        wants_text=message.wants_text,
        stop=tuple(message.stop),
        vocabulary_hash=message.vocabulary_hash,
        vocabulary_size=message.vocabulary_size,
        preset=message.preset,
        reweigh_every=message.reweigh_every,
    )


def _ids_of(prompt: Prompt) -> list[int]:
    return [item for item in prompt if isinstance(item, int)]
