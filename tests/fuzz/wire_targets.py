"""Decoders of messages as targets: each takes any bytes, and lets nothing through but what the
decoder declares. The second messages of a stream are read by codecs whose stream is open.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any

from google.protobuf.message import DecodeError, Message

from tandem.core.errors import (
    DataLoss,
    FailedPrecondition,
    InvalidArgument,
    ProtocolError,
    ResourceExhausted,
)
from tandem.core.tokens import EMPTY_PREFIX, extend_prefix
from tandem.generation.client import Generated
from tandem.generation.request import request_from_proto
from tandem.index.owners import NO_DOCUMENT_QUOTA, DocumentQuota, check_owner
from tandem.services.retriever.conversion import format_from_proto, mode_from_proto
from tandem.services.retriever.ingestion import Intake
from tandem.specdec.cloud import CloudMachine
from tandem.specdec.cloud_checks import CloudModel
from tandem.specdec.messages import GenerationParams, Open
from tandem.specdec.presets import PRESETS, Preset
from tandem.two_sided.protocol.presets import LocalProbs, ProbsPayload
from tandem.two_sided.serving.decoder_codec import (
    AggregatorCodec,
    DecoderCodec,
    document_from_proto,
    model_from_proto,
    part_from_proto,
)
from tandem.two_sided.serving.peer_codec import CloudSideCodec, DeviceCodec
from tandem.wire.verifier_codec import CloudCodec, EdgeCodec
from tandem_api.aggregator.v1 import aggregator_pb2
from tandem_api.common.v1 import generation_pb2, sampling_pb2
from tandem_api.decoding.v1 import decoding_pb2
from tandem_api.retriever.v1 import retriever_pb2
from tandem_api.verifier.v1 import verifier_pb2

V = 64
CONTEXT = 512
HEADED = LocalProbs(payload=ProbsPayload.HEAD, head=64)
MODEL = CloudModel("target", "hash", V, CONTEXT, frozenset({0}), 16, 4)
DECLARED = (InvalidArgument, ProtocolError, FailedPrecondition, DataLoss, ResourceExhausted)
"""What a decoder, or the machine behind it, may say of a message."""

Target = Callable[[bytes], None]


def parsed(kind: type[Message], raw: bytes) -> Any:
    """The message; None for bytes that are none, which gRPC refuses by itself."""
    message = kind()
    try:
        message.ParseFromString(raw)
    except DecodeError:
        return None
    return message


def verifier_opening(preset: Preset) -> verifier_pb2.VerifyRequest:
    """What opens a stream at `MODEL`."""
    ids = (1, 2, 3)
    opening = Open(
        *(7, len(ids), extend_prefix(EMPTY_PREFIX, ids)),
        vocabulary_hash="hash",
        vocabulary_size=V,
        prompt_ids=ids,
        committed_ids=(),
        params=GenerationParams(max_tokens=40),
        settings=preset.verify_settings,
    )
    frame: verifier_pb2.VerifyRequest = EdgeCodec(V, preset.verify_settings).encode(opening)
    return frame


def verify_request(raw: bytes) -> None:
    if (frame := parsed(verifier_pb2.VerifyRequest, raw)) is None:
        return
    with suppress(*DECLARED):
        message = CloudCodec(MODEL).decode(frame)
        if isinstance(message, Open):
            CloudMachine(message, MODEL)
    for name in ("dsd", "dssd", "tslt", "coupled", "mc-dsd"):
        codec = CloudCodec(MODEL)
        opening = codec.decode(verifier_opening(PRESETS[name].fitted(V)))
        assert isinstance(opening, Open)
        machine = CloudMachine(opening, MODEL)
        with suppress(*DECLARED):
            machine.receive(codec.decode(frame))


def verify_response(raw: bytes) -> None:
    if (frame := parsed(verifier_pb2.VerifyResponse, raw)) is not None:
        with suppress(InvalidArgument):
            EdgeCodec(V, PRESETS["dssd"].verify_settings).decode(frame)


def generate_request(raw: bytes) -> None:
    if (message := parsed(generation_pb2.GenerateRequest, raw)) is not None:
        with suppress(InvalidArgument):
            request_from_proto(message.start)


def generate_response(raw: bytes) -> None:
    if (message := parsed(generation_pb2.GenerateResponse, raw)) is not None:
        with suppress(ProtocolError):
            Generated().observe(message, 0.5)


def collaborate_request(raw: bytes) -> None:
    if (frame := parsed(aggregator_pb2.CollaborateRequest, raw)) is None:
        return
    with suppress(InvalidArgument):
        CloudSideCodec().decode(frame)
    codec = CloudSideCodec()
    codec.opened(V)
    with suppress(InvalidArgument):
        codec.decode(frame)


def collaborate_response(raw: bytes) -> None:
    if (frame := parsed(aggregator_pb2.CollaborateResponse, raw)) is not None:
        for probs in (LocalProbs(), HEADED):
            with suppress(InvalidArgument):
                DeviceCodec(V, probs).decode(frame)


def decode_request(raw: bytes) -> None:
    if (frame := parsed(decoding_pb2.DecodeRequest, raw)) is not None:
        with suppress(InvalidArgument):
            DecoderCodec(V, CONTEXT).decode(frame)


def decode_response(raw: bytes) -> None:
    if (frame := parsed(decoding_pb2.DecodeResponse, raw)) is None:
        return
    model = sampling_pb2.ModelDescription(vocabulary_size=V, context_length=CONTEXT)
    opened = decoding_pb2.DecodeResponse(opened=decoding_pb2.Opened(model=model, max_tokens=1))
    for probs in (LocalProbs(), replace(LocalProbs(), precision="float32"), HEADED):
        codec = AggregatorCodec(probs)
        codec.decode(opened)
        with suppress(InvalidArgument):
            codec.decode(frame)


def import_documents(raw: bytes) -> None:
    if (message := parsed(decoding_pb2.ImportDocumentsRequest, raw)) is not None:
        with suppress(InvalidArgument):
            part_from_proto(message.part)
        with suppress(InvalidArgument):
            list(map(document_from_proto, message.documents))


def export_documents(raw: bytes) -> None:
    if (message := parsed(decoding_pb2.ExportDocumentsRequest, raw)) is not None:
        with suppress(InvalidArgument):
            list(map(document_from_proto, message.documents))
            model_from_proto(message.model, "model")


def ingest_request(raw: bytes) -> None:
    if (message := parsed(retriever_pb2.IngestRequest, raw)) is not None:
        with suppress(InvalidArgument):
            intake = Intake()
            intake.take(message)
            intake.take(message)
            format_from_proto(message.format)


def list_request(raw: bytes) -> None:
    if (message := parsed(retriever_pb2.ListRequest, raw)) is not None:
        with suppress(InvalidArgument):
            check_owner(message.owner)
            DocumentQuota(message.max_documents, message.max_bytes).over(NO_DOCUMENT_QUOTA)


def search_request(raw: bytes) -> None:
    if (message := parsed(retriever_pb2.SearchRequest, raw)) is not None:
        with suppress(InvalidArgument):
            mode_from_proto(message.mode)


WIRE_TARGETS: Mapping[str, Target] = {
    target.__name__: target
    for target in (
        verify_request,
        verify_response,
        generate_request,
        generate_response,
        collaborate_request,
        collaborate_response,
        decode_request,
        decode_response,
        import_documents,
        export_documents,
        ingest_request,
        list_request,
        search_request,
    )
}
