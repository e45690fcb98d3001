"""The decoder's conversation to protobuf and back: nothing is lost, nothing bad gets through."""

import math
from dataclasses import replace

import numpy as np
import pytest

from tandem.core.codecs import sparse_wire_probs
from tandem.core.errors import InvalidArgument
from tandem.core.probs import SamplingParams, Truncation
from tandem.two_sided.protocol.messages import (
    ContextDocument,
    DecodeRequestMessage,
    DecodeResponseMessage,
    DecodingOpen,
    DecodingOpened,
    SideDraftFrame,
)
from tandem.two_sided.protocol.mixture import Side
from tandem.two_sided.protocol.presets import Draw, LocalProbs, ProbsPayload
from tandem.two_sided.serving.decoder_codec import AggregatorCodec, DecoderCodec
from tandem_api.common.v1.sampling_pb2 import TokenIds
from tandem_api.decoding.v1 import decoding_pb2 as pb

V = 300
HEAD = (7, 11, 2**63 + 5)
SPARSE = LocalProbs(truncation=Truncation(top_k=8))
HEADED = LocalProbs(payload=ProbsPayload.HEAD, head=64)
OPEN = DecodingOpen(
    *HEAD,
    prompt="What is it?",
    committed_ids=(4, 299),
    documents=(ContextDocument("a note", 0.5), ContextDocument("another", -1.25)),
    sampling=SamplingParams(0.5, 20, 0.75),
    seed=2**64 - 1,
    side=Side.CLOUD,
    probs=SPARSE,
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
    max_tokens=20,
    document_tokens=(64, 12),
)
PROBS = sparse_wire_probs(np.eye(V, dtype=np.float32)[5] * 0.5 + np.float32(0.5) / V, "float16")
DRAFT = SideDraftFrame(*HEAD, token_id=5, probs=None, log_mass=0.25, committed=9, decode_s=0.5)


def requested(message: DecodeRequestMessage) -> DecodeRequestMessage:
    raw = AggregatorCodec(SPARSE).encode(message).SerializeToString()
    return DecoderCodec(V, 512).decode(pb.DecodeRequest.FromString(raw))


def answered(
    messages: list[DecodeResponseMessage], probs: LocalProbs = SPARSE
) -> list[DecodeResponseMessage]:
    decoder, aggregator = DecoderCodec(V, 512), AggregatorCodec(probs)
    decoder.decode(aggregator.encode(replace(OPEN, probs=probs)))
    frames = [decoder.encode(message).SerializeToString() for message in messages]
    return [aggregator.decode(pb.DecodeResponse.FromString(frame)) for frame in frames]


def test_ids_alone_carry_no_distribution() -> None:
    choices = LocalProbs(Draw.GUMBEL, ProbsPayload.NONE)
    assert answered([OPENED, DRAFT], choices)[1] == DRAFT
    aggregator = AggregatorCodec(choices)
    aggregator.decode(DecoderCodec(V, 512).encode(OPENED))
    with pytest.raises(InvalidArgument, match="probs"):
        aggregator.decode(pb.DecodeResponse(draft=pb.Draft(token_id=5, probs=b"abc")))


@pytest.mark.parametrize(
    ("frame", "field"),
    [
        (pb.DecodeRequest(), "message"),
        (pb.DecodeRequest(target=pb.Target(token_ids=[V])), "token_ids"),
        (pb.DecodeRequest(target=pb.Target(token_ids=[1] * 513)), "token_ids"),
        (pb.DecodeRequest(open=pb.Open(text="x", max_tokens=1, stop=["s"] * 17)), "stop"),
        (pb.DecodeRequest(open=pb.Open(text="x", max_tokens=1, stop=["s" * 257])), "stop"),
        (pb.DecodeRequest(open=pb.Open(text="x", committed_ids=[1] * 513)), "committed_ids"),
        (pb.DecodeRequest(open=pb.Open(max_tokens=1, token_ids=TokenIds(ids=[1] * 513))), "prompt"),
        (pb.DecodeRequest(open=pb.Open(max_tokens=1)), "prompt"),
        (pb.DecodeRequest(open=pb.Open(text="x")), "max_tokens"),
        (pb.DecodeRequest(open=pb.Open(text="x", max_tokens=1, side=2)), "side"),
        (pb.DecodeRequest(open=pb.Open(text="x", max_tokens=1, ahead=999)), "ahead"),
        (pb.DecodeRequest(open=pb.Open(text="x", max_tokens=1)), "draw"),
    ],
)
def test_bad_requests_name_their_field(frame: pb.DecodeRequest, field: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        DecoderCodec(V, 512).decode(frame)
    assert caught.value.field == field


@pytest.mark.parametrize(
    ("draft", "field"),
    [
        (pb.Draft(token_id=V), "token_id"),
        (pb.Draft(token_id=1, probs=b"\x01"), "probs"),
        (pb.Draft(token_id=1, log_mass=math.nan), "probs"),
        (pb.Draft(token_id=1, decode_s=-1), "probs"),
    ],
)
def test_bad_drafts_name_their_field(draft: pb.Draft, field: str) -> None:
    aggregator = AggregatorCodec(SPARSE)
    aggregator.decode(DecoderCodec(V, 512).encode(OPENED))
    with pytest.raises(InvalidArgument) as caught:
        aggregator.decode(pb.DecodeResponse(draft=draft))
    assert caught.value.field == field
