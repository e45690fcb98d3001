"""What is encoded at one end is decoded at the other, whole; what no honest end sends is named."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest

from tandem.core.codecs import Precision, wire_law
from tandem.core.errors import InvalidArgument
from tandem.core.laws import Sampling
from tandem.core.prompt import Turn
from tandem.core.sparse_answer import SparseAnswer
from tandem.core.sparse_laws import sparse_law_to_bytes
from tandem.core.truncation import Truncation
from tandem.policy.choices import Control, Predraft, Uplink
from tandem.policy.draft_laws import law_to_draft_from
from tandem.policy.presets import PRESETS, Preset
from tandem.protocol.cloud import CloudModel
from tandem.protocol.liveness import LostCloud
from tandem.protocol.messages import (
    Cancel,
    CloudMessage,
    Draft,
    EarlyVerdict,
    EdgeMessage,
    FullAnswer,
    FullLaw,
    GoingAway,
    NeedFullLaw,
    Open,
    Opened,
    Ping,
    Pong,
    Recovered,
    Tokens,
    Verdict,
    Work,
)
from tandem.rpc.convert_verifier import CloudCodec, EdgeCodec, describe_model
from tandem.rpc.generation import GenerationRequest, request_from_proto, request_to_proto
from tandem_api.common.v1 import generation_pb2
from tandem_api.verifier.v1 import verifier_pb2 as pb

VOCABULARY = 8
HUGE = 2**32 - 1
HEAD = (HUGE, 3, 70_000, 2**64 - 1)
MODEL = CloudModel("target", "abc", VOCABULARY, 512, frozenset({0, 7}), 64)
LAW = np.array([0.5, 0.25, 0.125, 0.0625, 0.0625, 0, 0, 0], dtype=np.float32)
ANSWER = SparseAnswer(
    np.array([0, 2]),
    np.array([0.5, 0.25], dtype=np.float32),
    0.25,
    np.array([5, 5]),
    np.array([0.125, 0.125], dtype=np.float32),
)
HALVED = replace(PRESETS["dsd"], uplink_precision="float16")
WORK = Work(0.5, 0.25, 3, 9, 4)


def told(preset: Preset) -> Preset:
    """As the cloud hears of it: how the edge drafts and sends is the edge's own business."""
    schedule = replace(preset.schedule, chunk=preset.schedule.window, token_by_token=False)
    return replace(
        preset,
        schedule=schedule,
        predraft=Predraft.OFF,
        predraft_workers=PRESETS["ar"].predraft_workers,
        predraft_outcomes=PRESETS["ar"].predraft_outcomes,
        control=Control.FIXED,
    )


def opening(preset: str) -> Open:
    return Open(
        *HEAD,
        vocabulary_hash="abc",
        vocabulary_size=VOCABULARY,
        prompt_ids=(1, HUGE),
        committed_ids=(2,),
        sampling=Sampling(0.5, 3, 0.75),
        seed=2**64 - 1,
        max_tokens=HUGE,
        ignore_eos=True,
        preset=replace(told(PRESETS[preset]), answer_top=5, answer_tail_draws=2),
    )


EDGE_MESSAGES: list[EdgeMessage] = [
    *(opening(preset) for preset in PRESETS),
    Draft(*HEAD, token_ids=(1, HUGE), end_of_chunk=True),
    Draft(*HEAD, token_ids=(1, 2), end_of_chunk=False, probabilities=(0.5, 0.25), hold=True),
    Draft(*HEAD, token_ids=(1, 2), end_of_chunk=True, laws=np.stack([LAW, LAW[::-1]])),
    Recovered(*HEAD, token_id=HUGE),
    NeedFullLaw(*HEAD),
    Cancel(*HEAD),
    Ping(*HEAD, nonce=HUGE),
]

CLOUD_MESSAGES: list[CloudMessage] = [
    Opened(*HEAD, 64, 512, frozenset({0, 7}), "target", exits=3),
    EarlyVerdict(*HEAD, exit_index=0, accepted=3, rejected=False, outcome=0, confidence=0.5),
    EarlyVerdict(*HEAD, exit_index=3, accepted=0, rejected=True, outcome=ANSWER, confidence=1.0),
    Verdict(*HEAD, accepted=3, rejected=False, outcome=None, work=WORK),
    Verdict(*HEAD, accepted=0, rejected=True, outcome=7, work=WORK),
    Verdict(*HEAD, accepted=0, rejected=False, outcome=0, work=WORK),
    Verdict(*HEAD, accepted=1, rejected=True, outcome=FullAnswer(LAW), work=WORK),
    Verdict(*HEAD, accepted=1, rejected=True, outcome=ANSWER, work=WORK),
    Tokens(*HEAD, token_ids=(1, 7), work=WORK),
    FullLaw(*HEAD, target_probs=LAW),
    GoingAway(*HEAD, grace_s=2.5),
    Pong(*HEAD, nonce=HUGE),
]


def assert_same(one: Any, other: Any) -> None:
    """Equal in type and every field, arrays included."""
    assert type(one) is type(other)
    if isinstance(one, np.ndarray):
        np.testing.assert_array_equal(one, other)
    elif hasattr(one, "__dataclass_fields__"):
        for field in fields(one):
            assert_same(getattr(one, field.name), getattr(other, field.name))
    else:
        assert one == other


@pytest.mark.parametrize("message", EDGE_MESSAGES, ids=lambda m: type(m).__name__)
def test_edge_messages_arrive_as_they_were_sent(message: EdgeMessage) -> None:
    frame = EdgeCodec(VOCABULARY, PRESETS["dsd"]).encode(message)
    raw = frame.SerializeToString()
    assert_same(CloudCodec(MODEL).decode(pb.VerifyRequest.FromString(raw)), message)


@pytest.mark.parametrize("message", CLOUD_MESSAGES, ids=lambda m: type(m).__name__)
def test_cloud_messages_arrive_as_they_were_sent(message: CloudMessage) -> None:
    raw = CloudCodec(MODEL).encode(message).SerializeToString()
    decoded = EdgeCodec(VOCABULARY, PRESETS["dsd"]).decode(pb.VerifyResponse.FromString(raw))
    assert_same(decoded, message)


@pytest.mark.parametrize("precision", ["float32", "float16"])
def test_sparse_laws_travel_whole(precision: Precision) -> None:
    preset = replace(PRESETS["tslt"], uplink_precision=precision, truncation=Truncation(3, 0.75))
    edge, cloud = EdgeCodec(VOCABULARY, preset), CloudCodec(MODEL)
    opened = replace(opening("tslt"), preset=preset)
    assert_same(cloud.decode(edge.encode(opened)), opened)
    law = law_to_draft_from(LAW, preset)
    assert np.count_nonzero(law) == 2
    sent = Draft(*HEAD, token_ids=(1, 0), end_of_chunk=True, laws=np.stack([law, law]))
    frame = edge.encode(sent)
    assert [len(raw) for raw in frame.draft.sparse_laws] == [5 if precision == "float16" else 9] * 2
    assert_same(cloud.decode(frame), sent)


@pytest.mark.parametrize("uplink", [Uplink.SPARSE_LAWS, Uplink.FULL_LAWS])
def test_a_tree_travels_whole(uplink: Uplink) -> None:
    preset = replace(PRESETS["mc-dsd"], uplink=uplink, with_replacement=True)
    edge, cloud = EdgeCodec(VOCABULARY, preset), CloudCodec(MODEL)
    opened = replace(opening("mc-dsd"), preset=preset)
    assert_same(cloud.decode(edge.encode(opened)), opened)
    law = law_to_draft_from(LAW, preset)
    laws = np.stack([law, law])
    sent = Draft(*HEAD, (1, 0, 2), end_of_chunk=True, laws=laws, parents=(-1, -1, 1))
    assert_same(cloud.decode(edge.encode(sent)), sent)
    verdict = Verdict(*HEAD, accepted=2, rejected=False, outcome=3, work=WORK, path=(1, 2))
    assert_same(edge.decode(cloud.encode(verdict)), verdict)


@pytest.mark.parametrize("count", [3, 65])
def test_more_sparse_laws_than_drafts_cost_nothing(count: int) -> None:
    cloud = CloudCodec(MODEL)
    frame = pb.VerifyRequest()
    frame.draft.token_ids.extend([1] * (2 if count == 3 else count))
    frame.draft.sparse_laws.extend([sparse_law_to_bytes(LAW, "float32")] * count)
    with pytest.raises(InvalidArgument, match=r"^sparse_laws: "):
        cloud.decode(frame)


def test_laws_travel_in_the_opened_precision() -> None:
    """Bit for bit what the edge itself drew from."""
    precise = opening("dsd")
    halved = replace(precise, preset=replace(precise.preset, uplink_precision="float16"))
    law = np.random.default_rng(0).dirichlet(np.ones(VOCABULARY)).astype(np.float32)
    edge, cloud = EdgeCodec(VOCABULARY, HALVED), CloudCodec(MODEL)
    cloud.decode(edge.encode(halved))
    sent = Draft(*HEAD, token_ids=(1,), end_of_chunk=True, laws=wire_law(law, "float16")[None])
    frame = edge.encode(sent)
    assert len(frame.draft.laws) == 2 * VOCABULARY
    assert_same(cloud.decode(frame), sent)


def test_a_model_s_description_is_whole() -> None:
    described = describe_model(MODEL, "cpu", "float32")
    assert described.model_name == "target"
    assert list(described.eos_token_ids) == [0, 7]
    assert (described.vocabulary_size, described.context_length) == (VOCABULARY, 512)
    assert (described.vocabulary_hash, described.device, described.dtype) == (
        "abc",
        "cpu",
        "float32",
    )


def verdict(**fields_: Any) -> pb.VerifyResponse:
    return pb.VerifyResponse(verdict=pb.Verdict(**fields_))


def sparse(**fields_: Any) -> pb.VerifyResponse:
    good: dict[str, Any] = {"ids": [0, 2], "probabilities": [0.5, 0.25], "tail_mass": 0.25}
    return verdict(rejected=True, sparse=pb.SparseAnswer(**(good | fields_)))


BAD_ANSWERS = [
    (verdict(token_id=VOCABULARY), "token_id"),
    (verdict(token_id=HUGE), "token_id"),
    (verdict(full_law=pb.Law(probabilities=b"")), "probabilities"),
    (verdict(full_law=pb.Law(probabilities=b"\0" * 31)), "probabilities"),
    (verdict(full_law=pb.Law(probabilities=b"\0" * 32)), "probabilities"),
    (verdict(work=pb.Work(verify_s=math.nan)), "verify_s"),
    (verdict(work=pb.Work(queue_s=-1)), "queue_s"),
    (verdict(work=pb.Work(queue_s=math.inf)), "queue_s"),
    (sparse(ids=[2, 0]), "ids"),
    (sparse(ids=[2, 2]), "ids"),
    (sparse(ids=[0, VOCABULARY]), "ids"),
    (sparse(ids=[0, HUGE]), "ids"),
    (sparse(ids=[0]), "probs"),
    (sparse(probabilities=[0.5, math.nan]), "probs"),
    (sparse(probabilities=[0.5, -0.25]), "probs"),
    (sparse(probabilities=[0.5, 1.5]), "probs"),
    (sparse(tail_mass=math.nan), "tail_mass"),
    (sparse(tail_mass=-0.5), "tail_mass"),
    (sparse(tail_ids=[2], tail_probabilities=[0.1]), "tail_ids"),
    (sparse(tail_ids=[VOCABULARY], tail_probabilities=[0.1]), "tail_ids"),
    (sparse(tail_ids=[5], tail_probabilities=[0.0]), "tail_probs"),
    (pb.VerifyResponse(tokens=pb.Tokens(token_ids=[1, VOCABULARY])), "token_ids"),
    (pb.VerifyResponse(full_law=pb.Law(probabilities=b"\0")), "probabilities"),
    (pb.VerifyResponse(), "message"),
]


@pytest.mark.parametrize(("frame", "field"), BAD_ANSWERS, ids=[field for _, field in BAD_ANSWERS])
def test_an_answer_no_honest_cloud_sends_is_named(frame: pb.VerifyResponse, field: str) -> None:
    with pytest.raises(InvalidArgument) as refusal:
        EdgeCodec(VOCABULARY, PRESETS["dsd"]).decode(frame)
    assert refusal.value.field == field


REQUESTS = [
    GenerationRequest("text"),
    GenerationRequest((1, HUGE), "ar"),
    GenerationRequest((Turn("user", "hello"), Turn("assistant", "hi"))),
    GenerationRequest(
        "all",
        "dssd",
        Sampling(0.5, 4, 0.75),
        max_tokens=HUGE,
        seed=2**64 - 1,
        stop=("a", "b"),
        draft_length=7,
        answer_top=0,
        answer_tail_draws=0,
        draft_top_k=5,
        draft_top_p=0.5,
        lost_cloud=LostCloud.EDGE,
        ignore_eos=True,
    ),
    GenerationRequest("tree", "mc-dsd", expansion=(3, 1, 2)),
    GenerationRequest("greedy", sampling=Sampling(0.0), lost_cloud=LostCloud.WAIT),
]


@pytest.mark.parametrize("request_", REQUESTS)
def test_requests_arrive_as_they_were_made(request_: GenerationRequest) -> None:
    raw = request_to_proto(request_).SerializeToString()
    assert request_from_proto(generation_pb2.Generation.FromString(raw)) == request_


@pytest.mark.parametrize(
    "request_",
    [
        GenerationRequest((1, -1)),
        GenerationRequest((2**32,)),
        GenerationRequest("a", max_tokens=-1),
        GenerationRequest("a", seed=-1),
        GenerationRequest("a", seed=2**64),
        GenerationRequest("a", draft_length=-1),
        GenerationRequest("a", sampling=Sampling(top_k=-1)),
    ],
)
def test_numbers_that_cannot_travel_are_refused_before(request_: GenerationRequest) -> None:
    with pytest.raises(InvalidArgument):
        request_to_proto(request_)


BAD_REQUESTS: list[tuple[Callable[[generation_pb2.Generation], object], str]] = [
    (lambda message: message.ClearField("text"), "prompt"),
    (lambda message: setattr(message, "max_tokens", 0), "max_tokens"),
    (lambda message: setattr(message, "preset", "nonsense"), "preset"),
    (lambda message: setattr(message, "draft_length", 0), "draft_length"),
    (lambda message: setattr(message, "draft_length", 65), "draft_length"),
    (lambda message: setattr(message, "draft_top_k", 2**31), "draft_top_k"),
    (lambda message: message.expansion.extend((2, 0)), "expansion"),
    (lambda message: message.expansion.extend((65,)), "expansion"),
    (lambda message: setattr(message, "draft_top_p", 0.0), "draft_top_p"),
    (lambda message: setattr(message, "draft_top_p", 1.5), "draft_top_p"),
    (lambda message: setattr(message, "draft_top_p", math.nan), "draft_top_p"),
    (lambda message: message.stop.append(""), "stop"),
    (lambda message: message.stop.append("x" * 257), "stop"),
    (lambda message: message.stop.extend("x" * 17), "stop"),
]


@pytest.mark.parametrize(("change", "field"), BAD_REQUESTS)
def test_a_bad_request_is_named(
    change: Callable[[generation_pb2.Generation], object], field: str
) -> None:
    message = request_to_proto(GenerationRequest("a"))
    change(message)
    with pytest.raises(InvalidArgument) as refusal:
        request_from_proto(message)
    assert refusal.value.field == field
