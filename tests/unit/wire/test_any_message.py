"""Properties of all codecs: what honest ends send comes through whole, and nothing that anybody can
send raises anything but what a decoder declares."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from google.protobuf.message import Message
from hypothesis import given
from hypothesis import strategies as st

from tandem.core.errors import ProtocolError
from tandem.core.sparse_payload import FullPayload
from tandem.core.tokens import TokenSource
from tandem.generation.client import Generated
from tandem.generation.request import GenerationRequest, request_from_proto, request_to_proto
from tandem.specdec import messages as specdec
from tandem.specdec.choices import CloudDrafts
from tandem.specdec.cloud_checks import CloudModel
from tandem.specdec.liveness import LostCloud
from tandem.specdec.presets import PRESETS
from tandem.specdec.rounds import messages as rounds
from tandem.two_sided.protocol import messages
from tandem.two_sided.protocol.mixture import Side
from tandem.two_sided.protocol.presets import AGGREGATION_PRESETS, LocalProbs
from tandem.two_sided.protocol.top_list import top_list
from tandem.two_sided.serving.decoder_codec import (
    AggregatorCodec,
    DecoderCodec,
    part_from_proto,
    part_to_proto,
)
from tandem.two_sided.serving.peer_codec import CloudSideCodec, DeviceCodec
from tandem.wire.verifier_codec import CloudCodec, EdgeCodec
from tandem_api.aggregator.v1 import aggregator_pb2
from tandem_api.common.v1 import generation_pb2
from tandem_api.decoding.v1 import decoding_pb2
from tandem_api.retriever.v1 import retriever_pb2
from tandem_api.verifier.v1 import verifier_pb2
from tests.fuzz.wire_targets import WIRE_TARGETS
from tests.properties import share
from tests.unit.wire import message_strategies as some
from tests.unit.wire.message_strategies import VOCABULARY as V
from tests.unit.wire.message_strategies import any_message, tuples_of
from tests.unit.wire.test_verifier_codec import assert_same

Head = tuple[int, int, int]
KINDS: dict[str, type[Message]] = {
    "verify_request": verifier_pb2.VerifyRequest,
    "verify_response": verifier_pb2.VerifyResponse,
    "generate_request": generation_pb2.GenerateRequest,
    "generate_response": generation_pb2.GenerateResponse,
    "collaborate_request": aggregator_pb2.CollaborateRequest,
    "collaborate_response": aggregator_pb2.CollaborateResponse,
    "decode_request": decoding_pb2.DecodeRequest,
    "decode_response": decoding_pb2.DecodeResponse,
    "import_documents": decoding_pb2.ImportDocumentsRequest,
    "export_documents": decoding_pb2.ExportDocumentsRequest,
    "ingest_request": retriever_pb2.IngestRequest,
    "list_request": retriever_pb2.ListRequest,
    "search_request": retriever_pb2.SearchRequest,
}
CONTEXT = 512
MODEL = CloudModel("m", "h", V, CONTEXT, frozenset({0}), 64, 4)


@pytest.mark.parametrize("name", WIRE_TARGETS)
def test_any_fields_raise_nothing_but_what_is_declared(name: str) -> None:
    @share(0.3 if name == "verify_request" else 1)  # five streams each
    @given(any_message(KINDS[name]))
    def decodes(message: Message) -> None:
        WIRE_TARGETS[name](message.SerializeToString())

    decodes()


@given(st.sampled_from(sorted(WIRE_TARGETS)), st.binary(max_size=64))
def test_any_bytes_raise_nothing_but_what_is_declared(name: str, raw: bytes) -> None:
    WIRE_TARGETS[name](raw)


def sent(kind: type[Message], message: Message) -> Any:
    """Over the wire."""
    return kind.FromString(message.SerializeToString())


openings = st.builds(
    specdec.Open,
    *(some.uint32, some.uint32, some.uint64),
    vocabulary_hash=st.text(),
    vocabulary_size=some.uint32,
    prompt_ids=tuples_of(some.uint32),
    committed_ids=tuples_of(some.uint32),
    params=st.builds(
        specdec.GenerationParams,
        sampling=some.samplings,
        max_tokens=some.uint32,
        seed=some.uint64,
        ignore_eos=st.booleans(),
        images=tuples_of(st.binary(), 0, 4),
        logprobs=st.booleans(),
        top_logprobs=some.uint32,
        prompt_logprobs=st.booleans(),
        processors=some.processors,
    ),
    settings=st.sampled_from([preset.verify_settings for preset in PRESETS.values()]),
)


@given(openings)
def test_any_opening_comes_through(opening: specdec.Open) -> None:
    frame = sent(verifier_pb2.VerifyRequest, EdgeCodec(V, opening.settings).encode(opening))
    assert_same(CloudCodec(MODEL).decode(frame), opening)


@given(some.heads, st.data())
def test_any_frame_of_an_edge_comes_through(head: Head, data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(["dsd", "tslt", "dssd", "coupled", "mc-dsd"]))
    settings = replace(PRESETS[name].verify_settings, uplink_precision="float32")
    edge, cloud = EdgeCodec(V, settings), CloudCodec(MODEL)
    plain = specdec.Open(*head, "h", V, (1,), (), specdec.GenerationParams(), settings)
    cloud.decode(edge.encode(plain))
    count = data.draw(st.integers(1, 3))
    rows = data.draw(st.lists(some.sparse_distributions, min_size=count, max_size=count))
    draft = specdec.Drafts(
        *head,
        token_ids=data.draw(tuples_of(some.uint32, count, count)),
        end_of_chunk=data.draw(st.booleans()),
        probabilities=data.draw(st.none() | tuples_of(some.float32s, 1, count)),
        distributions=np.stack(rows) if settings.carries_probs else None,
        parents=data.draw(st.none() | tuples_of(st.integers(-(2**31), 2**31 - 1), 1, count)),
    )
    others = [
        rounds.Recovered(*head, token_id=data.draw(some.uint32)),
        rounds.NeedFullDistribution(*head),
        specdec.Cancel(*head),
        specdec.Ping(*head, nonce=data.draw(some.uint32)),
    ]
    messages: list[Any] = [draft, *others]
    for message in messages:
        found = cloud.decode(sent(verifier_pb2.VerifyRequest, edge.encode(message)))
        assert_same(found, message)


@given(some.heads, st.data())
def test_any_frame_of_a_cloud_comes_through(head: Head, data: st.DataObject) -> None:
    cloud, edge = CloudCodec(MODEL), EdgeCodec(V, PRESETS["dssd"].verify_settings)
    outcome = st.one_of(some.token_ids, some.sparse_payloads())
    whole = some.distributions()
    token_ids = data.draw(tuples_of(some.token_ids))
    payload = st.one_of(st.none(), some.sparse_payloads(), whole.map(FullPayload))
    committed = specdec.Committed(
        *head,
        accepted=data.draw(some.uint32),
        token_ids=token_ids,
        work=data.draw(some.works),
        logprobs=data.draw(some.logprobs(3)),
        cloud_accepted=data.draw(some.uint32),
        draw_from=data.draw(payload),
        path=data.draw(tuples_of(some.uint32)),
    )
    early = rounds.EarlyVerdict(
        *head,
        *(data.draw(some.uint32), data.draw(some.uint32), data.draw(st.booleans())),
        data.draw(outcome),
        data.draw(st.floats(0, 1, width=32)),
    )
    told_of = data.draw(some.logprobs(len(token_ids)))
    opened = specdec.Opened(
        *head,
        max_draft_length=data.draw(some.uint32),
        eos_token_ids=MODEL.eos_token_ids,
        model_name=MODEL.model_name,
        cached_tokens=data.draw(some.uint32),
        same_bits=data.draw(st.booleans()),
        batch_invariant=data.draw(st.booleans()),
        row_share=data.draw(st.none() | st.floats(0, 1, width=32)),
        drafts_never_pay=data.draw(st.booleans()),
        cloud_drafts=data.draw(st.sampled_from(sorted({*CloudDrafts} - {CloudDrafts.ANY}))),
    )
    others = [
        opened,
        specdec.PromptLogprobs(*head, first=data.draw(some.uint32), logprobs=told_of),
        rounds.FullDistribution(*head, data.draw(whole)),
        specdec.GoingAway(*head),
        specdec.Pong(*head, data.draw(some.uint32)),
    ]
    messages: list[Any] = [committed, early, *others]
    for message in messages:
        found = edge.decode(sent(verifier_pb2.VerifyResponse, cloud.encode(message)))
        assert_same(found, message)


requests = st.builds(
    GenerationRequest,
    prompt=some.prompts,
    preset=st.sampled_from(sorted(PRESETS)),
    stop=tuples_of(st.text(min_size=1, max_size=9)),
    lost_cloud=st.sampled_from(LostCloud),
    params=st.builds(
        specdec.GenerationParams,
        sampling=some.samplings,
        max_tokens=st.integers(1, 2**32 - 1),
        seed=some.uint64,
        ignore_eos=st.booleans(),
        images=tuples_of(st.binary(min_size=1), 0, 4),
    ),
)


@given(requests)
def test_any_request_comes_through(request: GenerationRequest) -> None:
    assert request_from_proto(sent(generation_pb2.Generation, request_to_proto(request))) == request


documents = st.builds(messages.ContextDocument, st.text(), st.floats(-1e9, 1e9), st.booleans())


@given(some.heads, st.data())
def test_any_frame_between_aggregators_comes_through(head: Head, data: st.DataObject) -> None:
    names = {"dragon-lossy", "drcg-text", "drcg-kv"}  # no choice of these is told
    name = data.draw(st.sampled_from(sorted(set(AGGREGATION_PRESETS) - names)))
    preset = AGGREGATION_PRESETS[name]
    ids = tuples_of(some.token_ids, 1)
    request = messages.AggregationRequest(
        *(head[0], data.draw(ids), "h", V, data.draw(some.samplings), data.draw(some.uint64)),
        max_tokens=data.draw(st.integers(9, 2**32 - 1)),
        preset=replace(preset, probs=replace(preset.probs, precision="float32")),
        committed_ids=data.draw(tuples_of(some.token_ids)),
        eos_token_ids=frozenset(data.draw(ids)),
        query=data.draw(st.text()),
        documents=data.draw(st.integers(0, 64)),
        processors=data.draw(some.processors),
    )
    opening = messages.CollaborationOpen(*head, request, data.draw(some.log_masses))
    device, cloud = DeviceCodec(V, LocalProbs(precision="float32")), CloudSideCodec()
    request_kind = aggregator_pb2.CollaborateRequest
    assert_same(cloud.decode(sent(request_kind, device.encode(opening))), opening)
    cloud = CloudSideCodec()
    sparse = replace(request, preset=replace(preset, probs=LocalProbs(precision="float32")))
    cloud.decode(device.encode(replace(opening, request=sparse)))
    cloud.opened(V)
    probs = data.draw(some.sparse_distributions)
    carried = data.draw(st.sampled_from([None, probs, top_list(probs, 3)]))
    token_ids = data.draw(tuples_of(some.token_ids))
    sources = tuple(data.draw(st.sampled_from(TokenSource)) for _ in token_ids)
    draft = messages.SideDraftFrame(
        *(*head, data.draw(some.token_ids), carried, data.draw(some.log_masses)),
        *(data.draw(some.uint32), data.draw(some.seconds), data.draw(some.seconds)),
    )
    target = messages.TargetFrame(*head, token_ids, data.draw(st.booleans()), sources)
    for message in (draft, target, messages.Fetch(*head, data.draw(st.integers(1, V)))):
        assert_same(cloud.decode(sent(request_kind, device.encode(message))), message)
        answer = sent(aggregator_pb2.CollaborateResponse, cloud.encode(message))
        assert_same(device.decode(answer), message)
    masses, limits = some.log_masses, st.integers(1, 99)
    opened = messages.CollaborationOpened(*head, data.draw(masses), data.draw(limits), 2, 9)
    answer = sent(aggregator_pb2.CollaborateResponse, cloud.encode(opened))
    assert_same(device.decode(answer), opened)


@given(some.heads, st.data())
def test_any_frame_of_a_decoder_s_stream_comes_through(head: Head, data: st.DataObject) -> None:
    probs = LocalProbs(precision="float32")
    aggregator, decoder = AggregatorCodec(probs), DecoderCodec(V, CONTEXT)
    opening = messages.DecodingOpen(
        *head,
        prompt=data.draw(some.prompts),
        committed_ids=data.draw(tuples_of(some.token_ids)),
        documents=data.draw(tuples_of(documents)),
        sampling=data.draw(some.samplings),
        seed=data.draw(some.uint64),
        side=data.draw(st.sampled_from(Side)),
        probs=probs,
        ahead=data.draw(st.integers(0, 64)),
        max_tokens=data.draw(st.integers(1, 2**32 - 1)),
        wants_text=data.draw(st.booleans()),
        stop=data.draw(tuples_of(st.text(min_size=1, max_size=9))),
        reweigh_every=data.draw(st.integers(0, 4096)),
        wants_token_texts=data.draw(st.booleans()),
        processors=data.draw(some.processors),
        end_ids=data.draw(tuples_of(some.token_ids)),
    )
    target = messages.DecodingTarget(*head, data.draw(tuples_of(some.token_ids)), last=True)
    for message in (opening, target):
        frame = sent(decoding_pb2.DecodeRequest, aggregator.encode(message))
        assert_same(decoder.decode(frame), message)
    opened = messages.DecodingOpened(
        *(*head, "m", "h", V, CONTEXT, frozenset({0}), data.draw(tuples_of(some.token_ids))),
        *(data.draw(some.log_masses), data.draw(some.uint32)),
        document_tokens=data.draw(tuples_of(some.uint32)),
    )
    drawn = data.draw(some.token_ids), data.draw(some.sparse_distributions)
    draft = messages.SideDraftFrame(
        *head, *drawn, data.draw(some.log_masses), 7, data.draw(some.seconds)
    )
    text = messages.DecodingText(*head, data.draw(st.text()), data.draw(some.uint32))
    for answer in (opened, draft, text):
        frame = sent(decoding_pb2.DecodeResponse, decoder.encode(answer))
        assert_same(aggregator.decode(frame), answer)


@share(0.5)
@given(
    st.one_of(
        st.binary(min_size=1, max_size=64),
        st.integers(0, 2**64 - 1),
    )
)
def test_any_part_of_a_document_s_keys_and_values_comes_through(part: Any) -> None:
    assert part_from_proto(sent(decoding_pb2.ExportDocumentsResponse, part_to_proto(part))) == part


@pytest.mark.parametrize(
    ("field", "two"),
    [
        ("token_sources", [1, 2]),
        ("logprobs", [-0.5, -1.0]),
        ("top_logprobs", [generation_pb2.TopLogprobs()] * 2),
        ("token_texts", ["a", "b"]),
        ("token_bytes", [b"a", b"b"]),
    ],
)
def test_what_is_told_of_tokens_is_told_of_each_or_of_none(field: str, two: list[Any]) -> None:
    """Or what later messages tell would be taken for other tokens'."""
    result = Generated()
    for token_ids in ([], [7], [7, 8, 9]):
        committed = generation_pb2.Committed(text="a", token_ids=token_ids)
        getattr(committed, field).extend(two)
        with pytest.raises(ProtocolError, match=field):
            result.take(committed, 0.5)
    assert result == Generated(), "nothing was taken"
    committed.token_ids[:] = [7, 8]
    result.take(committed, 0.5)
    assert result.token_ids == [7, 8]
