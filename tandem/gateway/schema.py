"""Request bodies of the HTTP API: OpenAI's fields, plus one extension object, `tandem`. Invariant:
types are strict (no "1" for 1), no number is NaN or infinite, and a field is ignored only if it
cannot change an answer."""

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal, cast

from pydantic import BaseModel, ConfigDict, Field, PlainValidator, create_model

from tandem.core.processors import Grammar, GrammarKind
from tandem.gateway.body_parsing import UINT32, Strict, TokenId
from tandem.gateway.constraints import Constraints
from tandem.gateway.errors import invalid, unsupported
from tandem.gateway.tool_calls import NamedTool, Tool, ToolCall, ToolChoice, Tools, tool_grammar
from tandem.generation.request_fields import (
    BodyFields,
    RequestField,
    TandemFields,
    fields_of,
)

MAX_STOPS = 16

Seed = Annotated[int, Field(ge=0, lt=2**64)]
Stops = Annotated[list[str], Field(max_length=MAX_STOPS, fail_fast=True)]
Count = Annotated[int, Field(ge=1, le=UINT32)]

_HARMLESS = frozenset(
    {
        *("user", "metadata", "store", "service_tier", "safety_identifier", "verbosity"),
        *("prompt_cache_key", "prompt_cache_retention"),
    }
)
"""Parameters that do not affect the text: accepted and ignored."""

_NEUTRAL: Mapping[str, tuple[tuple[Any, ...], str]] = {
    "functions": ((None, []), "the models answer with text"),
    "function_call": ((None, "none", "auto"), "the models answer with text"),
    "modalities": ((None, ["text"]), "the models answer with text"),
    "audio": ((None,), "the models answer with text"),
    "reasoning_effort": ((None,), "the model decides how long it reasons"),
    "web_search_options": ((None,), "this server does not search the web"),
    "best_of": ((None, 1), "this server does not rank answers"),
}
"""OpenAI parameters accepted only with these neutral values; any other value is refused."""


def _body_field(row: RequestField) -> tuple[Any, Any]:
    """The row as a field in which null means the default, as in OpenAI's own fields."""
    words = f"{row.words} Default: {json.dumps(row.default)}."
    return row.hint | None, Field(default=None, description=words)


def _tandem_field(row: RequestField) -> tuple[Any, Any]:
    return row.hint, Field(default=row.default, description=row.words)


if TYPE_CHECKING:
    BodyParameters = BaseModel
    TandemParameters = Strict
else:  # with the rows of the table of request fields, which `given_fields` reads by their names
    BodyParameters = create_model(
        "BodyParameters", **{row.name: _body_field(row) for row in fields_of(BodyFields)}
    )
    TandemParameters = create_model(
        "TandemParameters",
        __base__=Strict,
        **{row.name: _tandem_field(row) for row in fields_of(TandemFields)},
    )


class StreamOptions(Strict):
    include_usage: bool = False
    continuous_usage_stats: bool = Field(
        default=False,
        description="Return the token counts of its choice so far with each chunk (vLLM).",
    )


class TandemOptions(TandemParameters):
    """Options that control how the answer is computed. Only a lossy preset changes the distribution
    of the answer."""

    preset: str | None = Field(
        default=None,
        description="Decoding method. GET /v1/models lists the available presets. Default:"
        " `auto`, or the default document preset when `rag` is true.",
    )
    objective: Literal["latency", "cost", "energy"] | Annotated[float, Field(ge=0, le=1)] | None = (
        Field(
            default=None,
            description="What the preset optimises for. `latency` (1) minimises the time per"
            " token, `cost` (0) minimises target passes, and a number in between"
            " weighs the two. `energy` minimises the energy used at the edge. Only"
            " adaptive presets accept it.",
        )
    )
    rag: bool | None = Field(
        default=None,
        description="Answer from the documents on the device and in the cloud. Default: true"
        " if the preset uses documents, else false.",
    )
    provenance: bool = Field(
        default=False, description="Return the id and the source of each token."
    )
    token_texts: bool = Field(
        default=False, description="Also return the text of each token. Requires `provenance`."
    )
    even_stream: bool = Field(
        default=False,
        description="Stream token by token: tokens that became final together are spread over the"
        " time until the next ones are expected.",
    )
    rounds: bool = Field(
        default=False,
        description="Return statistics for each draft-and-verify round: token counts and timings.",
    )
    top_k: Annotated[int, Field(ge=0, le=UINT32)] = Field(
        default=0, description="Sample from the `top_k` most likely tokens. 0: no limit."
    )
    draft_length: Annotated[int, Field(ge=1, le=UINT32)] | None = Field(
        default=None,
        description="Draft tokens per round. For the preset `auto` this is an upper limit."
        " Default: set by the preset.",
    )
    overrides: Annotated[list[str], Field(max_length=32, fail_fast=True)] = Field(
        default_factory=list, description="Settings of the preset to override, each as FIELD=VALUE."
    )


class TextPart(Strict):
    type: Literal["text"]
    text: str


class PredictedContent(Strict):
    """Text that the answer is expected to repeat for the most part."""

    type: Literal["content"]
    content: str | Annotated[list[TextPart], Field(fail_fast=True)]

    @property
    def text(self) -> str:
        if isinstance(self.content, str):
            return self.content
        return "".join(part.text for part in self.content)


class ImageAddress(Strict):
    url: str
    detail: Literal["auto", "low", "high"] = "auto"


class ImagePart(Strict):
    type: Literal["image_url"]
    image_url: ImageAddress


def _read_prompt(prompt: object) -> object:
    """Check the form of a prompt: one or several texts or lists of token ids. pydantic would try
    every member of the union on every value and record each failure."""
    kinds = _kinds(prompt)
    if isinstance(prompt, str) or kinds in ({str}, {int}):
        return prompt
    if kinds == {list} and all(_kinds(each) <= {int} for each in cast("list[object]", prompt)):
        return prompt
    raise ValueError("must be a text, a list of token ids, or a list of either")


def _kinds(values: object) -> set[type]:
    return set(map(type, values)) if isinstance(values, list) else set()


_PromptForms = str | list[str] | list[int] | list[list[int]]
PromptBody = Annotated[
    _PromptForms, PlainValidator(_read_prompt, json_schema_input_type=_PromptForms)
]
Part = Annotated[TextPart | ImagePart, Field(discriminator="type")]


class Message(Strict):
    role: Literal["system", "developer", "user", "assistant", "document", "tool"]
    content: str | Annotated[list[Part], Field(fail_fast=True)] | None = Field(
        default=None,
        validate_default=False,
        description="Text of the message. Required unless `tool_calls` is set.",
    )
    name: str | None = Field(default=None, description="Ignored.")
    refusal: None = None
    tool_calls: Annotated[list[ToolCall], Field(fail_fast=True)] | None = None
    tool_call_id: str | None = Field(
        default=None,
        description="Id of the tool call that this message answers. Required if `role` is `tool`.",
    )


def _all_parameters(schema: dict[str, Any]) -> None:
    """Add the ignored and the neutral parameters to the schema, and forbid all others."""
    schema["additionalProperties"] = False
    schema["properties"] |= {
        **{name: {"description": "Ignored."} for name in sorted(_HARMLESS)},
        **{
            name: _one_of(values) | {"description": why} for name, (values, why) in _NEUTRAL.items()
        },
    }


def _one_of(values: tuple[Any, ...]) -> dict[str, Any]:
    """Return a schema that allows `values`. Lists are not put into an `enum`, because client
    generators do not support that."""
    lists = [
        {
            "type": "array",
            "items": {"enum": each or [""]},
            "minItems": len(each),
            "maxItems": len(each),
        }
        for each in values
        if isinstance(each, list)
    ]
    others = {"enum": [each for each in values if not isinstance(each, list)]}
    return {"anyOf": [others, *lists]} if lists else others


class CommonParameters(Constraints, BodyParameters):
    """Parameters shared by chat and text completions."""

    model_config = ConfigDict(
        strict=True,
        extra="allow",
        allow_inf_nan=False,
        frozen=True,
        json_schema_extra=_all_parameters,
    )

    model: str
    max_tokens: Count | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    n: Annotated[int, Field(ge=1, le=128)] | None = None
    stop: str | Stops | None = None
    stop_token_ids: Annotated[list[TokenId], Field(max_length=64, fail_fast=True)] | None = Field(
        default=None,
        description="Token ids that end the answer, in addition to the model's end-of-text tokens.",
    )
    top_k: Annotated[int, Field(ge=-1, le=UINT32)] | None = Field(
        default=None, description="Sample from the `top_k` most likely tokens. 0 or -1: no limit."
    )
    seed: Seed | None = None
    prediction: PredictedContent | None = Field(
        default=None,
        description="Text that the answer is expected to repeat for the most part, such as a file"
        " that is to be edited. Drafts are taken from it. It does not change the distribution of"
        " the answer. Presets that draft no chains of tokens ignore it.",
    )
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    tandem: TandemOptions = TandemOptions()

    def check(self) -> None:
        """Validate across fields.
        Raises ApiError for unknown parameters and for parameters that would have to be ignored."""
        for name, value in (self.model_extra or {}).items():
            if name in _HARMLESS:
                continue
            if name not in _NEUTRAL:
                words = f"Unrecognized request argument supplied: {name}"
                raise invalid(name, words, "unknown_parameter")
            neutral, why = _NEUTRAL[name]
            if value not in neutral:
                raise unsupported(name, why)
        if self.stream_options is not None and not self.stream:
            raise invalid("stream_options", "stream_options: requires stream to be true")

    @property
    def stops(self) -> tuple[str, ...]:
        given = [] if self.stop is None else self.stop
        return (given,) if isinstance(given, str) else tuple(given)

    @property
    def predicted_text(self) -> str | None:
        """What the answer is expected to be much like; None: not given."""
        return None if self.prediction is None else self.prediction.text

    @property
    def num_top_logprobs(self) -> int | None:
        """Number of alternatives returned with each log-probability; None: return
        no log-probabilities."""
        return None

    @property
    def max_output_tokens(self) -> int | None:
        """The caller's limit on the tokens of the answer; None: not set."""
        return self.max_tokens


class ChatCompletionRequest(CommonParameters):
    """Body of POST /v1/chat/completions."""

    messages: Annotated[list[Message], Field(min_length=1, fail_fast=True)]
    max_completion_tokens: Count | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    tools: Tools | None = None
    tool_choice: ToolChoice | None = Field(default=None, description="Default: `auto`.")
    parallel_tool_calls: bool | None = Field(
        default=None, description="Allow more than one tool call in an answer. Default: true."
    )

    @property
    def offered(self) -> list[Tool]:
        """Tools that the model may call: none, all, or the one named by `tool_choice`."""
        if self.tool_choice == "none":
            return []
        tools, choice = self.tools or [], self.tool_choice
        if not isinstance(choice, NamedTool):
            return tools
        return [tool for tool in tools if tool.function.name == choice.function.name]

    def check(self) -> None:
        super().check()
        names = [tool.function.name for tool in self.tools or ()]
        if len({*names}) < len(names):
            raise invalid("tools", "tools: two tools have the same name")
        if self.tool_choice not in (None, "none", "auto") and not self.offered:
            raise invalid("tool_choice", "tool_choice: does not name any of the tools")
        if self.max_tokens is not None and self.max_completion_tokens is not None:
            raise invalid(
                "max_tokens", "max_tokens: set either max_tokens or max_completion_tokens, not both"
            )
        if self.top_logprobs is not None and not self.logprobs:
            raise invalid("top_logprobs", "top_logprobs: requires logprobs to be true")

    @property
    def num_top_logprobs(self) -> int | None:
        return self.top_logprobs or 0 if self.logprobs else None

    @property
    def max_output_tokens(self) -> int | None:
        return self.max_completion_tokens or self.max_tokens

    def named_grammar(self) -> tuple[str, Grammar] | None:
        named = super().named_grammar()
        if not self.offered:
            return named
        text = named[1] if named else None
        if text is not None and text.kind is not GrammarKind.JSON_SCHEMA:
            raise invalid(
                "tools", "tools: can be combined with a JSON schema, but not with another grammar"
            )
        must_call = self.tool_choice not in (None, "auto")
        parallel = self.parallel_tool_calls is not False
        return "tools", tool_grammar(
            self.offered, text=text, must_call=must_call, parallel=parallel
        )


class CompletionRequest(CommonParameters):
    """Body of POST /v1/completions."""

    prompt: PromptBody
    logprobs: Annotated[int, Field(ge=0, le=5)] | None = None
    echo: bool | None = Field(default=None, description="Return the prompt before the answer.")
    suffix: str | None = Field(
        default=None,
        description="Text after the completion (fill in the middle). Only for models that"
        " support it.",
    )

    def check(self) -> None:
        super().check()
        drops_tokens = dict(self)["truncate"] == "oldest"
        if self.echo and (self.suffix or self.logprobs is not None or drops_tokens):
            raise invalid("echo", "echo: cannot be combined with suffix, logprobs or truncate")

    @property
    def num_top_logprobs(self) -> int | None:
        return self.logprobs
