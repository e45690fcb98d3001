"""Request bodies of the HTTP API: OpenAI's fields, plus one extension object, `tandem`. Invariant:
a field that would change an answer, if any server that is known here read it, is read or refused;
all others are ignored."""

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import (
    BeforeValidator,
    ConfigDict,
    Field,
    PlainValidator,
    ValidationError,
    ValidationInfo,
    create_model,
)
from pydantic_core import PydanticCustomError

from tandem.core.default_sampling import NAMES
from tandem.core.processors import Grammar, GrammarKind
from tandem.gateway.base_models import (
    UINT32,
    Body,
    Lenient,
    MinusOne,
    TokenId,
    Zero,
    is_same,
    one_of,
)
from tandem.gateway.choice_reader import ReasoningOptions
from tandem.gateway.constraints import Constraints
from tandem.gateway.errors import invalid, unsupported, validation_error
from tandem.gateway.messages import Message, TextPart
from tandem.gateway.tool_grammar import NamedTool, Tool, ToolChoice, Tools, tool_grammar
from tandem.generation.request_fields import (
    BodyFields,
    RequestField,
    TandemFields,
    fields_of,
)
from tandem.specdec.logprobs import MAX_TOP_LOGPROBS
from tandem.text.families import PLAIN, ModelFamily

MAX_STOPS = 16

Seed = Annotated[int, Field(ge=-1, lt=2**64)]
Stops = Annotated[list[str], Field(max_length=MAX_STOPS, fail_fast=True)]
Count = Annotated[int, Field(ge=1, le=UINT32)]
MaxTokens = Count | MinusOne
"""-1 is llama.cpp's word for no limit; null says the same here."""

ReasoningEffort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]
Verbosity = Literal["low", "medium", "high"]

_USE_N = "this server does not rank answers; send n and choose among them"
_NO_BEAMS = "this server does not search beams; send temperature 0"
_NO_METHOD = "send temperature, top_k, top_p or min_p"
_NO_SHIFT = "nothing is taken out of a prompt; send truncate"
_NO_ADAPTERS = "the target model answers with its own weights"
_NO_CODE = "no code of callers is run; send logit_bias or a grammar"
_ONLY_CHATS = "only chats have it; ask /v1/chat/completions"
_OWN_TEMPLATE = "the model's own chat template is used; send chat_template_kwargs"

_NEUTRAL: Mapping[str, tuple[tuple[Any, ...], str]] = {
    "functions": (([],), "send tools"),
    "function_call": (("none", "auto"), "send tool_choice"),
    "modalities": ((["text"],), 'the models answer with text; send ["text"]'),
    "audio": ((), "the models answer with text"),
    "reasoning_effort": ((), _ONLY_CHATS),
    "verbosity": ((), _ONLY_CHATS),
    "chat_template_kwargs": (({},), _ONLY_CHATS),
    "echo": ((False,), "only completions have it; ask /v1/completions"),
    "suffix": (("",), "only completions have it; ask /v1/completions"),
    "moderation": ((), "this server does not judge texts"),
    "web_search_options": ((), "this server does not search the web"),
    "use_beam_search": ((False,), _NO_BEAMS),
    "length_penalty": ((1.0,), _NO_BEAMS),
    "early_stopping": ((False,), _NO_BEAMS),
    "spaces_between_special_tokens": (
        (True,),
        "tokens are joined as the model's tokenizer joins them",
    ),
    "return_token_ids": ((False,), "send tandem.provenance"),
    "return_tokens_as_token_ids": ((False,), "send tandem.provenance"),
    "return_tokens": ((False,), "send tandem.provenance"),
    "bad_words": (([],), "send banned_token_ids or logit_bias"),
    "json_schema": ((), "send response_format"),
    "grammar": (("",), "send guided_grammar, in Lark syntax"),
    "ebnf": ((), "send guided_grammar, in Lark syntax"),
    "regex": ((), "send guided_regex"),
    "truncate_prompt_tokens": ((), "send truncate"),
    "prompt_embeds": ((), "send prompt"),
    "chat_template": ((), _OWN_TEMPLATE),
    "documents": (([],), "send each as a message with the role document, or tandem.rag"),
    "mm_processor_kwargs": ((), "images are prepared as the model's own settings say"),
    "logits_processors": (([],), "send logit_bias or a grammar"),
    "repeat_last_n": ((-1,), "penalties count the whole text; send -1"),
    "penalize_newline": ((True,), "penalties count every token; send true"),
    "num_keep": ((-1, 0, 4), _NO_SHIFT),
    "n_keep": ((-1, 0), _NO_SHIFT),
    "t_max_predict_ms": ((-1, 0), "send max_tokens"),
    "n_probs": ((0,), "send logprobs"),
    "mirostat": ((0,), _NO_METHOD),
    "tfs_z": ((1.0,), _NO_METHOD),
    "xtc_probability": ((0.0,), _NO_METHOD),
    "dry_multiplier": ((0.0,), _NO_METHOD),
    "dynatemp_range": ((0.0,), _NO_METHOD),
    "top_n_sigma": ((-1.0, 0.0), _NO_METHOD),
    "adaptive_target": ((-1.0,), _NO_METHOD),
    "samplers": (("", []), _NO_METHOD),
    "no_repeat_ngram_size": ((0,), "send repetition_penalty"),
    "num_beams": ((1,), _NO_BEAMS),
    "stop_regex": (("", []), "send stop"),
    "no_stop_trim": ((False,), "send include_stop_str_in_output"),
    "structural_tag": (("",), "send structured_outputs"),
    "guided_whitespace_pattern": ((), "send guided_grammar"),
    "parse_tool_calls": ((True,), "calls are always parsed; leave out tools"),
    "reasoning_format": (
        ("auto", "deepseek", "parsed"),
        "thinking is returned in reasoning_content; send separate_reasoning or include_reasoning",
    ),
    "reasoning_budget": ((-1,), "send thinking_token_budget"),
    "thinking_budget_tokens": ((-1,), "send thinking_token_budget"),
    "prompt_logprobs": ((), "send echo and logprobs to /v1/completions"),
    "lora": (([],), _NO_ADAPTERS),
    "lora_path": (("", []), _NO_ADAPTERS),
    "custom_logit_processor": (("",), _NO_CODE),
    "custom_params": (({},), _NO_CODE),
    "vllm_xargs": (({},), _NO_CODE),
}
"""Parameters of other servers accepted only as null or with these neutral values; any other value
is refused with words for what to send instead."""

_INSTEAD: Mapping[str, str] = {
    "prompt": "send messages, or ask /v1/completions",
    "messages": "send prompt, or ask /v1/chat/completions",
    "input": "ask /v1/responses",
    "system": "send a message with the role system",
    "thinking": "send reasoning_effort, or a variable of the template in chat_template_kwargs",
    "reasoning": "send reasoning_effort, or a variable of the template in chat_template_kwargs",
    "enable_thinking": "send it in chat_template_kwargs",
    "tools": "ask /v1/chat/completions",
    "tool_choice": "ask /v1/chat/completions",
    "max_completion_tokens": "send max_tokens",
    "num_predict": "send max_tokens",
    "max_new_tokens": "send max_tokens",
    "max_output_tokens": "send max_tokens",
    "stop_sequences": "send stop",
    "extra_body": "send what is in it beside the other parameters",
}
"""What to send instead of parameters that only other endpoints, or other APIs, have, and that would
change an answer."""

_OTHER_NAMES: Mapping[str, str] = {
    "n_predict": "max_tokens",
    "repeat_penalty": "repetition_penalty",
    "thinking_budget": "thinking_token_budget",
}
"""Parameters under other names, llama.cpp's and Qwen's, and under the one that they have here."""


def _body_field(row: RequestField) -> tuple[Any, Any]:
    """Return the row as a field in which null means the default, as in OpenAI's own fields."""
    model_s = "the model's own, otherwise " if row.name in NAMES else ""
    words = f"{row.words} Default: {model_s}{json.dumps(row.default)}."
    return row.hint | None, Field(default=None, description=words)


def neutral_fields(*names: str) -> dict[str, Any]:
    """Return parameters of other servers as fields of a model; without names all that are known."""
    rows = {name: _NEUTRAL[name] for name in names} if names else _NEUTRAL
    return {
        name: (Annotated[None, one_of(instead, *neutral)], Field(default=None, description=instead))
        for name, (neutral, instead) in rows.items()
    }


def _tandem_field(row: RequestField) -> tuple[Any, Any]:
    return row.hint, Field(default=row.default, description=row.words)


if TYPE_CHECKING:
    BodyParameters = Body
    TandemParameters = Body
else:  # with the rows of the table of request fields, which `given_fields` reads by their names
    BodyParameters = create_model(
        "BodyParameters",
        __base__=Body,
        **{row.name: _body_field(row) for row in fields_of(BodyFields)},
        **neutral_fields(),
    )
    TandemParameters = create_model(
        "TandemParameters",
        __base__=Body,
        **{row.name: _tandem_field(row) for row in fields_of(TandemFields)},
    )


class StreamOptions(Lenient):
    include_usage: bool = False
    continuous_usage_stats: bool | None = Field(
        default=None,
        description="Return in each chunk the token counts of its choice so far. As in vLLM.",
    )


class TandemOptions(TandemParameters):
    """Options that control how the answer is computed. Only a lossy preset changes the distribution
    of the answer. An unknown one is refused: no other server has them."""

    model_config = ConfigDict(extra="forbid")

    preset: str | None = Field(
        default=None,
        description="Decoding method. GET /v1/models lists the available presets. Default:"
        " `auto`, or the default document preset when `rag` is true.",
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
        description="Stream one token at a time: tokens that became final together are spread over"
        " the time until the next ones are expected.",
    )
    resumable: bool = Field(
        default=False,
        description="Go on when the connection is lost. Requires `stream`. GET"
        " /v1/tandem/streams/{id}, where the id is that of the answer, takes the stream up again,"
        " with the header `Last-Event-ID` after that event, for two minutes after somebody last"
        " read it; DELETE ends it.",
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


class PredictedContent(Lenient):
    """Text that the answer is expected to repeat for the most part."""

    type: Literal["content"]
    content: str | Annotated[list[TextPart], Field(fail_fast=True)]

    @property
    def text(self) -> str:
        if isinstance(self.content, str):
            return self.content
        return "".join(part.text for part in self.content)


def _listed(given: object) -> list[Any]:
    """Return one or several texts, or lists of token ids, as a list. pydantic would try every
    member of the union on every value and record each failure."""
    several = given if _kinds(given) in ({str}, {list}) else [given]
    assert isinstance(several, list)
    if _kinds(several) != {str} and not all(_kinds(each) == {int} for each in several):
        raise ValueError("must be a text, a list of token ids, or a list of either")
    if not all(
        0 <= token <= UINT32 for each in several if isinstance(each, list) for token in each
    ):
        raise ValueError(f"token ids must be between 0 and {UINT32}")
    return [each if isinstance(each, str) else tuple(each) for each in several]


def _kinds(values: object) -> set[type]:
    return set(map(type, values)) if isinstance(values, list) else set()


Texts = Annotated[
    list[str] | list[tuple[int, ...]],
    PlainValidator(_listed, json_schema_input_type=str | list[str] | list[int] | list[list[int]]),
]
"""A text, a list of token ids, or a list of either; read as a list."""


def _unranked(value: object, asked: ValidationInfo) -> object:
    """Return how many answers there are to choose among. Raises unless all of them are returned."""
    if not any(is_same(value, each) for each in (None, 1, asked.data.get("n"))):
        raise PydanticCustomError("unsupported_parameter", "is not supported; " + _USE_N)
    return value


class CommonParameters(Constraints, BodyParameters):
    """Parameters shared by chat and text completions."""

    model_config = ConfigDict(extra="allow")
    other_names: ClassVar[frozenset[str]] = frozenset(_INSTEAD)

    model: str
    max_tokens: MaxTokens | None = Field(
        default=None,
        description="Maximum tokens of the answer. Default, or -1: as many as the context and the"
        " server's limits allow.",
    )
    n_predict: MaxTokens | None = Field(
        default=None, description="llama.cpp's name for `max_tokens`."
    )
    temperature: Annotated[float, Field(ge=0, le=2)] | None = Field(
        default=None,
        description="Sampling temperature. 0: always take the most likely token. Default: the"
        " model's own, otherwise 1.",
    )
    top_p: Annotated[float, Field(gt=0, le=1)] | None = Field(
        default=None,
        description="Sample from the most likely tokens with this total probability. Default: the"
        " model's own, otherwise 1.",
    )
    n: Annotated[int, Field(ge=1, le=128)] | None = None
    best_of: Annotated[
        int | None, BeforeValidator(_unranked, json_schema_input_type=int | None)
    ] = Field(default=None, description=f"1, or as many as `n`. Otherwise: {_USE_N}.")
    stop: str | Stops | None = None
    stop_token_ids: Annotated[list[TokenId], Field(max_length=64, fail_fast=True)] | None = Field(
        default=None,
        description="Token ids that end the answer, in addition to the model's end-of-text tokens.",
    )
    top_k: Annotated[int, Field(ge=-1, le=UINT32)] | None = Field(
        default=None,
        description="Sample from the `top_k` most likely tokens. 0 or -1: no limit."
        " Default: the model's own, otherwise no limit.",
    )
    skip_special_tokens: bool | None = Field(
        default=None,
        description="Leave special tokens out of the text. Default: true. If false, the one that"
        " ends the answer is part of the text only with `include_stop_str_in_output`.",
    )
    repeat_penalty: Annotated[float, Field(gt=0, le=10)] | None = Field(
        default=None, description="llama.cpp's name for `repetition_penalty`."
    )
    thinking_budget: Annotated[int, Field(ge=-1, le=UINT32)] | None = Field(
        default=None, description="Qwen's name for `thinking_token_budget`."
    )
    seed: Seed | None = Field(
        default=None,
        description="Seed of the sampling. Default, or -1: a random one, which is in the answer.",
    )
    prediction: PredictedContent | None = Field(
        default=None,
        description="Text that the answer is expected to repeat for the most part, such as a file"
        " that is to be edited. Drafts are taken from it. It does not change the distribution of"
        " the answer. Presets that do not draft chains of tokens ignore it.",
    )
    store: bool | None = Field(
        default=None,
        description="`false`: drafter and cloud do not remember the text, and do not draft it from"
        " earlier ones, like `tandem.no_memory`. The prefix cache keeps the prompt as it keeps any."
        " The server never stores answers to be fetched later.",
    )
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    tandem: TandemOptions = TandemOptions()

    def check(self) -> None:
        """Validate across fields.
        Raises ApiError for parameters that would have to be ignored."""
        for name, value in (self.model_extra or {}).items():
            if name == "reasoning" and isinstance(value, dict):
                value = {key: each for key, each in value.items() if key != "summary"}
            if name in _INSTEAD and value not in (None, [], {}):
                raise unsupported(name, _INSTEAD[name])
        for name, here in _OTHER_NAMES.items():
            given = getattr(self, name)
            if given is not None and dict(self)[here] not in (None, given):
                raise invalid(name, f"{name}: set either {name} or {here}, not both")
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
    def reads_prompt(self) -> bool:
        """Whether the log-probabilities of the prompt's tokens are asked for."""
        return False

    @property
    def prompt_only(self) -> bool:
        """Whether nothing but the prompt is to be returned. A token is computed all the same, and
        left out."""
        return False

    @property
    def max_output_tokens(self) -> int | None:
        """The caller's limit on the tokens of the answer; None: not set."""
        return _limit(self.max_tokens, self.n_predict)

    @property
    def limit_name(self) -> str:
        """The name under which the caller sent that limit."""
        names = ("max_tokens", "n_predict")
        return next((name for name in names if getattr(self, name) is not None), names[0])

    @property
    def given(self) -> dict[str, Any]:
        """Parameters by the names that they have here, also those sent under another one."""
        sent = dict(self)
        others = {here: sent[name] for name, here in _OTHER_NAMES.items() if sent[name] is not None}
        return sent | others


class ChatCompletionRequest(CommonParameters):
    """Body of POST /v1/chat/completions."""

    messages: Annotated[list[Message], Field(min_length=1, fail_fast=True)]
    max_completion_tokens: MaxTokens | None = Field(
        default=None, description="OpenAI's newer name for `max_tokens`."
    )
    chat_template_kwargs: dict[str, Any] | None = Field(
        default=None,
        description="Variables of the model's chat template, for example"
        ' `{"enable_thinking": false}`. A template ignores those that it does not know.',
    )
    reasoning_effort: ReasoningEffort | None = Field(
        default=None,
        description="How long the model reasons: the variable `reasoning_effort` of its chat"
        " template. A template that does not know it ignores it.",
    )
    verbosity: Verbosity | None = Field(
        default=None,
        description="How long the answer is: the variable `verbosity` of the chat template. A"
        " template that does not know it ignores it.",
    )
    add_generation_prompt: bool | None = Field(
        default=None,
        description="End the prompt with the beginning of an assistant message. Default: true,"
        " or false if `continue_final_message` is true.",
    )
    continue_final_message: bool | None = Field(
        default=None,
        description="Continue the last message, which must be the assistant's, instead of"
        " beginning a new one.",
    )
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=MAX_TOP_LOGPROBS)] | None = None
    tools: Tools | None = None
    tool_choice: ToolChoice | None = Field(default=None, description="Default: `auto`.")
    include_reasoning: bool | None = Field(
        default=None,
        description="Return the model's thinking in `reasoning_content`. Default: true.",
    )
    separate_reasoning: bool | None = Field(
        default=None,
        description="Take the model's thinking out of `content`. Default: true. If false, the"
        " content is the text as the model wrote it, with the tags around the thinking.",
    )
    parallel_tool_calls: bool | None = Field(
        default=None,
        description="Allow more than one tool call in an answer, unless `tool_choice` names a tool."
        " Default: true, or false if `tool_choice` is `required`.",
    )

    @property
    def reasoning(self) -> ReasoningOptions:
        return ReasoningOptions(
            separate=self.separate_reasoning is not False,
            include=self.include_reasoning is not False,
        )

    @property
    def offered(self) -> list[Tool]:
        """Tools that the model may call: none, all, or the one named by `tool_choice`."""
        if self.tool_choice == "none":
            return []
        tools = self.tools or []
        choice = self.tool_choice
        if not isinstance(choice, NamedTool):
            return tools
        return [tool for tool in tools if tool.function.name == choice.function.name]

    @property
    def tool_named(self) -> bool:
        """Whether `tool_choice` names the one tool to call."""
        return isinstance(self.tool_choice, NamedTool)

    @property
    def may_call_again(self) -> bool:
        """Whether a call may follow the first one. A model that has to call does not choose when to
        stop either, unless it was trained to, so that the answer ends with its call there, except
        where the caller asks for several."""
        if self.tool_named:
            return False
        if self.tool_choice == "required":
            return self.parallel_tool_calls is True
        return self.parallel_tool_calls is not False

    def check(self) -> None:
        super().check()
        names = [tool.function.name for tool in self.tools or ()]
        if len({*names}) < len(names):
            raise invalid("tools", "tools: two tools have the same name")
        if self.tool_choice not in (None, "none", "auto") and not self.tools:
            raise invalid("tool_choice", "tool_choice: requires tools; send tools, or leave it out")
        if self.tool_choice not in (None, "none", "auto") and not self.offered:
            raise invalid("tool_choice", "tool_choice: does not name any of the tools")
        if self.include_reasoning is False and self.separate_reasoning is False:
            raise invalid(
                "include_reasoning",
                "include_reasoning: requires separate_reasoning to be true if it is false",
            )
        for name in ("max_tokens", "n_predict"):
            if getattr(self, name) is not None and self.max_completion_tokens is not None:
                raise invalid(name, f"{name}: set either {name} or max_completion_tokens, not both")
        if self.continue_final_message:
            if self.add_generation_prompt:
                raise invalid(
                    "add_generation_prompt",
                    "add_generation_prompt: must be false if continue_final_message is true",
                )
            if self.messages[-1].role != "assistant":
                raise invalid(
                    "continue_final_message",
                    "continue_final_message: the last message must have the role assistant",
                )
        if self.top_logprobs is not None and not self.logprobs:
            raise invalid("top_logprobs", "top_logprobs: requires logprobs to be true")

    @property
    def template_variables(self) -> dict[str, Any]:
        """All that the caller says about how its messages become a prompt."""
        variables = dict(self.chat_template_kwargs or {})
        for name in ("reasoning_effort", "verbosity"):
            if (value := getattr(self, name)) is not None:
                variables.setdefault(name, value)
        if self.continue_final_message:
            variables |= {"continue_final_message": True, "add_generation_prompt": False}
        elif self.add_generation_prompt is False:
            variables["add_generation_prompt"] = False
        return variables

    @property
    def num_top_logprobs(self) -> int | None:
        return self.top_logprobs or 0 if self.logprobs else None

    @property
    def max_output_tokens(self) -> int | None:
        return _limit(self.max_completion_tokens, self.max_tokens, self.n_predict)

    @property
    def limit_name(self) -> str:
        sent = self.max_completion_tokens is not None
        return "max_completion_tokens" if sent else super().limit_name

    def named_grammar(self, family: ModelFamily = PLAIN) -> tuple[str, Grammar] | None:
        """Return the name and value of the grammar parameter, or None; if tools are offered and the
        model's calls can be constrained, a grammar of these calls. `family`: the model's, which
        writes tool calls in its own way."""
        named = super().named_grammar()
        if not self.offered:
            return named
        if not family.calls.constrained:
            if self.tool_choice not in (None, "auto"):
                raise unsupported("tool_choice", "this model cannot be made to call a tool")
            return named
        text = named[1] if named else None
        if text is not None and text.kind is not GrammarKind.JSON_SCHEMA:
            raise invalid(
                "tools", "tools: can be combined with a JSON schema, but not with another grammar"
            )
        must_call = self.tool_choice not in (None, "auto")
        return "tools", tool_grammar(
            self.offered,
            text=text,
            must_call=must_call,
            parallel=self.may_call_again,
            calls=family.calls,
            after_thinking=family.thinking is not None,
        )


def _limit(*limits: int | None) -> int | None:
    """Return the first limit that is set; None if it is -1, or none is."""
    first = next((limit for limit in limits if limit is not None), -1)
    return None if first == -1 else first


class CompletionRequest(CommonParameters):
    """Body of POST /v1/completions."""

    prompt: Texts
    max_tokens: MaxTokens | Zero | None = Field(
        default=None,
        description="Maximum tokens of the answer. Default, or -1: as many as the context and the"
        " server's limits allow. 0 is allowed with `echo`: only the prompt is returned.",
    )
    logprobs: Annotated[int, Field(ge=0, le=MAX_TOP_LOGPROBS)] | None = Field(
        default=None,
        description="Return the log-probability of each token and of this many most likely tokens.",
    )
    echo: bool | None = Field(
        default=None,
        description="Return the prompt before the answer. With `logprobs`, the tokens of the prompt"
        " have log-probabilities too: those of the target model, without temperature and other"
        " sampling settings.",
    )
    suffix: str | None = Field(
        default=None,
        description="Text after the completion (fill in the middle). Only for models that"
        " support it.",
    )

    def check(self) -> None:
        super().check()
        drops_tokens = dict(self)["truncate"] == "oldest"
        if self.echo and (self.suffix or drops_tokens):
            raise invalid("echo", "echo: cannot be combined with suffix or truncate")
        if self.max_tokens == 0 and not self.echo:
            raise invalid("max_tokens", "max_tokens: must be at least 1, or echo must be true")

    @property
    def num_top_logprobs(self) -> int | None:
        return self.logprobs

    @property
    def reads_prompt(self) -> bool:
        return bool(self.echo) and self.logprobs is not None

    @property
    def prompt_only(self) -> bool:
        return self.max_tokens == 0

    @property
    def max_output_tokens(self) -> int | None:
        return 1 if self.prompt_only else super().max_output_tokens


def chat_from(**body: Any) -> ChatCompletionRequest:
    """Return the chat that another API's body stands for; parameters that are None are not set.
    Raises ApiError for what a chat cannot ask."""
    given = {name: value for name, value in body.items() if value is not None}
    try:
        return ChatCompletionRequest.model_validate(given)
    except ValidationError as error:
        raise validation_error(error.errors(include_url=False)) from None


_OF_STREAMS = frozenset({"stream_options"})
_CHANGE_NOTHING: Mapping[str, tuple[Any, ...]] = {
    "n": (1,),
    "best_of": (1,),
    "repetition_penalty": (1.0,),
    "repeat_penalty": (1.0,),
    "typical_p": (1.0,),
    "top_k": (0, -1),
    "seed": (-1,),
    "max_tokens": (-1,),
    "max_completion_tokens": (-1,),
    "n_predict": (-1,),
    "thinking_token_budget": (-1,),
    "thinking_budget": (-1,),
    "tool_choice": ("auto",),
    "truncate": ("none",),
    "skip_special_tokens": (True,),
    "include_reasoning": (True,),
    "separate_reasoning": (True,),
    "add_generation_prompt": (True,),
    "enable_thinking": (),
}
_SAY_NOTHING: tuple[Any, ...] = (False, 0, "", [], {})
"""Values of a chat's parameters that mean the same as null; of those that are not named here."""


def check_only_of_chats(asked: Body) -> None:
    """Raise ApiError for a parameter that only a chat has, or another server, and that would change
    the answer: the servers that have this API too read some of them there. `asked` keeps what its
    model does not name."""
    known = (ChatCompletionRequest.model_fields.keys() | _INSTEAD.keys()) - _OF_STREAMS
    for name, value in (asked.model_extra or {}).items():
        if name not in known:
            continue
        says_nothing = _CHANGE_NOTHING.get(name, _SAY_NOTHING)
        neutral, why = _NEUTRAL.get(name, (says_nothing, _ONLY_CHATS))
        if not any(is_same(value, each) for each in (None, *neutral)):
            raise unsupported(name, why)
