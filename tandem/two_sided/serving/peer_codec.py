"""Frames between the two aggregators: plain values to protobuf and back. Invariant: decoding
bounds-checks everything a peer could get wrong, lengths before contents, and raises InvalidArgument
naming the field. What is made of a distribution has the size of a vocabulary: the receiver's own,
never one that a frame names."""

from typing import Any

import numpy as np

from tandem.core.errors import InvalidArgument, check_count
from tandem.core.probs import MAX_VOCABULARY_SIZE
from tandem.core.prompt import MAX_PROMPT_IDS
from tandem.core.tokens import TokenSource, check_token_ids
from tandem.two_sided.protocol.frames import Cancel, FrameHeader, GoingAway, Ping, Pong
from tandem.two_sided.protocol.messages import (
    AggregationRequest,
    AnyPeerMessage,
    CloudSideMessage,
    CollaborationOpen,
    CollaborationOpened,
    DeviceMessage,
    DocumentPart,
    DocumentRequest,
    Fetch,
    SentProbs,
    SideDraftFrame,
    TargetFrame,
)
from tandem.two_sided.protocol.mixture import Side
from tandem.two_sided.protocol.presets import (
    MAX_QUERY_CHARACTERS,
    AggregationMode,
    AggregationPreset,
    DocumentContext,
    DocumentTransfer,
    LocalProbs,
    Placement,
    Sources,
)
from tandem.two_sided.protocol.top_list import TopList, received_list
from tandem.two_sided.serving.decoder_codec import (
    MAX_DOCUMENTS,
    check_log_mass,
    check_seconds,
    document_from_proto,
    document_to_proto,
    fill_control,
    head_fields,
    header_of,
    model_from_proto,
    model_to_proto,
    part_from_proto,
    part_to_proto,
    probs_choices_from_proto,
    probs_choices_to_proto,
    probs_from_payload,
    probs_to_payload,
    read_control,
    same_fields,
)
from tandem.wire.common_codec import (
    MAX_EOS_TOKEN_IDS,
    choice_of,
    processors_from_proto,
    processors_to_proto,
    sampling_from_proto,
    sampling_to_proto,
    token_sources_from_proto,
    token_sources_to_proto,
)
from tandem_api.aggregator.v1 import aggregator_pb2 as pb
from tandem_api.common.v1 import sampling_pb2

_MODES = {
    AggregationMode.AGGREGATOR: pb.AGREEMENT_AGGREGATOR,
    AggregationMode.COIN: pb.AGREEMENT_COIN,
    AggregationMode.ANSWER_COIN: pb.AGREEMENT_ANSWER_COIN,
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

_REQUEST_FIELDS = (
    "vocabulary_hash",
    "vocabulary_size",
    "prompt_ids",
    "committed_ids",
    "query",
    "documents",
    "seed",
    "max_tokens",
)
_PRESET_FIELDS = ("ahead", "top", "reweigh_every")
_DRAFT_FIELDS = ("token_id", "log_mass", "committed", "decode_s", "held_s", "heard")
_OPENED_FIELDS = ("log_mass", "documents", "document_tokens", "max_tokens", "processes")
"""Fields of the same name in a message here and on the wire."""


class DeviceCodec:
    """The device's end of one stream: encodes its frames, decodes the cloud's."""

    def __init__(self, vocabulary_size: int, probs: LocalProbs) -> None:
        self._peer_frames = _PeerFrames(vocabulary_size, probs)

    def encode(self, message: DeviceMessage) -> pb.CollaborateRequest:
        frame = pb.CollaborateRequest(**head_fields(message))
        match message:
            case CollaborationOpen():
                frame.open.CopyFrom(_open_to_proto(message))
            case DocumentRequest():
                frame.document_wanted.SetInParent()
                frame.document_wanted.index = message.index
                frame.document_wanted.in_conversation = message.in_conversation
                frame.document_wanted.joined = message.joined
            case Cancel() | Ping():
                fill_control(frame, message)
            case _:
                self._peer_frames.fill(frame, message)
        return frame

    def decode(self, frame: pb.CollaborateResponse) -> CloudSideMessage:
        """Read a frame. Raises InvalidArgument naming the field for anything no honest cloud would
        send."""
        header = header_of(frame)
        match frame.WhichOneof("message"):
            case "opened":
                return _opened_from_proto(header, frame.opened)
            case "document_part":
                return DocumentPart(**header, part=part_from_proto(frame.document_part))
        read: CloudSideMessage = self._peer_frames.read(header, frame)
        return read


class CloudSideCodec:
    """The cloud's end of one stream: decodes the device's frames, encodes its own."""

    def __init__(self) -> None:
        self._peer_frames = _PeerFrames(0, LocalProbs())
        self._open_received = self._opened = False

    def opened(self, vocabulary_size: int) -> None:
        """Take the vocabulary of the session's decoder, which is open now. Until then the device's
        drafts, targets and fetches are refused."""
        self._peer_frames = _PeerFrames(vocabulary_size, self._peer_frames.probs)
        self._opened = True

    def decode(self, frame: pb.CollaborateRequest) -> DeviceMessage:
        """Read it. Raises InvalidArgument naming the field."""
        header = header_of(frame)
        match frame.WhichOneof("message"):
            case "open":
                if self._open_received:
                    raise InvalidArgument("open", "the stream is open already")
                opening = _open_from_proto(header, frame.open)
                self._open_received = True
                self._peer_frames = _PeerFrames(0, opening.request.preset.probs)
                return opening
            case "document_wanted":
                wanted = frame.document_wanted
                return DocumentRequest(
                    **header,
                    index=wanted.index,
                    in_conversation=wanted.in_conversation,
                    joined=wanted.joined,
                )
            case "draft" | "target" | "fetch" if not self._opened:
                raise InvalidArgument("message", "comes before the session is open")
        read: DeviceMessage = self._peer_frames.read(header, frame)
        return read

    def encode(self, message: CloudSideMessage) -> pb.CollaborateResponse:
        frame = pb.CollaborateResponse(**head_fields(message))
        match message:
            case CollaborationOpened():
                frame.opened.CopyFrom(_opened_to_proto(message))
            case DocumentPart():
                frame.document_part.CopyFrom(part_to_proto(message.part))
            case GoingAway() | Pong():
                fill_control(frame, message)
            case _:
                self._peer_frames.fill(frame, message)
        return frame


class _PeerFrames:
    """The frames sent both ways, which depend on how distributions are encoded."""

    def __init__(self, vocabulary_size: int, probs: LocalProbs) -> None:
        self._vocabulary_size = vocabulary_size
        self.probs = probs

    def fill(self, frame: Any, message: AnyPeerMessage) -> None:
        match message:
            case SideDraftFrame():
                self._fill_draft(frame.draft, message)
            case TargetFrame():
                frame.target.SetInParent()
                frame.target.token_ids.extend(message.token_ids)
                frame.target.hands_over = message.hands_over
                frame.target.token_sources.extend(token_sources_to_proto(message.token_sources))
            case Fetch():
                frame.fetch.SetInParent()
                frame.fetch.count = message.count

    def read(self, header: FrameHeader, frame: Any) -> Any:
        match frame.WhichOneof("message"):
            case "draft":
                return self._read_draft(header, frame.draft)
            case "target":
                check_count(len(frame.target.token_ids), MAX_PROMPT_IDS, "token_ids")
                token_ids = tuple(frame.target.token_ids)
                check_token_ids(token_ids, self._vocabulary_size, "token_ids")
                token_sources = _read_token_sources(frame.target)
                return TargetFrame(
                    **header,
                    token_ids=token_ids,
                    hands_over=frame.target.hands_over,
                    token_sources=token_sources,
                )
            case "fetch":
                if not frame.fetch.count >= 1:
                    raise InvalidArgument("count", "must be at least 1")
                return Fetch(**header, count=min(frame.fetch.count, self._vocabulary_size))
        return read_control(header, frame)

    def _fill_draft(self, draft: pb.SideDraft, message: SideDraftFrame) -> None:
        draft.CopyFrom(pb.SideDraft(**same_fields(message, _DRAFT_FIELDS)))
        self._fill_probs(draft, message.probs)

    def _fill_probs(self, draft: pb.SideDraft, probs: SentProbs) -> None:
        if isinstance(probs, TopList):
            draft.top.ids.extend(probs.ids.tolist())
            draft.top.probabilities.extend(probs.probs.tolist())
            draft.top.tail_mass = float(probs.tail_mass)
        elif probs is not None:
            draft.probs = probs_to_payload(probs, self.probs)

    def _read_draft(self, header: FrameHeader, draft: pb.SideDraft) -> SideDraftFrame:
        check_token_ids((draft.token_id,), self._vocabulary_size, "token_id")
        check_log_mass(draft.log_mass)
        check_seconds(draft.decode_s, "decode_s")
        check_seconds(draft.held_s, "held_s")
        fields = same_fields(draft, _DRAFT_FIELDS)
        return SideDraftFrame(**header, **fields, probs=self._read_probs(draft))

    def _read_probs(self, draft: pb.SideDraft) -> SentProbs:
        if draft.HasField("top"):
            check_count(len(draft.top.ids), self._vocabulary_size, "ids")
            check_count(len(draft.top.probabilities), self._vocabulary_size, "probabilities")
            return received_list(
                np.array(draft.top.ids, dtype=np.int64),
                np.array(draft.top.probabilities, dtype=np.float32),
                draft.top.tail_mass,
                self._vocabulary_size,
            )
        if not draft.probs:
            return None
        return probs_from_payload(draft.probs, self.probs, self._vocabulary_size, draft.token_id)


def _read_token_sources(target: pb.Target) -> tuple[TokenSource, ...]:
    if target.token_sources and len(target.token_sources) != len(target.token_ids):
        why = f"{len(target.token_sources)} for {len(target.token_ids)} tokens"
        raise InvalidArgument("token_sources", why)
    token_sources = [
        token_source
        for token_source in token_sources_from_proto(target.token_sources)
        if token_source is not None
    ]
    if len(token_sources) != len(target.token_sources):
        raise InvalidArgument("token_sources", "not one of those that there are")
    return tuple(token_sources)


def _open_to_proto(opening: CollaborationOpen) -> pb.CollaborationOpen:
    request = opening.request
    preset = request.preset
    message = pb.CollaborationOpen(
        **same_fields(request, _REQUEST_FIELDS),
        **same_fields(preset, _PRESET_FIELDS),
        sampling=sampling_to_proto(request.sampling),
        end_ids=sorted(request.eos_token_ids),
        log_mass=opening.log_mass,
        aggregating=int(opening.aggregation_side),
        preset=preset.name,
        agreement=_MODES[preset.mode],
        placement=_PLACEMENTS[preset.placement],
        sources=_SOURCES[preset.sources],
        documents_travel=preset.transfer is not DocumentTransfer.NONE,
        joined=preset.context is DocumentContext.JOINED,
    )
    probs_choices_to_proto(message, preset.probs)
    if request.processors.active:
        message.processors.CopyFrom(processors_to_proto(request.processors))
    if opening.document_kv is not None:
        message.document_kv.CopyFrom(model_to_proto(opening.document_kv))
    return message


def _transfer_from_proto(message: pb.CollaborationOpen) -> DocumentTransfer:
    if not message.documents_travel:
        return DocumentTransfer.NONE
    return DocumentTransfer.KV if message.HasField("document_kv") else DocumentTransfer.TEXT


def _check_counts(message: pb.CollaborationOpen) -> None:
    for field in ("prompt_ids", "committed_ids"):
        check_count(len(getattr(message, field)), MAX_PROMPT_IDS, field)
    check_count(len(message.end_ids), MAX_EOS_TOKEN_IDS, "end_ids")
    check_count(message.vocabulary_size, MAX_VOCABULARY_SIZE, "vocabulary_size")
    if len(message.query) > MAX_QUERY_CHARACTERS:
        raise InvalidArgument("query", f"at most {MAX_QUERY_CHARACTERS} characters")
    if message.documents > MAX_DOCUMENTS:
        raise InvalidArgument("documents", f"at most {MAX_DOCUMENTS}")


def _open_from_proto(header: FrameHeader, message: pb.CollaborationOpen) -> CollaborationOpen:
    _check_counts(message)
    preset = AggregationPreset(
        **same_fields(message, _PRESET_FIELDS),
        name=message.preset,
        mode=choice_of(_MODES, message.agreement, "agreement"),
        probs=probs_choices_from_proto(message),
        placement=choice_of(_PLACEMENTS, message.placement, "placement"),
        sources=choice_of(_SOURCES, message.sources, "sources"),
        transfer=_transfer_from_proto(message),
        context=DocumentContext.JOINED if message.joined else DocumentContext.SEPARATE,
    )
    preset.validate()
    sampling = sampling_from_proto(message.sampling)
    if not message.documents_travel:
        _check_text(message)
        sampling.validate(message.vocabulary_size)
    if message.aggregating not in (0, 1):
        raise InvalidArgument("aggregating", f"{message.aggregating} is neither 0 nor 1")
    request = AggregationRequest(
        **same_fields(message, _REQUEST_FIELDS),
        session=header["session"],
        sampling=sampling,
        preset=preset,
        eos_token_ids=frozenset(message.end_ids),
        processors=processors_from_proto(message.processors),
    )
    log_mass = check_log_mass(message.log_mass)
    side = Side(message.aggregating)
    kv_model = None
    if preset.transfer is DocumentTransfer.KV:
        kv_model = model_from_proto(message.document_kv, "document_kv")
    return CollaborationOpen(
        **header,
        request=request,
        log_mass=log_mass,
        aggregation_side=side,
        document_kv=kv_model,
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
        **same_fields(opened, _OPENED_FIELDS),
        model=sampling_pb2.ModelDescription(model_name=opened.model_name),
        texts=[document_to_proto(document) for document in opened.texts],
    )


def _opened_from_proto(header: FrameHeader, opened: pb.CollaborationOpened) -> CollaborationOpened:
    if opened.max_tokens < 1:
        raise InvalidArgument("max_tokens", "must be at least 1")
    check_log_mass(opened.log_mass)
    check_count(len(opened.texts), MAX_DOCUMENTS, "texts")
    return CollaborationOpened(
        **header,
        **same_fields(opened, _OPENED_FIELDS),
        model_name=opened.model.model_name,
        texts=tuple(map(document_from_proto, opened.texts)),
    )
