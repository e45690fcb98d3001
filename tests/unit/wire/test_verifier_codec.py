"""What is encoded at one end is decoded at the other, in the precision that was opened; what no
honest end sends is named. Frames of every kind, with any values, are in test_any_message.py, and
what each may be wrong in, in tests/faults_of_frames.py."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest

from tandem.core.codecs import Precision, wire_probs
from tandem.core.default_sampling import DefaultSampling
from tandem.core.errors import InvalidArgument
from tandem.core.probs import SamplingParams, Truncation
from tandem.core.prompt import Turn
from tandem.generation.request import GenerationRequest, request_from_proto, request_to_proto
from tandem.specdec.cloud_checks import CloudModel
from tandem.specdec.drafting import probs_to_draft_from
from tandem.specdec.liveness import LostCloud
from tandem.specdec.messages import (
    Drafts,
    GenerationParams,
    Open,
)
from tandem.specdec.presets import PRESETS
from tandem.specdec.rounds.messages import (
    HiddenStates,
)
from tandem.wire.common_codec import default_sampling_from_proto
from tandem.wire.verifier_codec import CloudCodec, EdgeCodec, describe_model
from tandem_api.common.v1 import generation_pb2
from tandem_api.verifier.v1 import verifier_pb2 as pb

VOCABULARY = 8
HUGE = 2**32 - 1
HEAD = (HUGE, 70_000, 2**64 - 1)
MODEL = CloudModel(
    "target", "abc", VOCABULARY, 512, frozenset({0, 7}), 64, layer_count=6, hidden_size=2
)
PROBS = np.array([0.5, 0.25, 0.125, 0.0625, 0.0625, 0, 0, 0], dtype=np.float32)
HALVED = replace(PRESETS["dsd"], uplink_precision="float16")


def opening(preset: str) -> Open:
    return Open(
        *HEAD,
        vocabulary_hash="abc",
        vocabulary_size=VOCABULARY,
        prompt_ids=(1, HUGE),
        committed_ids=(2,),
        params=GenerationParams(
            sampling=SamplingParams(0.5, 3, 0.75), seed=2**64 - 1, max_tokens=HUGE, ignore_eos=True
        ),
        settings=replace(PRESETS[preset].verify_settings, payload_top=5, payload_tail_draws=2),
    )


def opened_cloud(opened: Open | None = None) -> CloudCodec:
    """The cloud's end of a stream that is open."""
    opened = opened or opening("dsd")
    cloud = CloudCodec(MODEL)
    cloud.decode(EdgeCodec(VOCABULARY, opened.settings).encode(opened))
    return cloud


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


@pytest.mark.parametrize("precision", ["float32", "float16"])
def test_sparse_distributions_travel_whole(precision: Precision) -> None:
    preset = replace(PRESETS["tslt"], uplink_precision=precision, truncation=Truncation(3, 0.75))
    edge, cloud = EdgeCodec(VOCABULARY, preset.verify_settings), CloudCodec(MODEL)
    opened = replace(opening("tslt"), settings=preset.verify_settings)
    assert_same(cloud.decode(edge.encode(opened)), opened)
    probs = probs_to_draft_from(PROBS, preset)
    assert np.count_nonzero(probs) == 2
    sent = Drafts(
        *HEAD, token_ids=(1, 0), end_of_chunk=True, distributions=np.stack([probs, probs])
    )
    frame = edge.encode(sent)
    assert [len(raw) for raw in frame.drafts.sparse_probs] == [
        5 if precision == "float16" else 9
    ] * 2
    assert_same(cloud.decode(frame), sent)


def test_distributions_travel_in_the_opened_precision() -> None:
    """Bit for bit what the edge itself drew from."""
    precise = opening("dsd")
    halved = replace(precise, settings=replace(precise.settings, uplink_precision="float16"))
    probs = np.random.default_rng(0).dirichlet(np.ones(VOCABULARY)).astype(np.float32)
    edge, cloud = EdgeCodec(VOCABULARY, HALVED.verify_settings), CloudCodec(MODEL)
    cloud.decode(edge.encode(halved))
    sent = Drafts(
        *HEAD, token_ids=(1,), end_of_chunk=True, distributions=wire_probs(probs, "float16")[None]
    )
    frame = edge.encode(sent)
    assert len(frame.drafts.distributions) == 2 * VOCABULARY
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


def test_what_a_model_recommends_is_part_of_its_description() -> None:
    recommended = DefaultSampling(temperature=0.7, top_p=0.95, top_k=0)
    described = describe_model(MODEL, default_sampling=recommended)
    assert default_sampling_from_proto(described) == recommended
    assert not describe_model(MODEL).HasField("default_sampling")


def committed(**fields_: Any) -> pb.VerifyResponse:
    return pb.VerifyResponse(committed=pb.Committed(**fields_))


def sparse(**fields_: Any) -> pb.VerifyResponse:
    good: dict[str, Any] = {"ids": [0, 2], "probabilities": [0.5, 0.25], "tail_mass": 0.25}
    return committed(sparse=pb.SparsePayload(**(good | fields_)))


BAD_ANSWERS = [
    (committed(token_ids=[1], path=[0] * 65), "path"),
    (committed(token_ids=[1], logprobs=[0.0] * 66), "logprobs"),
    (committed(token_ids=[1], top_logprobs=[pb.TopLogprobs()] * 66), "top_logprobs"),
    (
        committed(token_ids=[1], logprobs=[0.0], top_logprobs=[pb.TopLogprobs(token_ids=[1] * 21)]),
        "top_logprobs",
    ),
    (
        pb.VerifyResponse(prompt_logprobs=pb.PromptLogprobs(first=1, logprobs=[0.0] * 1025)),
        "logprobs",
    ),
    (
        pb.VerifyResponse(
            prompt_logprobs=pb.PromptLogprobs(logprobs=[0.0], top_logprobs=[pb.TopLogprobs()] * 2)
        ),
        "top_logprobs",
    ),
    (committed(full_distribution=pb.Distribution(probabilities=b"")), "probabilities"),
    (committed(full_distribution=pb.Distribution(probabilities=b"\0" * 32)), "probabilities"),
    (committed(work=pb.Work(queue_s=math.inf)), "queue_s"),
    (pb.VerifyResponse(opened=pb.Opened(cloud_drafts=9)), "cloud_drafts"),  # type: ignore[arg-type]
    (pb.VerifyResponse(opened=pb.Opened(cloud_drafts=pb.CLOUD_DRAFTS_ANY)), "cloud_drafts"),
    (sparse(ids=range(4097)), "ids"),
    (sparse(tail_ids=[5] * 257), "tail_ids"),
    (sparse(tail_ids=[2], tail_probabilities=[0.1]), "tail_ids"),
    (sparse(tail_ids=[5], tail_probabilities=[0.0]), "tail_probs"),
    (pb.VerifyResponse(full_distribution=pb.Distribution(probabilities=b"\0")), "probabilities"),
    (pb.VerifyResponse(opened=pb.Opened(row_share=1.5)), "row_share"),
    (pb.VerifyResponse(opened=pb.Opened(row_share=math.nan)), "row_share"),
]


@pytest.mark.parametrize(("frame", "field"), BAD_ANSWERS, ids=[field for _, field in BAD_ANSWERS])
def test_an_answer_no_honest_cloud_sends_is_named(frame: pb.VerifyResponse, field: str) -> None:
    with pytest.raises(InvalidArgument, match=rf"^{field}: "):
        EdgeCodec(VOCABULARY, PRESETS["dsd"].verify_settings).decode(frame)


REQUESTS = [
    GenerationRequest("text", "coupled"),
    GenerationRequest((1, HUGE), "ar"),
    GenerationRequest((Turn("user", "hello"), Turn("assistant", "hi")), "coupled"),
    GenerationRequest(
        "all",
        "dssd",
        GenerationParams(
            sampling=SamplingParams(0.5, 4, 0.75), max_tokens=HUGE, seed=2**64 - 1, ignore_eos=True
        ),
        stop=("a", "b"),
        lost_cloud=LostCloud.EDGE,
        overrides=(
            "draft_length=7",
            "payload_top=0",
            "payload_tail_draws=0",
            "truncation.top_k=5",
            "truncation.top_p=0.5",
        ),
    ),
    GenerationRequest("tree", "mc-dsd", overrides=("expansion=3,1,2",)),
    GenerationRequest(
        "greedy",
        "coupled",
        GenerationParams(sampling=SamplingParams(0.0)),
        lost_cloud=LostCloud.WAIT,
    ),
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
        GenerationRequest("a", params=GenerationParams(max_tokens=-1)),
        GenerationRequest("a", params=GenerationParams(seed=-1)),
        GenerationRequest("a", params=GenerationParams(seed=2**64)),
        GenerationRequest("a", params=GenerationParams(sampling=SamplingParams(top_k=-1))),
    ],
)
def test_numbers_that_cannot_travel_are_refused_before(request_: GenerationRequest) -> None:
    with pytest.raises(InvalidArgument):
        request_to_proto(request_)


BAD_REQUESTS: list[tuple[Callable[[generation_pb2.Generation], object], str]] = [
    (lambda message: message.ClearField("text"), "prompt"),
    (lambda message: setattr(message.params, "max_tokens", 0), "max_tokens"),
    (lambda message: setattr(message.params.sampling, "temperature", math.nan), "temperature"),
    (lambda message: setattr(message.params, "top_logprobs", 1), "top_logprobs"),
    (lambda message: setattr(message.params, "prompt_logprobs", True), "prompt_logprobs"),
    (lambda message: message.params.images.append(b""), "images"),
    (lambda message: setattr(message, "preset", "nonsense"), "preset"),
    (lambda message: setattr(message, "documents", 33), "documents"),
    (
        lambda message: message.overrides.extend(("expansion=999999999", "draft_length=1")),
        "expansion",
    ),
    (lambda message: message.params.images.extend([b"x"] * 5), "images"),
    (lambda message: message.token_ids.ids.extend([1] * (2**20 + 1)), "prompt"),
    (lambda message: [message.chat.messages.add() for _ in range(4097)], "prompt"),
    (lambda message: message.stop.append(""), "stop"),
    (lambda message: message.stop.append("x" * 257), "stop"),
    (lambda message: message.stop.extend("x" * 17), "stop"),
    *(
        (lambda message, override=override: message.overrides.append(override), field)
        for override, field in {
            "draft_length=0": "draft_length",
            "draft_length=65": "draft_length",
            "draft_length=-1": "draft_length",
            "draft_length=many": "draft_length",
            "expansion=" + "9," * 50 + "9": "expansion",
            f"truncation.top_k={2**31}": "draft_top_k",
            "expansion=2,0": "expansion",
            "expansion=65": "expansion",
            "expansion=": "expansion",
            "truncation.top_p=0": "draft_top_p",
            "truncation.top_p=1.5": "draft_top_p",
            "truncation.top_p=nan": "draft_top_p",
            "width=3": "overrides",
            "window": "overrides",
            "window=True": "overrides",
            "window=8.0": "overrides",
            "window=-1": "window",
            "uplink=" + "x" * 122: "overrides",
            "expansion=" + "1," * 64 + "1": "overrides",
        }.items()
    ),
    (lambda message: message.overrides.extend(["window=8"] * 33), "overrides"),
]


@pytest.mark.parametrize(("change", "field"), BAD_REQUESTS)
def test_a_bad_request_is_named(
    change: Callable[[generation_pb2.Generation], object], field: str
) -> None:
    message = request_to_proto(GenerationRequest("a"))
    change(message)
    with pytest.raises(InvalidArgument, match=rf"^{field}: "):
        request_from_proto(message)


@pytest.mark.parametrize(
    ("precision", "kept"), [("float32", [0.1, -70_000.0]), ("float16", [0.09998, -65_504.0])]
)
def test_hidden_states_arrive_in_the_opened_precision(
    precision: Precision, kept: list[float]
) -> None:
    """Half precision has no number beyond 65,504."""
    opened = opening("split")
    opened = replace(opened, settings=replace(opened.settings, uplink_precision=precision))
    cloud = opened_cloud(opened)
    edge = EdgeCodec(VOCABULARY, opened.settings)
    states = np.array([[0.1, -70_000.0], [1.0, 2.0]], dtype=np.float32)
    found = cloud.decode(edge.encode(HiddenStates(*HEAD, states=states)))
    assert isinstance(found, HiddenStates)
    assert found.states.dtype == np.float32
    np.testing.assert_allclose(found.states, [kept, [1.0, 2.0]], rtol=1e-4)
    sent = edge.encode(HiddenStates(*HEAD, states=states)).hidden_states.states
    assert len(sent) == (16 if precision == "float32" else 8)
