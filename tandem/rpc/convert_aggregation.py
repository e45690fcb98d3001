"""Frames between the two aggregators: plain values to protobuf and back.

Invariant: decoding bounds-checks everything a peer could get wrong and raises InvalidArgument
naming the field. Must not import torch.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tandem.core.aggregation import Side
from tandem.core.errors import InvalidArgument
from tandem.core.laws import Array
from tandem.core.tokens import check_token_ids
from tandem.core.top_list import TopList, received_list
from tandem.policy.aggregation_presets import (
    AggregationPreset,
    Agreement,
    LocalLaw,
    Placement,
    Sources,
    Travel,
)
from tandem.protocol.aggregation_messages import (
    AnyPeerMessage,
    CloudSideMessage,
    CollaborationOpen,
    CollaborationOpened,
    DeviceMessage,
    Fetch,
    SideDraftFrame,
    TargetFrame,
)
from tandem.protocol.document_kv import DocumentPart, DocumentWanted
from tandem.protocol.messages import Cancel, GoingAway, Ping, Pong
from tandem.protocol.outputs import Maker
from tandem.rpc.choices import choice_of
from tandem.rpc.convert_decoding import (
    MAX_DOCUMENTS,
    check_log_mass,
    check_seconds,
    document_from_proto,
    document_to_proto,
    law_choices_from_proto,
    law_choices_to_proto,
    law_from_payload,
    law_to_payload,
)
from tandem.rpc.convert_document_kv import (
    model_from_proto,
    model_to_proto,
    part_from_proto,
    part_to_proto,
)
from tandem.rpc.convert_open import sampling_from_proto, sampling_to_proto
from tandem.rpc.makers import makers_from_proto, makers_to_proto
from tandem_api.aggregator.v1 import aggregator_pb2 as pb
from tandem_api.common.v1 import sampling_pb2

_AGREEMENTS = {
    Agreement.AGGREGATOR: pb.AGREEMENT_AGGREGATOR,
    Agreement.COIN: pb.AGREEMENT_COIN,
    Agreement.ANSWER_COIN: pb.AGREEMENT_ANSWER_COIN,
}
_PLACEMENTS = {
    Placement.DEVICE: pb.PLACEMENT_DEVICE,
    Placement.CLOUD: pb.PLACEMENT_CLOUD,
    Placement.RANDOM: pb.PLACEMENT_RANDOM,
    Placement.SCHEDULED: pb.PLACEMENT_SCHEDULED,
}
_SOURCES = {
    Sources.BOTH: pb.SOURCES_BOTH,
    Sources.DEVICE: pb.SOURCES_DEVICE,
    Sources.CLOUD: pb.SOURCES_CLOUD,
}

_Head = tuple[int, int, int, int]


class DeviceEnd:
    """The device's end of one stream: encodes its frames, decodes the cloud's."""

    def __init__(self, vocabulary_size: int, law: LocalLaw) -> None:
        self._laws = _Laws(vocabulary_size, law)

    def encode(self, message: DeviceMessage) -> pb.CollaborateRequest:
        frame = pb.CollaborateRequest(
            session=message.session, epoch=message.epoch, base=message.base, prefix=message.prefix
        )
        match message:
            case CollaborationOpen():
                frame.open.CopyFrom(_open_to_proto(message))
            case DocumentWanted():
                frame.document_wanted.SetInParent()
                frame.document_wanted.index = message.index
            case Cancel():
                frame.cancel.SetInParent()
            case Ping():
                frame.ping.SetInParent()
                frame.ping.nonce = message.nonce
            case _:
                self._laws.fill(frame, message)
        return frame

    def decode(self, frame: pb.CollaborateResponse) -> CloudSideMessage:
        """Raises InvalidArgument naming the field for anything no honest cloud would send."""
        head = (frame.session, frame.epoch, frame.base, frame.prefix)
        match frame.WhichOneof("message"):
            case "opened":
                return _opened_from_proto(head, frame.opened)
            case "document_part":
                return DocumentPart(*head, part=part_from_proto(frame.document_part))
            case "going_away":
                return GoingAway(*head, grace_s=frame.going_away.grace_s)
            case "pong":
                return Pong(*head, nonce=frame.pong.nonce)
        return self._laws.read(head, frame)


class CloudSideEnd:
    """The cloud's end of one stream: decodes the device's frames, encodes its own."""

    def __init__(self) -> None:
        self._laws = _Laws(0, LocalLaw())

    def decode(self, frame: pb.CollaborateRequest) -> DeviceMessage:
        """Raises InvalidArgument naming the field."""
        head = (frame.session, frame.epoch, frame.base, frame.prefix)
        match frame.WhichOneof("message"):
            case "open":
                opening = _open_from_proto(head, frame.open)
                self._laws = _Laws(opening.vocabulary_size, opening.preset.law)
                return opening
            case "document_wanted":
                return DocumentWanted(*head, index=frame.document_wanted.index)
            case "cancel":
                return Cancel(*head)
            case "ping":
                return Ping(*head, nonce=frame.ping.nonce)
        return self._laws.read(head, frame)

    def encode(self, message: CloudSideMessage) -> pb.CollaborateResponse:
        frame = pb.CollaborateResponse(
            session=message.session, epoch=message.epoch, base=message.base, prefix=message.prefix
        )
        match message:
            case CollaborationOpened():
                frame.opened.CopyFrom(_opened_to_proto(message))
            case DocumentPart():
                frame.document_part.CopyFrom(part_to_proto(message.part))
            case GoingAway():
                frame.going_away.grace_s = message.grace_s
            case Pong():
                frame.pong.SetInParent()
                frame.pong.nonce = message.nonce
            case _:
                self._laws.fill(frame, message)
        return frame


class _Laws:
    """The frames that travel both ways; they need to know how laws are written."""

    def __init__(self, vocabulary_size: int, law: LocalLaw) -> None:
        self._vocabulary_size = vocabulary_size
        self._law = law

    def fill(self, frame: Any, message: AnyPeerMessage) -> None:
        match message:
            case SideDraftFrame():
                self._fill_draft(frame.draft, message)
            case TargetFrame():
                frame.target.SetInParent()
                frame.target.token_ids.extend(message.token_ids)
                frame.target.hands_over = message.hands_over
                frame.target.makers.extend(makers_to_proto(message.makers))
            case Fetch():
                frame.fetch.SetInParent()
                frame.fetch.count = message.count

    def read(self, head: _Head, frame: Any) -> AnyPeerMessage:
        match frame.WhichOneof("message"):
            case "draft":
                return self._read_draft(head, frame.draft)
            case "target":
                token_ids = tuple(frame.target.token_ids)
                check_token_ids(token_ids, self._vocabulary_size, "token_ids")
                makers = _read_makers(frame.target)
                return TargetFrame(*head, token_ids, frame.target.hands_over, makers)
            case "fetch":
                if not frame.fetch.count >= 1:
                    raise InvalidArgument("count", "must be at least 1")
                return Fetch(*head, count=min(frame.fetch.count, self._vocabulary_size))
        raise InvalidArgument("message", "the frame carries none")

    def _fill_draft(self, draft: pb.SideDraft, message: SideDraftFrame) -> None:
        draft.SetInParent()
        draft.token_id = message.token_id
        draft.log_mass = message.log_mass
        draft.settled = message.settled
        draft.decode_s = message.decode_s
        draft.held_s = message.held_s
        draft.heard = message.heard
        if isinstance(message.law, TopList):
            draft.top.ids.extend(message.law.ids.tolist())
            draft.top.probabilities.extend(message.law.probs.tolist())
            draft.top.tail_mass = float(message.law.rest_mass)
        elif message.law is not None:
            draft.law = law_to_payload(message.law, self._law)

    def _read_draft(self, head: _Head, draft: pb.SideDraft) -> SideDraftFrame:
        check_token_ids((draft.token_id,), self._vocabulary_size, "token_id")
        return SideDraftFrame(
            *head,
            token_id=draft.token_id,
            law=self._read_law(draft),
            log_mass=check_log_mass(draft.log_mass),
            settled=draft.settled,
            decode_s=check_seconds(draft.decode_s, "decode_s"),
            held_s=check_seconds(draft.held_s, "held_s"),
            heard=draft.heard,
        )

    def _read_law(self, draft: pb.SideDraft) -> Array | TopList | None:
        if draft.HasField("top"):
            return received_list(
                np.array(draft.top.ids, dtype=np.int64),
                np.array(draft.top.probabilities, dtype=np.float32),
                draft.top.tail_mass,
                self._vocabulary_size,
            )
        if not draft.law:
            return None
        return law_from_payload(draft.law, self._law, self._vocabulary_size)


def _read_makers(target: pb.Target) -> tuple[Maker, ...]:
    if target.makers and len(target.makers) != len(target.token_ids):
        why = f"{len(target.makers)} for {len(target.token_ids)} tokens"
        raise InvalidArgument("makers", why)
    makers = [maker for maker in makers_from_proto(target.makers) if maker is not None]
    if len(makers) != len(target.makers):
        raise InvalidArgument("makers", "not one of those that there are")
    return tuple(makers)


def _open_to_proto(opening: CollaborationOpen) -> pb.CollaborationOpen:
    preset = opening.preset
    message = pb.CollaborationOpen(
        vocabulary_hash=opening.vocabulary_hash,
        vocabulary_size=opening.vocabulary_size,
        prompt_ids=opening.prompt_ids,
        committed_ids=opening.committed_ids,
        query=opening.query,
        documents=opening.documents,
        sampling=sampling_to_proto(opening.sampling),
        seed=opening.seed,
        max_tokens=opening.max_tokens,
        end_ids=sorted(opening.end_ids),
        log_mass=opening.log_mass,
        aggregating=int(opening.aggregating),
        preset=preset.name,
        agreement=_AGREEMENTS[preset.agreement],
        placement=_PLACEMENTS[preset.placement],
        sources=_SOURCES[preset.sources],
        ahead=preset.ahead,
        top=preset.top,
        reweigh_every=preset.reweigh_every,
        documents_travel=preset.travel is not Travel.NOTHING,
    )
    law_choices_to_proto(message, preset.law)
    if opening.document_kv is not None:
        message.document_kv.CopyFrom(model_to_proto(opening.document_kv))
    return message


def _travel_from_proto(message: pb.CollaborationOpen) -> Travel:
    if not message.documents_travel:
        return Travel.NOTHING
    return Travel.KV if message.HasField("document_kv") else Travel.TEXT


def _open_from_proto(head: _Head, message: pb.CollaborationOpen) -> CollaborationOpen:
    preset = AggregationPreset(
        name=message.preset,
        agreement=choice_of(_AGREEMENTS, message.agreement, "agreement"),
        law=law_choices_from_proto(message),
        placement=choice_of(_PLACEMENTS, message.placement, "placement"),
        sources=choice_of(_SOURCES, message.sources, "sources"),
        travel=_travel_from_proto(message),
        ahead=message.ahead,
        top=message.top,
        reweigh_every=message.reweigh_every,
    )
    preset.validate()
    kv = message.document_kv
    sampling = sampling_from_proto(message.sampling)
    if not message.documents_travel:
        _check_text(message)
        sampling.validate(message.vocabulary_size)
    if message.documents > MAX_DOCUMENTS:
        raise InvalidArgument("documents", f"at most {MAX_DOCUMENTS}")
    if message.aggregating not in (0, 1):
        raise InvalidArgument("aggregating", f"{message.aggregating} is neither 0 nor 1")
    return CollaborationOpen(
        *head,
        vocabulary_hash=message.vocabulary_hash,
        vocabulary_size=message.vocabulary_size,
        prompt_ids=tuple(message.prompt_ids),
        committed_ids=tuple(message.committed_ids),
        query=message.query,
        documents=message.documents,
        sampling=sampling,
        seed=message.seed,
        max_tokens=message.max_tokens,
        end_ids=frozenset(message.end_ids),
        log_mass=check_log_mass(message.log_mass),
        aggregating=Side(message.aggregating),
        preset=preset,
        document_kv=model_from_proto(kv, "document_kv") if preset.travel is Travel.KV else None,
    )


def _check_text(message: pb.CollaborationOpen) -> None:
    if not message.prompt_ids:
        raise InvalidArgument("prompt_ids", "the prompt is empty")
    if len(message.committed_ids) >= message.max_tokens:
        raise InvalidArgument("committed_ids", "the answer is complete already")
    for field in ("prompt_ids", "committed_ids", "end_ids"):
        check_token_ids(getattr(message, field), message.vocabulary_size, field)


def _opened_to_proto(opened: CollaborationOpened) -> pb.CollaborationOpened:
    return pb.CollaborationOpened(
        model=sampling_pb2.ModelDescription(model_name=opened.model_name),
        log_mass=opened.log_mass,
        documents=opened.documents,
        document_tokens=opened.document_tokens,
        max_tokens=opened.max_tokens,
        texts=[document_to_proto(document) for document in opened.texts],
    )


def _opened_from_proto(head: _Head, opened: pb.CollaborationOpened) -> CollaborationOpened:
    if opened.max_tokens < 1:
        raise InvalidArgument("max_tokens", "must be at least 1")
    return CollaborationOpened(
        *head,
        log_mass=check_log_mass(opened.log_mass),
        max_tokens=opened.max_tokens,
        model_name=opened.model.model_name,
        documents=opened.documents,
        document_tokens=opened.document_tokens,
        texts=tuple(map(document_from_proto, opened.texts)),
    )
