"""Frames between the two aggregators: plain values to protobuf and back. Invariant: decoding
bounds-checks everything a peer could get wrong, lengths before contents, and raises InvalidArgument
naming the field. What is made of a distribution has the size of a vocabulary: the receiver's own,
never one that a frame names."""

from dataclasses import replace
from typing import Any

from tandem.core.errors import InvalidArgument, check_count
from tandem.core.probs import MAX_VOCABULARY_SIZE
from tandem.core.prompt import MAX_PROMPT_IDS
from tandem.core.tokens import TokenSource, check_token_ids
from tandem.two_sided.protocol.messages import (
    AggregationRequest,
    CloudSideMessage,
    CollaborationOpen,
    CollaborationOpened,
    DeviceMessage,
    Fetch,
    TargetFrame,
)
from tandem.two_sided.protocol.presets import (
    MAX_QUERY_CHARACTERS,
    AggregationMode,
    AggregationPreset,
    DocumentContext,
    LocalProbs,
    Placement,
    Sources,
)
from tandem.two_sided.serving.decoder_codec import (
    MAX_DOCUMENTS,
    check_log_mass,
    draft_part,
    probs_choices_from_proto,
    probs_choices_to_proto,
)
from tandem.wire.common_codec import (
    MAX_EOS_TOKEN_IDS,
    choice_of,
    numbers_of,
    processors_from_proto,
    processors_to_proto,
    same_fields,
    sampling_from_proto,
    sampling_to_proto,
    token_sources_from_proto,
    token_sources_to_proto,
)
from tandem.wire.frame_codec import (
    CANCEL,
    GOING_AWAY,
    PING,
    PONG,
    FrameCodec,
    FramePart,
)
from tandem_api.aggregator.v1 import aggregator_pb2 as pb

_MODES = numbers_of(AggregationMode, pb.Agreement, "AGREEMENT")
_PLACEMENTS = numbers_of(Placement, pb.Placement, "PLACEMENT")
_SOURCES = numbers_of(Sources, pb.Sources, "SOURCES")

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
_OPENED_FIELDS = ("log_mass", "documents", "document_tokens", "max_tokens")
"""Fields of the same name in a message here and on the wire."""


class DeviceCodec(FrameCodec[DeviceMessage, CloudSideMessage]):
    """The device's end of one stream: encodes its frames, decodes the cloud's."""

    def __init__(self, vocabulary_size: int, probs: LocalProbs) -> None:
        both_ways = _both_ways(vocabulary_size, probs)
        opening = FramePart("open", CollaborationOpen, ("log_mass",), write=_write_open)
        opened = FramePart("opened", CollaborationOpened, _OPENED_FIELDS, read=_read_opened)
        super().__init__(
            pb.CollaborateRequest,
            sent=(opening, *both_ways, CANCEL, PING),
            received=(opened, *both_ways, GOING_AWAY, PONG),
        )


class CloudSideCodec(FrameCodec[CloudSideMessage, DeviceMessage]):
    """The cloud's end of one stream: decodes the device's frames, encodes its own."""

    def __init__(self) -> None:
        self._probs: LocalProbs | None = None
        opening = FramePart("open", CollaborationOpen, ("log_mass",), read=self._read_open)
        opened = FramePart("opened", CollaborationOpened, _OPENED_FIELDS)
        super().__init__(
            pb.CollaborateResponse,
            sent=(opened, GOING_AWAY, PONG),
            received=(opening, CANCEL, PING),
        )

    def opened(self, vocabulary_size: int) -> None:
        """Take the vocabulary of the session's decoder, which is open now. Until then drafts,
        targets and fetches are refused."""
        self.add(_both_ways(vocabulary_size, self._probs or LocalProbs()))

    def decode(self, frame: pb.CollaborateRequest) -> DeviceMessage:
        message = super().decode(frame)
        if isinstance(message, CollaborationOpen):
            return replace(message, request=replace(message.request, session=message.session))
        return message

    def _read_open(self, message: pb.CollaborationOpen) -> dict[str, Any]:
        if self._probs is not None:
            raise InvalidArgument("open", "the stream is open already")
        fields = _read_open(message)
        self._probs = fields["request"].preset.probs
        return fields


def _both_ways(vocabulary_size: int, choices: LocalProbs) -> tuple[FramePart, ...]:
    """Return the frames that are sent both ways, which depend on how distributions are encoded."""

    def write_target(target: pb.Target, message: TargetFrame) -> None:
        target.token_sources.extend(token_sources_to_proto(message.token_sources))

    def read_target(target: pb.Target) -> dict[str, Any]:
        check_count(len(target.token_ids), MAX_PROMPT_IDS, "token_ids")
        check_token_ids(tuple(target.token_ids), vocabulary_size, "token_ids")
        return {"token_sources": _read_token_sources(target)}

    def read_fetch(fetch: pb.Fetch) -> dict[str, Any]:
        if fetch.count < 1:
            raise InvalidArgument("count", "must be at least 1")
        return {"count": min(fetch.count, vocabulary_size)}

    def write_fetch(fetch: pb.Fetch, message: Fetch) -> None:
        fetch.count = message.count

    target_fields = ("token_ids", "hands_over")
    return (
        draft_part(choices, vocabulary_size, lists=True),
        FramePart("target", TargetFrame, target_fields, write_target, read_target),
        FramePart("fetch", Fetch, (), write_fetch, read_fetch),
    )


def _read_token_sources(target: pb.Target) -> tuple[TokenSource, ...]:
    named = token_sources_from_proto(target.token_sources)
    known = tuple(each for each in named if each is not None)
    if len(named) not in (0, len(target.token_ids)) or len(known) != len(named):
        raise InvalidArgument("token_sources", f"not one of each of {len(target.token_ids)} tokens")
    return known


def _write_open(message: pb.CollaborationOpen, opening: CollaborationOpen) -> None:
    request = opening.request
    preset = request.preset
    message.MergeFrom(
        pb.CollaborationOpen(
            **{name: getattr(request, name) for name in _REQUEST_FIELDS},
            **{name: getattr(preset, name) for name in _PRESET_FIELDS},
            sampling=sampling_to_proto(request.sampling),
            end_ids=sorted(request.eos_token_ids),
            preset=preset.name,
            agreement=_MODES[preset.mode],
            placement=_PLACEMENTS[preset.placement],
            sources=_SOURCES[preset.sources],
            joined=preset.context is DocumentContext.JOINED,
        )
    )
    probs_choices_to_proto(message, preset.probs)
    if request.processors.active:
        message.processors.CopyFrom(processors_to_proto(request.processors))


def _check_counts(message: pb.CollaborationOpen) -> None:
    for field in ("prompt_ids", "committed_ids"):
        check_count(len(getattr(message, field)), MAX_PROMPT_IDS, field)
    check_count(len(message.end_ids), MAX_EOS_TOKEN_IDS, "end_ids")
    check_count(message.vocabulary_size, MAX_VOCABULARY_SIZE, "vocabulary_size")
    if len(message.query) > MAX_QUERY_CHARACTERS:
        raise InvalidArgument("query", f"at most {MAX_QUERY_CHARACTERS} characters")
    if message.documents > MAX_DOCUMENTS:
        raise InvalidArgument("documents", f"at most {MAX_DOCUMENTS}")


def _read_open(message: pb.CollaborationOpen) -> dict[str, Any]:
    _check_counts(message)
    preset = AggregationPreset(
        **same_fields(message, _PRESET_FIELDS),
        name=message.preset,
        mode=choice_of(_MODES, message.agreement, "agreement"),
        probs=probs_choices_from_proto(message),
        placement=choice_of(_PLACEMENTS, message.placement, "placement"),
        sources=choice_of(_SOURCES, message.sources, "sources"),
        context=DocumentContext.JOINED if message.joined else DocumentContext.SEPARATE,
    )
    preset.validate()
    sampling = sampling_from_proto(message.sampling)
    _check_text(message)
    sampling.validate(message.vocabulary_size)
    request = AggregationRequest(
        **same_fields(message, _REQUEST_FIELDS),
        session=0,
        sampling=sampling,
        preset=preset,
        eos_token_ids=frozenset(message.end_ids),
        processors=processors_from_proto(message.processors),
    )
    check_log_mass(message.log_mass)
    return {"request": request}


def _check_text(message: pb.CollaborationOpen) -> None:
    if not message.prompt_ids:
        raise InvalidArgument("prompt_ids", "the prompt is empty")
    if len(message.committed_ids) >= message.max_tokens:
        raise InvalidArgument("committed_ids", "the answer is complete already")
    for field in ("prompt_ids", "committed_ids", "end_ids"):
        check_token_ids(getattr(message, field), message.vocabulary_size, field)


def _read_opened(opened: pb.CollaborationOpened) -> dict[str, Any]:
    if opened.max_tokens < 1:
        raise InvalidArgument("max_tokens", "must be at least 1")
    check_log_mass(opened.log_mass)
    return {}
