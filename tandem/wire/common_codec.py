"""Messages that several conversations have in common: prompts, sampling, who made a token.
Invariant: decoding raises InvalidArgument naming the field for what has no meaning; ranges are
checked where session and vocabulary are known."""

from collections.abc import Iterable
from dataclasses import fields
from enum import Enum
from functools import cache
from typing import Any, TypeVar, cast

from google.protobuf.descriptor import Descriptor
from google.protobuf.message import Message

from tandem.core.default_sampling import DefaultSampling
from tandem.core.errors import InvalidArgument, check_count
from tandem.core.probs import SamplingParams
from tandem.core.processors import (
    MAX_BIASES,
    MAX_LISTED_IDS,
    MAX_MARK_IDS,
    NO_PROCESSORS,
    Grammar,
    GrammarKind,
    Processors,
    Thinking,
)
from tandem.core.prompt import MAX_PROMPT_IDS, MAX_TURNS, Prompt, Turn
from tandem.core.tokens import TokenSource
from tandem.specdec.messages import GenerationParams
from tandem.text.thinking import ThinkingStart
from tandem_api.common.v1 import generation_pb2, sampling_pb2
from tandem_api.decoding.v1 import decoding_pb2
from tandem_api.drafter.v1 import drafter_pb2

Choice = TypeVar("Choice", bound=str)
HasPrompt = generation_pb2.Generation | decoding_pb2.Open | drafter_pb2.TokenizeRequest

MAX_EOS_TOKEN_IDS = 4096
"""Of a model's description."""

_PARAMS = tuple(field.name for field in fields(GenerationParams))
_MESSAGES = ("sampling", "processors")
_PROCESSORS = (
    *("presence_penalty", "frequency_penalty", "repetition_penalty"),
    *("banned_token_ids", "allowed_token_ids", "min_tokens", "end_token_ids"),
)
"""Fields that have one form here and in protobuf."""


def prompt_to_proto(message: HasPrompt, prompt: Prompt) -> None:
    """Write the prompt into a message that has none yet."""
    if isinstance(prompt, str):
        message.text = prompt
        return
    if prompt and isinstance(prompt[0], Turn):
        message.chat.messages.extend(map(_turn_to_proto, prompt))
        return
    message.token_ids.SetInParent()  # also where there are none
    message.token_ids.ids.extend(cast("tuple[int, ...]", prompt))


def prompt_from_proto(message: HasPrompt, most_ids: int = MAX_PROMPT_IDS) -> Prompt:
    """Return the message's prompt. Raises InvalidArgument("prompt") if it has none, or one of too
    many ids or turns."""
    match message.WhichOneof("prompt"):
        case "text":
            return message.text
        case "token_ids":
            check_count(len(message.token_ids.ids), most_ids, "prompt")
            return tuple(message.token_ids.ids)
        case "chat":
            check_count(len(message.chat.messages), MAX_TURNS, "prompt")
            return tuple(map(_turn_from_proto, message.chat.messages))
    raise InvalidArgument("prompt", "is missing")


def _turn_to_proto(turn: Turn) -> sampling_pb2.ChatMessage:
    return sampling_pb2.ChatMessage(
        role=turn.role,
        content=turn.content,
        tool_calls=turn.tool_calls,
        tool_call_id=turn.tool_call_id,
        reasoning_content=turn.reasoning_content,
    )


def _turn_from_proto(message: sampling_pb2.ChatMessage) -> Turn:
    return Turn(
        message.role,
        message.content,
        message.tool_calls,
        message.tool_call_id,
        message.reasoning_content,
    )


def sampling_to_proto(sampling: SamplingParams) -> sampling_pb2.SamplingParams:
    message = sampling_pb2.SamplingParams(
        temperature=sampling.temperature,
        top_k=sampling.top_k,
        top_p=sampling.top_p,
        min_p=sampling.min_p,
    )
    if sampling.typical_p != 1:
        message.typical_p = sampling.typical_p
    return message


def sampling_from_proto(message: sampling_pb2.SamplingParams) -> SamplingParams:
    typical_p = message.typical_p if message.HasField("typical_p") else 1.0
    return SamplingParams(
        temperature=message.temperature,
        top_k=message.top_k,
        top_p=message.top_p,
        min_p=message.min_p,
        typical_p=typical_p,
    )


def default_sampling_to_proto(
    defaults: DefaultSampling,
) -> sampling_pb2.DefaultSampling | None:
    """Encode what a model recommends; None if it recommends nothing."""
    named: dict[str, Any] = {**defaults.named}
    return sampling_pb2.DefaultSampling(**named) if named else None


def default_sampling_from_proto(model: sampling_pb2.ModelDescription) -> DefaultSampling:
    """Decode what a model recommends. A value that no request could have is ignored."""
    named = {field.name: value for field, value in model.default_sampling.ListFields()}
    # Protobuf has single precision: 0.7 would come as 0.699999988079071.
    rounded = {name: float(f"{value:.6g}") for name, value in named.items() if name != "top_k"}
    return DefaultSampling.from_config(named | rounded, model.vocabulary_size)


def processors_to_proto(processors: Processors) -> sampling_pb2.Processors:
    message = sampling_pb2.Processors(
        logit_bias=[
            sampling_pb2.LogitBias(token_id=token_id, bias=bias)
            for token_id, bias in processors.logit_bias
        ],
        **{name: getattr(processors, name) for name in _PROCESSORS},
    )
    if (grammar := processors.grammar) is not None:
        message.grammar.kind = _GRAMMARS[grammar.kind]
        message.grammar.source = grammar.source
    if (thinking := processors.thinking) is not None:
        message.thinking.begin_ids.extend(thinking.begin_ids)
        message.thinking.end_ids.extend(thinking.end_ids)
        if thinking.budget is not None:
            message.thinking.budget = thinking.budget
    return message


def processors_from_proto(message: sampling_pb2.Processors) -> Processors:
    check_count(len(message.logit_bias), MAX_BIASES, "logit_bias")
    for name in ("banned_token_ids", "allowed_token_ids", "end_token_ids"):
        check_count(len(getattr(message, name)), MAX_LISTED_IDS, name)
    grammar = None
    if message.HasField("grammar"):
        kind = choice_of(_GRAMMARS, message.grammar.kind, "grammar")
        grammar = Grammar(kind, message.grammar.source)
    thinking = _thinking_from_proto(message.thinking) if message.HasField("thinking") else None
    absent = {} if message.HasField("repetition_penalty") else {"repetition_penalty": 1.0}
    return Processors(
        logit_bias=tuple((bias.token_id, bias.bias) for bias in message.logit_bias),
        grammar=grammar,
        thinking=thinking,
        **same_fields(message, _PROCESSORS) | absent,
    )


def _thinking_from_proto(message: sampling_pb2.Thinking) -> Thinking:
    for name in ("begin_ids", "end_ids"):
        check_count(len(getattr(message, name)), MAX_MARK_IDS, f"thinking.{name}")
    return Thinking(
        end_ids=tuple(message.end_ids),
        begin_ids=tuple(message.begin_ids),
        budget=message.budget if message.HasField("budget") else None,
    )


def params_to_proto(params: GenerationParams) -> sampling_pb2.GenerationParams:
    nested: dict[str, Message] = {"sampling": sampling_to_proto(params.sampling)}
    if params.processors.active:
        nested["processors"] = processors_to_proto(params.processors)
    same = {name: getattr(params, name) for name in _PARAMS if name not in _MESSAGES}
    return sampling_pb2.GenerationParams(**same | nested)


def params_from_proto(message: sampling_pb2.GenerationParams) -> GenerationParams:
    processors = NO_PROCESSORS
    if message.HasField("processors"):
        processors = processors_from_proto(message.processors)
    return GenerationParams(
        sampling=sampling_from_proto(message.sampling),
        processors=processors,
        **same_fields(message, [name for name in _PARAMS if name not in _MESSAGES]),
    )


def same_fields(message: Message, names: Iterable[str]) -> dict[str, Any]:
    """Return the fields that a dataclass has under the same names, repeated ones as tuples."""
    values = {name: getattr(message, name) for name in names}
    repeated = _repeated_fields(message.DESCRIPTOR)
    return {name: tuple(value) if name in repeated else value for name, value in values.items()}


@cache
def _repeated_fields(kind: Descriptor) -> frozenset[str]:
    return frozenset(field.name for field in kind.fields if field.is_repeated)


def numbers_of(choices: Iterable[Choice], enum: Any, prefix: str) -> dict[Choice, Any]:
    """Return the number of each choice in protobuf, where its name begins with `prefix`."""
    names = {choice: choice.name if isinstance(choice, Enum) else choice for choice in choices}
    return {choice: enum.Value(f"{prefix}_{name}".upper()) for choice, name in names.items()}


def choice_of(table: dict[Any, Any], number: int, field: str) -> Any:
    """Return the choice with that number. Raises InvalidArgument(field) for an unknown one."""
    for choice, value in table.items():
        if value == number:
            return choice
    raise InvalidArgument(field, f"unknown value {number}")


_GRAMMARS = numbers_of(GrammarKind, sampling_pb2.GrammarKind, "GRAMMAR_KIND")
_TOKEN_SOURCES = numbers_of(TokenSource, generation_pb2.TokenSource, "TOKEN_SOURCE")
THINKING_STARTS: dict[ThinkingStart, generation_pb2.ThinkingStart.ValueType] = {
    ThinkingStart.NONE: generation_pb2.THINKING_START_UNSPECIFIED,
    ThinkingStart.POSSIBLE: generation_pb2.THINKING_START_POSSIBLE,
    ThinkingStart.OPENED: generation_pb2.THINKING_START_OPENED,
}
_SOURCES_BY_NUMBER = {number: source for source, number in _TOKEN_SOURCES.items()}


def token_sources_to_proto(
    token_sources: Iterable[TokenSource],
) -> list[generation_pb2.TokenSource.ValueType]:
    """Return the messages of token sources, in their order."""
    return [_TOKEN_SOURCES[token_source] for token_source in token_sources]


def token_sources_from_proto(
    numbers: Iterable[generation_pb2.TokenSource.ValueType],
) -> list[TokenSource | None]:
    """Return the token sources of messages, in their order; None for one that this version does not
    know."""
    return [_SOURCES_BY_NUMBER.get(number) for number in numbers]
