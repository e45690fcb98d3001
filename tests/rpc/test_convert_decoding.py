"""The decoder's conversation to protobuf and back: nothing is lost, nothing bad gets through."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tandem.core.aggregation import Side
from tandem.core.errors import InvalidArgument
from tandem.core.laws import Sampling
from tandem.core.prompt import Turn
from tandem.core.sparse_laws import sparse_wire_law
from tandem.core.truncation import Truncation
from tandem.policy.aggregation_presets import Draw, LawPayload, LocalLaw
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
from tandem.rpc.convert_decoding import AggregatorEnd, DecoderEnd
from tandem_api.decoding.v1 import decoding_pb2 as pb

V = 300
HEAD = (7, 2, 11, 2**63 + 5)
SPARSE = LocalLaw(truncation=Truncation(top_k=8))
OPEN = DecodingOpen(
    *HEAD,
    prompt="What is it?",
    committed_ids=(4, 299),
    documents=(Document("a note", 0.5, "h1"), Document("another", -1.25)),
    sampling=Sampling(0.5, 20, 0.75),
    seed=2**64 - 1,
    side=Side.CLOUD,
    law=SPARSE,
    ahead=8,
    max_tokens=20,
    wants_text=True,
    stop=("\n",),
    vocabulary_hash="abc",
    vocabulary_size=V,
    preset="dragon",
    reweigh_every=8,
)
OPENED = DecodingOpened(
    *HEAD,
    model_name="m",
    vocabulary_hash="abc",
    vocabulary_size=V,
    context_length=512,
    eos_token_ids=frozenset({0, 3}),
    prompt_ids=(1, 2),
    log_mass=-math.inf,
    ahead=8,
    max_tokens=20,
    documents=(DocumentUse(64, True), DocumentUse(12, False)),
)
LAW = sparse_wire_law(np.eye(V, dtype=np.float32)[5] * 0.5 + np.float32(0.5) / V, "float16")
DRAFT = DecodingDraft(
    *HEAD, token_id=5, law=None, log_mass=0.25, settled=9, cost=DecodingCost(0.5, 0.25, 3)
)


def requested(message: DecodeRequestMessage) -> DecodeRequestMessage:
    raw = AggregatorEnd(SPARSE).encode(message).SerializeToString()
    return DecoderEnd(V).decode(pb.DecodeRequest.FromString(raw))


def answered(
    messages: list[DecodeResponseMessage], law: LocalLaw = SPARSE
) -> list[DecodeResponseMessage]:
    decoder, aggregator = DecoderEnd(V), AggregatorEnd(law)
    decoder.decode(aggregator.encode(replace(OPEN, law=law)))
    frames = [decoder.encode(message).SerializeToString() for message in messages]
    return [aggregator.decode(pb.DecodeResponse.FromString(frame)) for frame in frames]


@pytest.mark.parametrize(
    "message",
    [
        OPEN,
        replace(OPEN, prompt=(1, 2, 3), law=LocalLaw(Draw.SHARED_NOISE, LawPayload.NONE)),
        replace(OPEN, prompt=(Turn("user", "hello"),), documents=()),
        DecodingTarget(*HEAD, token_ids=(1, 299), last=True),
        DecodingTarget(*HEAD, token_ids=()),
        DecodingRelevance(*HEAD, relevances=(0.5, -2.0)),
        Cancel(*HEAD),
        Ping(*HEAD, nonce=0),
    ],
)
def test_requests_come_through(message: DecodeRequestMessage) -> None:
    assert requested(message) == message


@pytest.mark.parametrize(
    "message",
    [
        DecodingText(*HEAD, text="caf", tokens=2, stopped=True),
        GoingAway(*HEAD, grace_s=2.5),
        Pong(*HEAD, nonce=0),
    ],
)
def test_answers_come_through(message: DecodeResponseMessage) -> None:
    assert answered([OPENED, message]) == [OPENED, message]


@pytest.mark.parametrize("precision", ["float16", "float32"])
@pytest.mark.parametrize("payload", [LawPayload.SPARSE, LawPayload.FULL])
def test_a_law_comes_through_bit_for_bit(payload: LawPayload, precision: Any) -> None:
    if payload is LawPayload.FULL:
        precision = "float32"
    choices = LocalLaw(payload=payload, precision=precision)
    found = answered([OPENED, replace(DRAFT, law=LAW)], choices)[1]
    assert isinstance(found, DecodingDraft)
    assert found.law is not None
    assert found.law.tobytes() == LAW.tobytes()
    assert replace(found, law=None) == DRAFT


def test_ids_alone_carry_no_law() -> None:
    choices = LocalLaw(Draw.SHARED_NOISE, LawPayload.NONE)
    assert answered([OPENED, DRAFT], choices)[1] == DRAFT
    aggregator = AggregatorEnd(choices)
    aggregator.decode(DecoderEnd(V).encode(OPENED))
    with pytest.raises(InvalidArgument, match="law"):
        aggregator.decode(pb.DecodeResponse(draft=pb.Draft(token_id=5, law=b"abc")))


@pytest.mark.parametrize(
    ("frame", "field"),
    [
        (pb.DecodeRequest(), "message"),
        (pb.DecodeRequest(target=pb.Target(token_ids=[V])), "token_ids"),
        (pb.DecodeRequest(relevance=pb.Relevance(relevances=[math.nan])), "relevances"),
        (pb.DecodeRequest(open=pb.Open(max_tokens=1)), "prompt"),
        (pb.DecodeRequest(open=pb.Open(text="x")), "max_tokens"),
        (pb.DecodeRequest(open=pb.Open(text="x", max_tokens=1, side=2)), "side"),
        (pb.DecodeRequest(open=pb.Open(text="x", max_tokens=1, ahead=999)), "ahead"),
        (pb.DecodeRequest(open=pb.Open(text="x", max_tokens=1)), "draw"),
    ],
)
def test_bad_requests_name_their_field(frame: pb.DecodeRequest, field: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        DecoderEnd(V).decode(frame)
    assert caught.value.field == field


@pytest.mark.parametrize(
    ("draft", "field"),
    [
        (pb.Draft(token_id=V), "token_id"),
        (pb.Draft(token_id=1, law=b"\x01"), "law"),
        (pb.Draft(token_id=1, log_mass=math.nan), "law"),
        (pb.Draft(token_id=1, decode_s=-1), "law"),
    ],
)
def test_bad_drafts_name_their_field(draft: pb.Draft, field: str) -> None:
    aggregator = AggregatorEnd(SPARSE)
    aggregator.decode(DecoderEnd(V).encode(OPENED))
    with pytest.raises(InvalidArgument) as caught:
        aggregator.decode(pb.DecodeResponse(draft=draft))
    assert caught.value.field == field
