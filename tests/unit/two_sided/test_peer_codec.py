"""The aggregators' conversation to protobuf and back: nothing is lost, nothing bad gets through."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tandem.core.codecs import sparse_wire_probs
from tandem.core.errors import InvalidArgument
from tandem.core.probs import SamplingParams
from tandem.two_sided.protocol.draft_head import DraftHead
from tandem.two_sided.protocol.messages import (
    AggregationRequest,
    CloudSideMessage,
    CollaborationOpen,
    DeviceMessage,
    Fetch,
    SideDraftFrame,
    TargetFrame,
)
from tandem.two_sided.protocol.presets import AGGREGATION_PRESETS, DocumentTransfer
from tandem.two_sided.serving.peer_codec import CloudSideCodec, DeviceCodec
from tandem_api.aggregator.v1 import aggregator_pb2 as pb
from tandem_api.common.v1 import generation_pb2
from tandem_api.decoding.v1 import decoding_pb2
from tests.composed_presets import composed

DEVICE = generation_pb2.TOKEN_SOURCE_DEVICE
UNSPECIFIED = generation_pb2.TOKEN_SOURCE_UNSPECIFIED
V = 300
HEAD = (7, 11, 2**63 + 5)
# float32 numbers, as the wire has them.
OPEN = CollaborationOpen(
    *HEAD,
    request=AggregationRequest(
        session=HEAD[0],
        vocabulary_hash="abc",
        vocabulary_size=V,
        prompt_ids=(1, 299),
        committed_ids=(4,),
        query="what is it?",
        documents=3,
        sampling=SamplingParams(0.5, 20, 0.75),
        seed=2**64 - 1,
        max_tokens=20,
        eos_token_ids=frozenset({0, 3}),
        preset=composed("dragon payload=sparse top_k=64 head=0"),
    ),
    log_mass=-math.inf,
)
"""By `dragon` as it was at first, and as peers of that time open it."""
HEADED = replace(OPEN, request=replace(OPEN.request, preset=AGGREGATION_PRESETS["dragon"]))
PROBS = sparse_wire_probs(
    np.arange(1, V + 1, dtype=np.float32) / np.float32(V * (V + 1) / 2), "float16"
)
DRAFT = SideDraftFrame(
    *HEAD, token_id=5, probs=None, log_mass=0.25, committed=9, decode_s=0.5, held_s=0.25, heard=3
)


HEADS = {
    "with a rest": DraftHead(np.array([3, 5, 299]), np.array([0.25, 0.5, 2.0**-24]), rest_id=V - 1),
    "of the rest": DraftHead(np.array([3]), np.array([0.75]), rest_id=0, from_rest=True),
    "alone": DraftHead(np.array([5]), np.array([1.0])),
}


def to_cloud(*messages: DeviceMessage, opened: CollaborationOpen = OPEN) -> list[DeviceMessage]:
    device, cloud = DeviceCodec(V, opened.request.preset.probs), CloudSideCodec()
    raw = [device.encode(message).SerializeToString() for message in messages]
    decoded = []
    for frame in raw:
        decoded.append(cloud.decode(pb.CollaborateRequest.FromString(frame)))
        if isinstance(decoded[-1], CollaborationOpen):
            cloud.opened(V)
    return decoded


def to_device(*messages: CloudSideMessage) -> list[CloudSideMessage]:
    device, cloud = DeviceCodec(V, OPEN.request.preset.probs), CloudSideCodec()
    cloud.decode(device.encode(OPEN))
    cloud.opened(V)
    raw = [cloud.encode(message).SerializeToString() for message in messages]
    return [device.decode(pb.CollaborateResponse.FromString(frame)) for frame in raw]


@pytest.mark.parametrize(
    "name",
    [
        name
        for name, preset in AGGREGATION_PRESETS.items()
        if name != "dragon-lossy" and preset.transfer is DocumentTransfer.NONE
    ],
)
def test_an_opening_comes_through_with_every_choice(name: str) -> None:
    preset = AGGREGATION_PRESETS[name]
    asked = replace(OPEN, request=replace(OPEN.request, preset=preset))
    assert to_cloud(asked) == [asked]


@pytest.mark.parametrize("kind", HEADS)
def test_the_head_of_a_distribution_comes_through_bit_for_bit(kind: str) -> None:
    sent = HEADS[kind]
    _, found = to_cloud(HEADED, replace(DRAFT, probs=sent), opened=HEADED)
    assert isinstance(found, SideDraftFrame)
    assert isinstance(found.probs, DraftHead)
    assert found.probs.ids.tolist() == sent.ids.tolist()
    assert found.probs.probs.tobytes() == sent.probs.tobytes()
    assert (found.probs.rest_id, found.probs.from_rest) == (sent.rest_id, sent.from_rest)


ONE = "003c"
"""Half-precision 1, little endian."""


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        ("03050000" + "0005" + ONE, "does not begin"),
        ("01", "not a sparse distribution"),
        ("012c0100" + "03" + "05" + "0038", "300 is not in"),
        ("00" + "03" + "05" + "0038", "the whole is 0.5"),
        ("01000000" + "03" + "04" + "0038", "without the draft"),
        ("00" + "03" + "05" + "003e", "outside"),
        ("00" + "03" + "05" + "0000", "outside"),
        ("00" + "03" + "05" + "007e", "outside"),
        ("00" + "09" + "2c01" + ONE, "id 300"),
    ],
)
def test_a_head_that_no_honest_side_sends_is_refused(raw: str, words: str) -> None:
    device, cloud = DeviceCodec(V, HEADED.request.preset.probs), CloudSideCodec()
    cloud.decode(device.encode(HEADED))
    cloud.opened(V)
    frame = pb.CollaborateRequest(draft=decoding_pb2.Draft(token_id=5, probs=bytes.fromhex(raw)))
    with pytest.raises(InvalidArgument, match=words) as caught:
        cloud.decode(frame)
    assert caught.value.field == "probs"


def changed(**fields: Any) -> pb.CollaborateRequest:
    frame: pb.CollaborateRequest = DeviceCodec(V, OPEN.request.preset.probs).encode(OPEN)
    for name, value in fields.items():
        if isinstance(value, list):
            getattr(frame.open, name)[:] = value
        else:
            setattr(frame.open, name, value)
    return frame


@pytest.mark.parametrize(
    ("frame", "field"),
    [
        (pb.CollaborateRequest(), "message"),
        (changed(agreement=0), "agreement"),
        (changed(placement=9), "placement"),
        (changed(sources=0), "sources"),
        (changed(ahead=0), "ahead"),
        (changed(top=0), "top"),
        (changed(probs=1), "probs"),
        (changed(documents=99), "documents"),
        (changed(vocabulary_size=2**22 + 1), "vocabulary_size"),
        (changed(prompt_ids=[1] * (2**20 + 1)), "prompt_ids"),
        (changed(end_ids=[1] * 4097), "end_ids"),
        (changed(query="x" * 4097), "query"),
        (changed(prompt_ids=[]), "prompt_ids"),
        (changed(prompt_ids=[V]), "prompt_ids"),
        (changed(committed_ids=[1] * 20), "committed_ids"),
        (changed(end_ids=[V]), "end_ids"),
        (changed(log_mass=math.nan), "log_mass"),
        (changed(local_top_p=0.0), "local_top_p"),
        (changed(probs=4), "head"),
        (changed(probs=9), "probs"),
        (changed(head=2**20), "head"),
    ],
)
def test_bad_openings_name_their_field(frame: pb.CollaborateRequest, field: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        CloudSideCodec().decode(frame)
    assert caught.value.field == field


def test_no_vocabulary_of_a_frame_sizes_an_array() -> None:
    device, cloud = DeviceCodec(V, OPEN.request.preset.probs), CloudSideCodec()
    draft = device.encode(replace(DRAFT, probs=PROBS))
    with pytest.raises(InvalidArgument, match=r"^message: "):
        cloud.decode(draft)
    cloud.decode(changed(vocabulary_size=2**22))
    for early in (draft, device.encode(TargetFrame(*HEAD, (1,))), device.encode(Fetch(*HEAD, 1))):
        with pytest.raises(InvalidArgument, match=r"^message: "):
            cloud.decode(early)
    cloud.opened(V)
    received = cloud.decode(draft)
    assert isinstance(received, SideDraftFrame)
    assert isinstance(received.probs, np.ndarray)
    assert received.probs.shape == (V,)


@pytest.mark.parametrize(
    ("frame", "field"),
    [
        (pb.CollaborateResponse(), "message"),
        (pb.CollaborateResponse(opened=pb.CollaborationOpened()), "max_tokens"),
        (pb.CollaborateResponse(target=pb.Target(token_ids=[V])), "token_ids"),
        (
            pb.CollaborateResponse(target=pb.Target(token_ids=[1, 2], token_sources=[DEVICE])),
            "token_sources",
        ),
        (
            pb.CollaborateResponse(target=pb.Target(token_ids=[1], token_sources=[UNSPECIFIED])),
            "token_sources",
        ),
        (pb.CollaborateResponse(fetch=pb.Fetch()), "count"),
        (pb.CollaborateResponse(draft=decoding_pb2.Draft(token_id=V)), "token_id"),
        (pb.CollaborateResponse(draft=decoding_pb2.Draft(probs=b"\x01")), "probs"),
        (pb.CollaborateResponse(draft=decoding_pb2.Draft(top=decoding_pb2.TopList())), "ids"),
        (pb.CollaborateResponse(draft=decoding_pb2.Draft(log_mass=math.inf)), "log_mass"),
        (pb.CollaborateResponse(draft=decoding_pb2.Draft(decode_s=-1)), "decode_s"),
        (pb.CollaborateResponse(draft=decoding_pb2.Draft(held_s=math.nan)), "held_s"),
    ],
)
def test_bad_frames_name_their_field(frame: pb.CollaborateResponse, field: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        DeviceCodec(V, OPEN.request.preset.probs).decode(frame)
    assert caught.value.field == field
