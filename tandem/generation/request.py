"""A request for text as a plain value, what can be checked of it without a model, and its protobuf
form.

To add a field that every kind of caller may set, change three files beside what makes use of it:

1. protos/tandem_api/common/v1/generation.proto: the field, under the same name;
2. tandem/generation/request.py: the field, and its check in `validate`;
3. tandem/generation/request_fields.py: its row in the table of fields, which the command line, the
   HTTP API and the Python API read.

A number, a switch or a text is encoded and decoded by its name; another type needs its lines in
`request_to_proto` and `request_from_proto`. A field that the cloud must know too stands in
`GenerationParams` instead (sampling.proto and `tandem/specdec/messages.py`), and reaches the
verifier with `open`; a sampling setting is a field of `SamplingParams` (sampling.proto,
`tandem/core/probs.py`, `tandem/wire/common_codec.py`), and has its row in the same table. A choice
of a preset needs nothing: it is an override. `tests/howto/test_add_request_field.py` follows these
steps.
"""

from dataclasses import dataclass, field, fields, replace
from difflib import get_close_matches
from typing import Any, Self

from tandem.core.errors import InvalidArgument, check_count
from tandem.core.probs import MAX_VOCABULARY_SIZE, SamplingParams
from tandem.core.processors import Processors
from tandem.core.prompt import MAX_IMAGES, Prompt, Truncate, Turn, check_image_bytes
from tandem.core.stopping import MAX_STOP_TOKEN_IDS, MAX_STOPS, check_stops
from tandem.core.tokens import check_token_ids
from tandem.net.tenant import check_tenant_id
from tandem.specdec.liveness import LostCloud
from tandem.specdec.logprobs import check_logprob_params, check_logprobs_available
from tandem.specdec.messages import GenerationParams
from tandem.specdec.overrides import (
    check_overrides,
    with_overrides,
)
from tandem.specdec.presets import PRESETS, Preset
from tandem.text.chat_rendering import read_variables
from tandem.two_sided.interface import (
    AGGREGATION_PRESETS,
    MAX_QUERY_CHARACTERS,
    AggregationPreset,
    find_aggregation_preset,
)
from tandem.wire.common_codec import (
    numbers_of,
    params_from_proto,
    params_to_proto,
    prompt_from_proto,
    prompt_to_proto,
    same_fields,
)
from tandem_api.common.v1 import generation_pb2 as pb

LONGEST_ANSWER_S = 86_400.0
"""What a request may take where its caller names no limit: a day. A large model on a laptop writes
for hours; a cloud that is lost, or a caller that left, is noticed long before."""
MAX_DOCUMENTS = 32
MAX_TOOLS_CHARACTERS = 2**17
DEFAULT_PRESET = "auto"
CLOUD_ALONE_PRESET = "ar"
"""The draft model takes no part."""
RAG_PRESET = "dragon-coupled"
"""Where documents of both sides are asked for and no preset is named."""
_LONGEST_NAME = 64
"""Characters of an unknown preset's name that are compared and told."""


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """What a caller asks for. `params` is what the cloud must know too; `overrides` change single
    choices of the preset; `rounds` and `token_texts` have each round told, and what each token
    spells. `prediction`: a text that the answer is expected to be much like, to draft from.
    `no_memory`: it is not drafted from earlier texts, and is not remembered."""

    prompt: Prompt
    preset: str = DEFAULT_PRESET
    params: GenerationParams = field(default_factory=GenerationParams)
    overrides: tuple[str, ...] = ()
    stop: tuple[str, ...] = ()
    lost_cloud: LostCloud = LostCloud.FAIL
    query: str = ""
    documents: int = 0
    stop_token_ids: tuple[int, ...] = ()
    truncate: Truncate = Truncate.NONE
    priority: int = 0
    suffix: str = ""
    tools: str = ""
    rounds: bool = False
    token_texts: bool = False
    thinking_token_budget: int = -1
    """Most tokens of thinking, for models that think before they answer; -1: no limit."""
    include_stop_str_in_output: bool = False
    spell_special_tokens: bool = False
    """Special tokens are text too, as the tokenizer spells them; the one that ends the answer only
    with `include_stop_str_in_output`."""
    chat_template_kwargs: str = ""
    """Variables of the chat template, a JSON object (`tandem.text.chat_rendering`)."""
    prediction: str = ""
    no_memory: bool = False
    tenant: bytes = b""
    """For whom the caller asks, where that is not itself (`tandem.net.tenant`)."""
    payer: bytes = b""
    """Who of `tenant` asks, where that is a group that shares what is kept."""

    def with_fields(self, **changes: Any) -> Self:
        """Return the request with other values for some fields, each named alone wherever it lies:
        in the request, in `params`, in its `sampling` or its `processors`. Raises TypeError for any
        other name."""
        sampling = replace(self.params.sampling, **_taken(changes, SamplingParams))
        processors = replace(self.params.processors, **_taken(changes, Processors))
        params = replace(self.params, sampling=sampling, processors=processors)
        params = replace(params, **_taken(changes, GenerationParams))
        return replace(self, **{"params": params} | changes)

    @property
    def from_two_sides(self) -> bool:
        """Whether the preset is one of aggregation: `query` (empty: the prompt's text) is looked
        for on both sides, for so many `documents` each (0: the service's own number)."""
        return self.preset in AGGREGATION_PRESETS

    def validate(self, rag: bool = False) -> None:
        """Raise InvalidArgument naming the first field that no service would take; "rag" where the
        caller wants documents of a preset that has none."""
        if not self.from_two_sides:
            for name, asked in (("rag", rag), ("query", self.query), ("documents", self.documents)):
                if asked:
                    known = ", ".join(AGGREGATION_PRESETS)
                    raise InvalidArgument(name, f"{self.preset} has no documents; one of {known}")
        for name, least, bits in (("max_tokens", 1, 32), ("seed", 0, 64)):
            if not least <= (number := getattr(self.params, name)) < 2**bits:
                raise InvalidArgument(name, f"must be {least}…2^{bits}-1, is {number}")
        params = self.params
        if (least := params.processors.min_tokens) > params.max_tokens:
            why = f"must be at most max_tokens, {params.max_tokens}, is {least}"
            raise InvalidArgument("min_tokens", why)
        params.sampling.validate(MAX_VOCABULARY_SIZE)
        params.processors.validate(MAX_VOCABULARY_SIZE, params.ignore_eos)
        check_image_bytes(params.images)
        check_logprob_params(params)
        check_stops(self.stop)
        self._check_prompt_options()
        check_overrides(self.overrides)
        if len(self.query) > MAX_QUERY_CHARACTERS:
            raise InvalidArgument("query", f"at most {MAX_QUERY_CHARACTERS} characters")
        if not 0 <= self.documents <= MAX_DOCUMENTS:
            raise InvalidArgument("documents", f"must be 0…{MAX_DOCUMENTS}, is {self.documents}")
        if self.from_two_sides:
            self.composed_aggregation()
        else:
            self.composed_preset()

    def _check_prompt_options(self) -> None:
        check_tenant_id(self.tenant)
        check_tenant_id(self.payer, "payer")
        check_count(len(self.stop_token_ids), MAX_STOP_TOKEN_IDS, "stop_token_ids")
        check_token_ids(self.stop_token_ids, MAX_VOCABULARY_SIZE, "stop_token_ids")
        if not -(2**31) <= self.priority < 2**31:
            raise InvalidArgument("priority", f"must be -2^31…2^31-1, is {self.priority}")
        if not -1 <= self.thinking_token_budget < 2**32:
            why = f"must be -1 (no limit), or 0…2^32-1, is {self.thinking_token_budget}"
            raise InvalidArgument("thinking_token_budget", why)
        if self.suffix and not isinstance(self.prompt, str):
            raise InvalidArgument("suffix", "requires the prompt to be a text")
        if self.truncate is not Truncate.NONE and (self.params.images or self.suffix):
            raise InvalidArgument("truncate", "cannot be combined with images or a suffix")
        if len(self.tools) > MAX_TOOLS_CHARACTERS:
            raise InvalidArgument("tools", f"at most {MAX_TOOLS_CHARACTERS} characters")
        read_variables(self.chat_template_kwargs)
        if self.from_two_sides:
            of_one_side = {
                name: getattr(self, name) for name in ("stop_token_ids", "suffix", "tools")
            }
            of_one_side["include_stop_str_in_output"] = self.include_stop_str_in_output
            of_one_side["spell_special_tokens"] = self.spell_special_tokens
            for name, given in of_one_side.items():
                if given:
                    raise InvalidArgument(
                        name, "not supported by presets that answer from documents"
                    )
            if self.params.processors.min_tokens and self.params.ignore_eos:
                why = "cannot be combined with ignore_eos in answers from documents"
                raise InvalidArgument("min_tokens", why)
            if self.thinking_token_budget >= 0:
                raise InvalidArgument(
                    "thinking_token_budget", "not supported by presets that answer from documents"
                )
            turns = () if isinstance(self.prompt, str) else self.prompt
            if any(isinstance(turn, Turn) and turn.tool_call_id for turn in turns):
                raise InvalidArgument(
                    "prompt", "tool results are not supported by presets that answer from documents"
                )
            if self.truncate is not Truncate.NONE:
                raise InvalidArgument(
                    "truncate", "not supported by presets that answer from documents"
                )

    def composed_preset(self, vocabulary_size: int = MAX_VOCABULARY_SIZE) -> Preset:
        """Return the preset with the request's overrides, fitted to the vocabulary and
        validated."""
        if self.preset not in PRESETS:
            raise unknown_preset(self.preset)
        preset = PRESETS[self.preset].fitted(vocabulary_size)
        preset = with_overrides(preset, self.overrides)
        preset.validate()
        preset.truncation.validate(vocabulary_size)
        if self.params.logprobs:
            check_logprobs_available(preset.verify_settings, self.params.top_logprobs)
        return preset

    def composed_aggregation(self) -> AggregationPreset:
        """Return the preset as `composed_preset` does, for aggregation; `draft_length` is how far
        ahead a side decodes."""
        preset = with_overrides(find_aggregation_preset(self.preset), self.overrides)
        if self.params.images:
            raise InvalidArgument("images", "not supported by presets that answer from documents")
        if self.params.logprobs:
            raise InvalidArgument("logprobs", "not supported by presets that answer from documents")
        preset.validate()
        return preset


def unknown_preset(name: str) -> InvalidArgument:
    """Return an error for a preset that does not exist, with the most similar one and the three
    that most people need."""
    known = (*PRESETS, *AGGREGATION_PRESETS)
    name = name[:_LONGEST_NAME]
    usual = (
        f"{DEFAULT_PRESET} (the default), {CLOUD_ALONE_PRESET} (the large model alone),"
        f" {RAG_PRESET} (from documents) and {len(known) - 3} others, which 'tandem presets' lists"
    )
    close = get_close_matches(name, known, n=1)
    meant = f"did you mean {close[0]!r}? Known" if close else "known"
    return InvalidArgument("preset", f"unknown: {name!r}; {meant}: {usual}")


def _taken(changes: dict[str, Any], part: type) -> dict[str, Any]:
    """Take out of `changes` what is a field of `part`."""
    return {each.name: changes.pop(each.name) for each in fields(part) if each.name in changes}


_POLICIES = numbers_of(LostCloud, pb.LostCloudPolicy, "LOST_CLOUD_POLICY")
_TRUNCATE = {Truncate.NONE: pb.TRUNCATE_UNSPECIFIED, Truncate.OLDEST: pb.TRUNCATE_OLDEST}
_OTHER_FORM = (
    *("prompt", "params", "lost_cloud", "truncate"),
    "thinking_token_budget",  # absent means no limit, and 0 none
)
_SAME = tuple(each.name for each in fields(GenerationRequest) if each.name not in _OTHER_FORM)
"""Fields that have one form here and in protobuf."""


def request_to_proto(request: GenerationRequest) -> pb.Generation:
    """Encode a request. Raises InvalidArgument for numbers that protobuf cannot carry."""
    try:
        message = pb.Generation(
            params=params_to_proto(request.params),
            lost_cloud=_POLICIES[request.lost_cloud],
            truncate=_TRUNCATE[request.truncate],
            **{name: getattr(request, name) for name in _SAME},
        )
        if request.thinking_token_budget >= 0:
            message.thinking_token_budget = request.thinking_token_budget
        prompt_to_proto(message, request.prompt)
    except (ValueError, TypeError) as error:  # out of the field's range
        raise InvalidArgument("request", str(error)) from None
    return message


def request_from_proto(message: pb.Generation) -> GenerationRequest:
    """Decode and validate a request. Raises InvalidArgument naming the field."""
    check_count(len(message.stop), MAX_STOPS, "stop")
    check_count(len(message.stop_token_ids), MAX_STOP_TOKEN_IDS, "stop_token_ids")
    check_count(len(message.params.images), MAX_IMAGES, "images")
    truncates = {number: truncate for truncate, number in _TRUNCATE.items()}
    policies = {number: policy for policy, number in _POLICIES.items()}
    params = params_from_proto(message.params)
    if not message.params.HasField("sampling"):
        params = replace(params, sampling=GenerationParams().sampling)
    request = GenerationRequest(
        **same_fields(message, _SAME) | {"preset": message.preset or DEFAULT_PRESET},
        prompt=prompt_from_proto(message),
        params=params,
        lost_cloud=policies.get(message.lost_cloud, LostCloud.FAIL),
        truncate=truncates.get(message.truncate, Truncate.NONE),
        thinking_token_budget=message.thinking_token_budget
        if message.HasField("thinking_token_budget")
        else -1,
    )
    request.validate()
    return request
