"""The bodies that the gateway takes, as OpenAI's API has them, and `tandem`, its one extension.
Invariant: a type is what it says (no "1" for 1), no number is NaN or infinite, and nothing is
ignored silently but what cannot change an answer."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal, cast

from pydantic import ConfigDict, Field, PlainValidator

from tandem.core.processors import Grammar, GrammarKind
from tandem.gateway.body_parsing import UINT32, Strict, TokenId
from tandem.gateway.constraints import Constraints
from tandem.gateway.errors import invalid, unsupported
from tandem.gateway.tool_calls import NamedTool, Tool, ToolCall, ToolChoice, Tools, tool_grammar
from tandem.generation.request import MAX_DOCUMENTS

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
"""Parameters that say nothing about the text: taken, and of no effect."""

_NEUTRAL: Mapping[str, tuple[tuple[Any, ...], str]] = {
    "functions": ((None, []), "the models answer with text"),
    "function_call": ((None, "none", "auto"), "the models answer with text"),
    "modalities": ((None, ["text"]), "the models answer with text"),
    "audio": ((None,), "the models answer with text"),
    "prediction": ((None,), "the draft model predicts"),
    "reasoning_effort": ((None,), "it is the model's own"),
    "web_search_options": ((None,), "nothing is looked up"),
    "best_of": ((None, 1), "no answers are compared"),
}
"""Parameters of OpenAI's that are taken while they ask for nothing, and refused otherwise."""


class StreamOptions(Strict):
    include_usage: bool = False


class TandemOptions(Strict):
    """How the answer is made; only a lossy preset changes whose distribution it follows."""

    preset: str | None = Field(default=None, description="Method; /v1/models lists them.")
    objective: Literal["latency", "cost", "energy"] | Annotated[float, Field(ge=0, le=1)] | None = (
        Field(
            default=None,
            description="What matters: 1 (latency) an early answer, 0 (cost) few target passes;"
            " energy: the edge's.",
        )
    )
    rag: bool | None = Field(
        default=None, description="Answer from the documents of both sides, or do not."
    )
    query: str = Field(
        default="", description="What to look for in them, in place of the last message or prompt."
    )
    documents: Annotated[int, Field(ge=0, le=MAX_DOCUMENTS)] = Field(
        default=0, description="Documents of each side, at most; 0: the aggregator's own number."
    )
    provenance: bool = Field(
        default=False, description="Say of each token what it is and who made it."
    )
    token_texts: bool = Field(
        default=False, description="Beside `provenance`: say what each token spells."
    )
    rounds: bool = Field(
        default=False, description="Tell of each round: its drafts, and where its time went."
    )
    top_k: Annotated[int, Field(ge=0, le=UINT32)] = Field(
        default=0, description="Sample from so many likeliest tokens; 0: from all."
    )
    draft_length: Annotated[int, Field(ge=1, le=UINT32)] | None = Field(
        default=None,
        description="Tokens drafted per round, in place of the preset's; auto: at most.",
    )
    overrides: Annotated[list[str], Field(max_length=32, fail_fast=True)] = Field(
        default_factory=list, description="FIELD=VALUE: any single choice of the preset."
    )
    lost_cloud: Literal["fail", "wait", "edge"] = Field(
        default="fail", description="When the cloud stays lost: fail, wait, or finish on the edge."
    )


class TextPart(Strict):
    type: Literal["text"]
    text: str


class ImageAddress(Strict):
    url: str
    detail: Literal["auto", "low", "high"] = "auto"


class ImagePart(Strict):
    type: Literal["image_url"]
    image_url: ImageAddress


def _read_prompt(prompt: object) -> object:
    """One or several texts or lists of token ids. pydantic would try each kind on each value in
    turn, and note why it is none of them."""
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
        default=None, validate_default=False, description="Only a message that calls has none."
    )
    name: str | None = Field(default=None, description="Of no effect.")
    refusal: None = None
    tool_calls: Annotated[list[ToolCall], Field(fail_fast=True)] | None = None
    tool_call_id: str | None = Field(default=None, description="The call that a tool answers.")


def _all_parameters(schema: dict[str, Any]) -> None:
    """Tell of what is taken beside the fields, and that nothing else is."""
    schema["additionalProperties"] = False
    schema["properties"] |= {
        **{name: {"description": "Of no effect."} for name in sorted(_HARMLESS)},
        **{
            name: _one_of(values) | {"description": why} for name, (values, why) in _NEUTRAL.items()
        },
    }


def _one_of(values: tuple[Any, ...]) -> dict[str, Any]:
    """No enumeration has a list: generators of clients know none that does."""
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


class CommonParameters(Constraints):
    """What chat and text completions both take, as the base of their bodies."""

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
        default=None, description="Any of these tokens ends the answer, beside the model's own."
    )
    ignore_eos: bool | None = Field(
        default=None, description="The model's own end-of-text tokens do not end the answer."
    )
    top_k: Annotated[int, Field(ge=-1, le=UINT32)] | None = Field(
        default=None, description="Sample from so many likeliest tokens; 0 and -1: from all."
    )
    truncate: Literal["none", "oldest"] | None = Field(
        default=None,
        description="A prompt that the context does not hold: refuse it (the default), or leave out"
        " the oldest turns after the system's, or the oldest tokens.",
    )
    priority: Annotated[int, Field(ge=-(2**31), lt=2**31)] | None = Field(
        default=None, description="Among waiting requests of one key the smallest goes first."
    )
    seed: Seed | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    tandem: TandemOptions = TandemOptions()

    def check(self) -> None:
        """Raises ApiError for what is not known, or would have to be ignored."""
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
            raise invalid("stream_options", "stream_options: only with stream set to true")

    @property
    def stops(self) -> tuple[str, ...]:
        given = [] if self.stop is None else self.stop
        return (given,) if isinstance(given, str) else tuple(given)

    @property
    def likeliest(self) -> int | None:
        """Tokens told beside each one's log-probability; None: no log-probabilities."""
        return None

    @property
    def limit(self) -> int | None:
        """Most tokens of an answer, if the caller said."""
        return self.max_tokens

    @property
    def after(self) -> str:
        """Text that is to follow the answer."""
        return ""


class ChatCompletionRequest(CommonParameters):
    """Body of POST /v1/chat/completions."""

    messages: Annotated[list[Message], Field(min_length=1, fail_fast=True)]
    max_completion_tokens: Count | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    tools: Tools | None = None
    tool_choice: ToolChoice | None = Field(default=None, description="Without: auto.")
    parallel_tool_calls: bool | None = Field(
        default=None, description="Whether one answer may call several times; without: yes."
    )

    @property
    def offered(self) -> list[Tool]:
        """Tools that may be called: none, all, or the one that must be."""
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
            raise invalid("tools", "tools: two have the same name")
        if self.tool_choice not in (None, "none", "auto") and not self.offered:
            raise invalid("tool_choice", "tool_choice: names no tool of tools")
        if self.max_tokens is not None and self.max_completion_tokens is not None:
            raise invalid("max_tokens", "max_tokens: give it or max_completion_tokens, not both")
        if self.top_logprobs is not None and not self.logprobs:
            raise invalid("top_logprobs", "top_logprobs: only with logprobs set to true")

    @property
    def likeliest(self) -> int | None:
        return self.top_logprobs or 0 if self.logprobs else None

    @property
    def limit(self) -> int | None:
        return self.max_completion_tokens or self.max_tokens

    def named_grammar(self) -> tuple[str, Grammar] | None:
        named = super().named_grammar()
        if not self.offered:
            return named
        text = named[1] if named else None
        if text is not None and text.kind is not GrammarKind.JSON_SCHEMA:
            raise invalid("tools", "tools: the only other form that answers may have is JSON")
        must_call = self.tool_choice not in (None, "auto")
        parallel = self.parallel_tool_calls is not False
        return "tools", tool_grammar(
            self.offered, text=text, must_call=must_call, parallel=parallel
        )


class CompletionRequest(CommonParameters):
    """Body of POST /v1/completions."""

    prompt: PromptBody
    logprobs: Annotated[int, Field(ge=0, le=5)] | None = None
    echo: bool | None = Field(default=None, description="Begin the answer with its prompt.")
    suffix: str | None = Field(
        default=None, description="Text that follows the answer, for models that fill in."
    )

    def check(self) -> None:
        super().check()
        if self.echo and (self.suffix or self.logprobs is not None or self.truncate == "oldest"):
            raise invalid("echo", "echo: not beside suffix, logprobs or truncate")

    @property
    def after(self) -> str:
        return self.suffix or ""

    @property
    def likeliest(self) -> int | None:
        return self.logprobs
