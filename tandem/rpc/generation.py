"""A request for text as a plain value, and its protobuf form.

Invariant: decoding checks what needs no model; ids, sampling and lengths are checked where the
vocabulary is known. Must not import torch.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Literal

from tandem.core.errors import InvalidArgument
from tandem.core.images import check_image_bytes
from tandem.core.laws import Sampling
from tandem.core.prompt import Prompt
from tandem.policy.aggregation_presets import (
    AGGREGATION_PRESETS,
    AggregationPreset,
    find_aggregation_preset,
)
from tandem.policy.overrides import MAX_OVERRIDE_CHARACTERS, MAX_OVERRIDES, with_overrides
from tandem.policy.presets import MAX_VOCABULARY_SIZE, Preset, find_preset
from tandem.protocol.liveness import LostCloud
from tandem.protocol.logprobs import check_tells_logprobs, check_top_logprobs
from tandem.rpc.convert_open import sampling_from_proto, sampling_to_proto
from tandem.rpc.prompts import prompt_from_proto, prompt_to_proto
from tandem_api.common.v1 import generation_pb2 as pb

_Override = Literal[
    "draft_length",
    "answer_top",
    "answer_tail_draws",
    "draft_top_k",
    "draft_top_p",
]

MAX_STOPS = 16
MAX_STOP_CHARACTERS = 256
MAX_QUERY_CHARACTERS = 4096
MAX_DOCUMENTS = 32
DEFAULT_PRESET = "coupled"
RAG_PRESET = "dragon-coupled"
"""Where documents of both sides are asked for and no preset is named."""
OVERRIDES: tuple[_Override, ...] = (
    "draft_length",
    "answer_top",
    "answer_tail_draws",
    "draft_top_k",
    "draft_top_p",
)
"""Single choices of the preset that a request may override; absent keeps the preset's own."""


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """What a caller asks for. `draft_length`, `answer_top`, `answer_tail_draws`, `draft_top_k`,
    `draft_top_p` and a non-empty `expansion` override single choices of the preset; `overrides`
    ("field=value") any, after these."""

    prompt: Prompt
    preset: str = DEFAULT_PRESET
    sampling: Sampling = field(default_factory=Sampling)
    max_tokens: int = 128
    seed: int = 0
    stop: tuple[str, ...] = ()
    draft_length: int | None = None
    answer_top: int | None = None
    answer_tail_draws: int | None = None
    draft_top_k: int | None = None
    draft_top_p: float | None = None
    expansion: tuple[int, ...] = ()
    overrides: tuple[str, ...] = ()
    lost_cloud: LostCloud = LostCloud.FAIL
    ignore_eos: bool = False
    images: tuple[bytes, ...] = ()
    query: str = ""
    documents: int = 0
    logprobs: bool = False
    top_logprobs: int = 0

    @property
    def from_two_sides(self) -> bool:
        """Whether the preset is one of aggregation: `query` (empty: the prompt's text) is looked
        for on both sides, for so many `documents` each (0: the service's own number)."""
        return self.preset in AGGREGATION_PRESETS

    def composed_aggregation(self) -> AggregationPreset:
        """The preset of aggregation with the request's overrides, validated. `draft_length` is how
        far ahead a side decodes, `draft_top_k` and `draft_top_p` truncate its law."""
        preset = find_aggregation_preset(self.preset)
        if self.images:
            raise InvalidArgument("images", "an answer from two sides has none")
        if self.expansion:
            raise InvalidArgument("expansion", "an answer from two sides drafts chains")
        if self.draft_length is not None:
            preset = replace(preset, ahead=self.draft_length)
        truncation = preset.law.truncation
        if self.draft_top_k is not None:
            truncation = replace(truncation, top_k=self.draft_top_k)
        if self.draft_top_p is not None:
            truncation = replace(truncation, top_p=self.draft_top_p)
        preset = replace(preset, law=replace(preset.law, truncation=truncation))
        preset = with_overrides(preset, self.overrides)
        preset.validate()
        return preset

    def composed_preset(self, vocabulary_size: int = MAX_VOCABULARY_SIZE) -> Preset:
        """The preset, fitted to the vocabulary, with the request's overrides, validated."""
        preset = find_preset(self.preset).fitted(vocabulary_size)
        if self.expansion:
            preset = preset.with_expansion(self.expansion)
        if self.draft_length is not None:
            preset = preset.with_draft_length(self.draft_length)
        if self.answer_top is not None:
            preset = replace(preset, answer_top=self.answer_top)
        if self.answer_tail_draws is not None:
            preset = replace(preset, answer_tail_draws=self.answer_tail_draws)
        cuts: dict[str, Any] = {}
        if self.draft_top_k is not None:
            cuts["top_k"] = self.draft_top_k
        if self.draft_top_p is not None:
            cuts["top_p"] = self.draft_top_p
        preset = replace(preset, truncation=replace(preset.truncation, **cuts))
        preset = with_overrides(preset, self.overrides)
        preset.validate()
        preset.truncation.validate(vocabulary_size)
        return preset


_POLICIES = {
    LostCloud.FAIL: pb.LOST_CLOUD_POLICY_FAIL,
    LostCloud.WAIT: pb.LOST_CLOUD_POLICY_WAIT,
    LostCloud.EDGE: pb.LOST_CLOUD_POLICY_EDGE,
}


def request_to_proto(request: GenerationRequest) -> pb.Generation:
    """InvalidArgument for numbers that protobuf cannot carry."""
    message = pb.Generation()
    try:
        _fill(message, request)
    except (ValueError, TypeError) as error:  # out of the field's range
        raise InvalidArgument("request", str(error)) from None
    return message


def _fill(message: pb.Generation, request: GenerationRequest) -> None:
    message.preset = request.preset
    message.sampling.CopyFrom(sampling_to_proto(request.sampling))
    message.max_tokens = request.max_tokens
    message.seed = request.seed
    message.stop.extend(request.stop)
    message.overrides.extend(request.overrides)
    message.lost_cloud = _POLICIES[request.lost_cloud]
    message.ignore_eos = request.ignore_eos
    message.images.extend(request.images)
    message.logprobs = request.logprobs
    message.top_logprobs = request.top_logprobs
    message.expansion.extend(request.expansion)
    if request.query or request.documents:
        message.retrieval.query = request.query
        message.retrieval.documents = request.documents
    for name in OVERRIDES:
        if (override := getattr(request, name)) is not None:
            setattr(message, name, override)
    prompt_to_proto(message, request.prompt)


def request_from_proto(message: pb.Generation) -> GenerationRequest:
    """Raises InvalidArgument naming the field."""
    _check_sizes(message)
    request = _request(message)
    check_top_logprobs(request.logprobs, request.top_logprobs)
    if request.from_two_sides:
        request.composed_aggregation()
        if request.logprobs:
            raise InvalidArgument("logprobs", "an answer from two sides has no one law")
        return request
    preset = request.composed_preset()
    if request.logprobs:
        check_tells_logprobs(preset)
    return request


def _check_sizes(message: pb.Generation) -> None:
    if message.max_tokens < 1:
        raise InvalidArgument("max_tokens", f"must be at least 1, is {message.max_tokens}")
    if len(message.stop) > MAX_STOPS:
        raise InvalidArgument("stop", f"at most {MAX_STOPS} strings")
    if any(not 0 < len(stop) <= MAX_STOP_CHARACTERS for stop in message.stop):
        raise InvalidArgument("stop", f"each must have 1…{MAX_STOP_CHARACTERS} characters")
    check_image_bytes(message.images)
    if len(message.overrides) > MAX_OVERRIDES:
        raise InvalidArgument("set", f"at most {MAX_OVERRIDES} overrides")
    if any(len(override) > MAX_OVERRIDE_CHARACTERS for override in message.overrides):
        raise InvalidArgument("set", f"at most {MAX_OVERRIDE_CHARACTERS} characters each")
    if len(message.retrieval.query) > MAX_QUERY_CHARACTERS:
        raise InvalidArgument("query", f"at most {MAX_QUERY_CHARACTERS} characters")
    if message.retrieval.documents > MAX_DOCUMENTS:
        raise InvalidArgument("documents", f"at most {MAX_DOCUMENTS} from each side")


def _request(message: pb.Generation) -> GenerationRequest:
    policies = {number: policy for policy, number in _POLICIES.items()}
    return GenerationRequest(
        prompt=prompt_from_proto(message),
        preset=message.preset or DEFAULT_PRESET,
        sampling=sampling_from_proto(message.sampling)
        if message.HasField("sampling")
        else Sampling(),
        max_tokens=message.max_tokens,
        seed=message.seed,
        stop=tuple(message.stop),
        expansion=tuple(message.expansion),
        **{name: getattr(message, name) for name in OVERRIDES if message.HasField(name)},
        overrides=tuple(message.overrides),
        lost_cloud=policies.get(message.lost_cloud, LostCloud.FAIL),
        ignore_eos=message.ignore_eos,
        images=tuple(message.images),
        query=message.retrieval.query,
        documents=message.retrieval.documents,
        logprobs=message.logprobs,
        top_logprobs=message.top_logprobs,
    )
