"""The aggregators' conversation to protobuf and back: nothing is lost, nothing bad gets through."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tandem.core.aggregation import Side
from tandem.core.errors import InvalidArgument
from tandem.core.laws import Sampling
from tandem.core.sparse_laws import sparse_wire_law
from tandem.core.top_list import TopList, top_list
from tandem.policy.aggregation_presets import AGGREGATION_PRESETS, Travel
from tandem.protocol.aggregation_messages import (
    CloudSideMessage,
    CollaborationOpen,
    CollaborationOpened,
    DeviceMessage,
    Fetch,
    SideDraftFrame,
    TargetFrame,
)
from tandem.protocol.decoding_messages import Document
from tandem.protocol.document_kv import DocumentKv, DocumentPart, DocumentWanted, KvModel
from tandem.protocol.messages import Cancel, GoingAway, Ping, Pong
from tandem.protocol.outputs import Maker
from tandem.rpc.convert_aggregation import CloudSideEnd, DeviceEnd
from tandem_api.aggregator.v1 import aggregator_pb2 as pb
from tandem_api.common.v1 import generation_pb2

DEVICE = generation_pb2.TOKEN_MAKER_DEVICE
UNSPECIFIED = generation_pb2.TOKEN_MAKER_UNSPECIFIED
V = 300
HEAD = (7, 2, 11, 2**63 + 5)
# float32 numbers, as the wire has them.
OPEN = CollaborationOpen(
    *HEAD,
    vocabulary_hash="abc",
    vocabulary_size=V,
    prompt_ids=(1, 299),
    committed_ids=(4,),
    query="what is it?",
    documents=3,
    sampling=Sampling(0.5, 20, 0.75),
    seed=2**64 - 1,
    max_tokens=20,
    end_ids=frozenset({0, 3}),
    log_mass=-math.inf,
    aggregating=Side.CLOUD,
    preset=AGGREGATION_PRESETS["dragon"],
)
LAW = sparse_wire_law(
    np.arange(1, V + 1, dtype=np.float32) / np.float32(V * (V + 1) / 2), "float16"
)
MODEL = KvModel("weights", "vocabulary", "a name")
DRAFT = SideDraftFrame(
    *HEAD, token_id=5, law=None, log_mass=0.25, settled=9, decode_s=0.5, held_s=0.25, heard=3
)


def to_cloud(*messages: DeviceMessage) -> list[DeviceMessage]:
    device, cloud = DeviceEnd(V, OPEN.preset.law), CloudSideEnd()
    raw = [device.encode(message).SerializeToString() for message in messages]
    return [cloud.decode(pb.CollaborateRequest.FromString(frame)) for frame in raw]


def to_device(*messages: CloudSideMessage) -> list[CloudSideMessage]:
    device, cloud = DeviceEnd(V, OPEN.preset.law), CloudSideEnd()
    cloud.decode(device.encode(OPEN))
    raw = [cloud.encode(message).SerializeToString() for message in messages]
    return [device.decode(pb.CollaborateResponse.FromString(frame)) for frame in raw]


@pytest.mark.parametrize("name", [name for name in AGGREGATION_PRESETS if name != "dragon-lossy"])
def test_an_opening_comes_through_with_every_choice(name: str) -> None:
    preset = AGGREGATION_PRESETS[name]
    asked = replace(OPEN, preset=preset, document_kv=MODEL if preset.travel is Travel.KV else None)
    assert to_cloud(asked) == [asked]


def test_documents_that_travel_need_no_prompt() -> None:
    asked = replace(
        OPEN, prompt_ids=(), committed_ids=(), vocabulary_size=0, end_ids=frozenset(),
        preset=replace(AGGREGATION_PRESETS["drcg-text"]),
    )  # fmt: skip
    assert to_cloud(asked) == [asked]


@pytest.mark.parametrize(
    "message",
    [
        TargetFrame(*HEAD, token_ids=(1, 299), hands_over=True),
        TargetFrame(*HEAD, token_ids=()),
        TargetFrame(*HEAD, token_ids=tuple(range(len(Maker))), makers=tuple(Maker)),
        Fetch(*HEAD, count=40),
        DRAFT,
    ],
)
def test_what_travels_both_ways_does(message: Any) -> None:
    assert to_cloud(OPEN, message) == [OPEN, message]
    assert to_device(message) == [message]


@pytest.mark.parametrize(
    "message", [Cancel(*HEAD), Ping(*HEAD, nonce=0), DocumentWanted(*HEAD, index=0)]
)
def test_what_the_device_alone_says(message: DeviceMessage) -> None:
    assert to_cloud(message) == [message]


@pytest.mark.parametrize(
    "message",
    [
        CollaborationOpened(
            *HEAD,
            log_mass=-math.inf,
            max_tokens=7,
            model_name="m",
            documents=2,
            document_tokens=90,
            texts=(Document("a public text", 0.5, "h1"),),
        ),
        GoingAway(*HEAD, grace_s=2.5),
        Pong(*HEAD, nonce=9),
        DocumentPart(*HEAD, DocumentKv(MODEL, "ab12", 40, 2**33, bytes(range(32)))),
        DocumentPart(*HEAD, b"\0chunk"),
    ],
)
def test_what_the_cloud_alone_says(message: CloudSideMessage) -> None:
    assert to_device(message) == [message]


def test_laws_and_lists_come_through_bit_for_bit() -> None:
    _, found = to_cloud(OPEN, replace(DRAFT, law=LAW))
    assert isinstance(found, SideDraftFrame)
    assert isinstance(found.law, np.ndarray)
    assert found.law.tobytes() == LAW.tobytes()
    sent = top_list(LAW, 6)
    (listed,) = to_device(replace(DRAFT, law=sent))
    assert isinstance(listed, SideDraftFrame)
    assert isinstance(listed.law, TopList)
    assert listed.law.ids.tolist() == sent.ids.tolist()
    assert listed.law.probs.tobytes() == sent.probs.tobytes()
    assert (listed.law.rest_mass, listed.law.rest_bound) == (sent.rest_mass, sent.rest_bound)


def changed(**fields: Any) -> pb.CollaborateRequest:
    frame = DeviceEnd(V, OPEN.preset.law).encode(OPEN)
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
        (changed(law=1), "law"),
        (changed(aggregating=2), "aggregating"),
        (changed(documents=99), "documents"),
        (changed(prompt_ids=[]), "prompt_ids"),
        (changed(prompt_ids=[V]), "prompt_ids"),
        (changed(committed_ids=[1] * 20), "committed_ids"),
        (changed(end_ids=[V]), "end_ids"),
        (changed(log_mass=math.nan), "log_mass"),
        (changed(law_top_p=0.0), "law_top_p"),
    ],
)
def test_bad_openings_name_their_field(frame: pb.CollaborateRequest, field: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        CloudSideEnd().decode(frame)
    assert caught.value.field == field


@pytest.mark.parametrize(
    ("frame", "field"),
    [
        (pb.CollaborateResponse(), "message"),
        (pb.CollaborateResponse(opened=pb.CollaborationOpened()), "max_tokens"),
        (pb.CollaborateResponse(target=pb.Target(token_ids=[V])), "token_ids"),
        (pb.CollaborateResponse(target=pb.Target(token_ids=[1, 2], makers=[DEVICE])), "makers"),
        (pb.CollaborateResponse(target=pb.Target(token_ids=[1], makers=[UNSPECIFIED])), "makers"),
        (pb.CollaborateResponse(fetch=pb.Fetch()), "count"),
        (pb.CollaborateResponse(draft=pb.SideDraft(token_id=V)), "token_id"),
        (pb.CollaborateResponse(draft=pb.SideDraft(law=b"\x01")), "law"),
        (pb.CollaborateResponse(draft=pb.SideDraft(top=pb.TopList())), "ids"),
        (pb.CollaborateResponse(draft=pb.SideDraft(log_mass=math.inf)), "log_mass"),
        (pb.CollaborateResponse(draft=pb.SideDraft(decode_s=-1)), "decode_s"),
        (pb.CollaborateResponse(draft=pb.SideDraft(held_s=math.nan)), "held_s"),
    ],
)
def test_bad_frames_name_their_field(frame: pb.CollaborateResponse, field: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        DeviceEnd(V, OPEN.preset.law).decode(frame)
    assert caught.value.field == field
