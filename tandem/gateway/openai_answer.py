"""Answers as OpenAI's objects: whole, or as the chunks of a stream. Invariant: the chunks of a
choice, joined, are the choice that would have been sent whole; what is Tandem's own stands in the
field `tandem` of a choice and nowhere else; `metrics` are vLLM's."""

import math
import time
import uuid
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field, create_model

from tandem.core.errors import FailedPrecondition
from tandem.gateway.base_models import Absent, Answer, absent
from tandem.gateway.choice_reader import (
    CallPiece,
    ChoiceReader,
    Parts,
    Piece,
    ReasoningOptions,
)
from tandem.gateway.event_stream import OPENAI_STREAM, StreamForm
from tandem.gateway.parallel_choices import ChoiceDelta
from tandem.generation.client import Generated, TopLogprobs
from tandem.generation.figures import (
    DraftingMetrics,
    Figures,
    dataclass_fields,
    figures_of,
    speculative_decoding_metrics,
)
from tandem.generation.request import GenerationRequest
from tandem.text.families import CallFormat
from tandem_api.common.v1.generation_pb2 import Summary

ChatEnd = Literal["stop", "length", "tool_calls"]
CompletionEnd = Literal["stop", "length"]


class TokenProvenance(Answer):
    id: int
    source: str | None = Field(description="The model that produced the token. Null: unknown.")
    text: str | None = absent("Text of the token. Present if `token_texts` was requested.")


class RoundReport(Answer):
    """One draft-and-verify round. `in_flight`: draft tokens not yet verified when the round ended.
    Times are in seconds, each measured on the machine that did the work."""

    drafted: int
    accepted: int
    in_flight: int
    round_s: float
    draft_s: float
    verify_s: float
    queue_s: float
    resumes: int = Field(description="Number of reconnections so far.")


class ChunkExtension(Answer):
    """Tandem's additions to a chunk of a choice."""

    provenance: list[TokenProvenance] | None = absent("Present if `provenance` was requested.")
    rounds_ended: list[RoundReport] | None = absent(
        "Rounds that produced these tokens. Present if `rounds` was requested."
    )


if TYPE_CHECKING:

    class ChoiceExtension(ChunkExtension):
        def __init__(self, **figures: Any) -> None: ...
else:
    ChoiceExtension = create_model(
        "ChoiceExtension",
        __base__=ChunkExtension,
        __doc__="Tandem's additions to a choice, or to the last chunk of one.",
        seed=(int, ...),
        session=(str, ...),
        **dataclass_fields(Figures, absent=Absent),
    )


class LikelyToken(Answer):
    token: str
    logprob: float | None = Field(description="Null if the target model did not verify the token.")
    bytes: list[int] = Field(
        description="Bytes of the token. The bytes of all tokens together are the answer's UTF-8"
        " text. A token that ends inside a character has bytes but no text."
    )


class ContentLogprob(LikelyToken):
    top_logprobs: list[LikelyToken]


class ChatLogprobs(Answer):
    content: list[ContentLogprob]
    refusal: None = None


class CompletionLogprobs(Answer):
    """With `echo`, the tokens of the prompt come first."""

    tokens: list[str]
    token_logprobs: list[float | None] = Field(
        description="Null for the first token of the prompt, and for a token that the target model"
        " did not verify."
    )
    top_logprobs: list[dict[str, float] | None] | None
    text_offset: list[int]


class PromptDetails(Answer):
    cached_tokens: int = Field(description="Prompt tokens found in the cloud's prefix cache.")


class CompletionDetails(Answer):
    reasoning_tokens: int = Field(
        description="Tokens of thinking, with the tags around it. They count as completion tokens."
    )
    accepted_prediction_tokens: int = Field(
        description="Tokens of the answers that were drafted from `prediction`."
    )
    rejected_prediction_tokens: int = Field(
        description="Tokens drafted from `prediction` that are not in the answers. They are not"
        " part of `completion_tokens`."
    )


class Usage(Answer):
    """Token counts. Each prompt counts once, even if it has several choices. The details come with
    the end of an answer."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptDetails | None = Absent
    completion_tokens_details: CompletionDetails | None = Absent


class AnswerMetrics(Answer):
    """Present if drafts were verified."""

    speculative_decoding: DraftingMetrics


class CalledFunction(Answer):
    name: str | None = Absent
    arguments: str = Field(description="Arguments as JSON.")


class ToolCall(Answer):
    """A tool call in a message of the assistant. In a stream the first part has id, type and name;
    later parts append to the arguments."""

    index: int | None = absent("Which call of the message this is a part of. Only in streams.")
    id: str | None = Absent
    type: Literal["function"] | None = Absent
    function: CalledFunction


class AssistantMessage(Answer):
    role: Literal["assistant"] = "assistant"
    content: str | None = Field(description="Null if the message contains only tool calls.")
    refusal: None = None
    annotations: list[Any] = Field(default_factory=list, description="Always empty.")
    reasoning_content: str | None = absent("The model's thinking. Present if there is any.")
    tool_calls: list[ToolCall] | None = Absent


class AssistantDelta(Answer):
    role: Literal["assistant"] | None = Absent
    content: str | None = Absent
    reasoning_content: str | None = Absent
    tool_calls: list[ToolCall] | None = Absent


class ChatChoice(Answer):
    index: int
    message: AssistantMessage
    logprobs: ChatLogprobs | None
    finish_reason: ChatEnd
    tandem: ChoiceExtension


class ChatChunkChoice(Answer):
    index: int
    delta: AssistantDelta
    logprobs: ChatLogprobs | None
    finish_reason: ChatEnd | None
    tandem: ChoiceExtension | ChunkExtension | None = Absent


class CompletionChoice(Answer):
    index: int
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: CompletionEnd
    tandem: ChoiceExtension


class CompletionChunkChoice(Answer):
    index: int
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: CompletionEnd | None
    tandem: ChoiceExtension | ChunkExtension | None = Absent


class _Frame(Answer):
    id: str
    created: int
    model: str
    system_fingerprint: str
    metrics: AnswerMetrics | None = Absent


class ChatCompletion(_Frame):
    object: Literal["chat.completion"] = "chat.completion"
    choices: list[ChatChoice]
    usage: Usage


class TextCompletion(_Frame):
    object: Literal["text_completion"] = "text_completion"
    choices: list[CompletionChoice]
    usage: Usage


class _ChunkFrame(_Frame):
    usage: Usage | None = absent(
        "Of the choice so far with `continuous_usage_stats`, else of all choices, in the last event"
        " if it was requested."
    )


class ChatCompletionChunk(_ChunkFrame):
    """Event of a streamed chat completion. If usage was requested, the last event has the usage and
    no choices. The last event has the metrics."""

    object: Literal["chat.completion.chunk"] = "chat.completion.chunk"
    choices: list[ChatChunkChoice]


class TextCompletionChunk(_ChunkFrame):
    """Event of a streamed text completion. If usage was requested, the last event has the usage and
    no choices. The last event has the metrics."""

    object: Literal["text_completion"] = "text_completion"
    choices: list[CompletionChunkChoice]


@dataclass(slots=True)
class OpenAIWriter:
    """Writes the answer to one HTTP request, as a chat or as a text completion. `include_usage`: a
    stream ends with it; `continuous_usage`: every chunk has that of its choice so far.
    `tool_named`: the request named the tool to call. `calls`: how the model writes tool calls; None
    if it is offered no tools. `echoes`: the text of each prompt that its choices begin with; None
    where the prompt's tokens say it. `reads_prompt`: their log-probabilities are told with it.
    `prompt_only`: nothing else is."""

    chat: bool
    model: str
    fingerprint: str
    requests: Sequence[GenerationRequest]
    prompts: int = 1
    echoes: Sequence[str | None] = ()
    reads_prompt: bool = False
    prompt_only: bool = False
    tool_named: bool = False
    calls: CallFormat | None = None
    reasoning: ReasoningOptions = field(default_factory=ReasoningOptions)
    provenance: bool = False
    token_texts: bool = False
    include_usage: bool = False
    continuous_usage: bool = False
    stream_form: StreamForm = OPENAI_STREAM
    number: str = field(default_factory=lambda: uuid.uuid4().hex)
    _ended: dict[int, Summary] = field(default_factory=dict)
    _rounds_told: Counter[int] = field(default_factory=Counter)
    _readers: list[ChoiceReader] = field(default_factory=list)
    _begun: set[int] = field(default_factory=set)
    _created: int = field(default_factory=lambda: int(time.time()))

    def __post_init__(self) -> None:
        self._readers += [ChoiceReader(self.reasoning, self.calls) for _ in self.requests]

    @property
    def id(self) -> str:
        return ("chatcmpl-" if self.chat else "cmpl-") + self.number

    def whole(self, deltas: Sequence[ChoiceDelta]) -> ChatCompletion | TextCompletion:
        """Return the whole answer, from the last piece of each choice."""
        ended = sorted((delta for delta in deltas if delta.ended), key=lambda each: each.index)
        choices = [self._whole_choice(last) for last in ended]
        frame = {**self._frame(), "choices": choices, "usage": self._usage()}
        metrics = self._metrics()
        if self.chat:
            return ChatCompletion(**frame, metrics=metrics)
        return TextCompletion(**frame, metrics=metrics)

    def _whole_choice(self, last: ChoiceDelta) -> ChatChoice | CompletionChoice:
        answer = last.answer
        self._end(last)
        self._check_prompt_told(answer)
        end = 0 if self.prompt_only else last.begins_at
        text = "" if self.prompt_only else answer.text
        choice: dict[str, Any] = {
            "index": last.index,
            "logprobs": self._logprobs(answer, 0, end, with_prompt=self.reads_prompt),
            "tandem": ChoiceExtension(
                **self._figures(last),
                provenance=self._tokens(answer, 0, end),
                rounds_ended=self._rounds(last),
            ),
        }
        if not self.chat:
            text = self._echo(last.index, answer) + text
            return CompletionChoice(**choice, text=text, finish_reason=self._finish_reason(last))
        parts = Parts.of(self._readers[last.index].push(answer, text, ended=True))
        calls = [
            ToolCall(
                id=self._call_id(last.index, place),
                type="function",
                function=CalledFunction(name=name, arguments=arguments),
            )
            for place, (name, arguments) in enumerate(parts.calls)
        ]
        message = AssistantMessage(
            content=parts.text or (None if calls else ""),
            reasoning_content=parts.thinking or None,
            tool_calls=calls or None,
        )
        return ChatChoice(**choice, message=message, finish_reason=self._finish_reason(last))

    def events(self, delta: ChoiceDelta) -> Iterator[ChatCompletionChunk | TextCompletionChunk]:
        """Yield the chunk of a piece, if it says anything."""
        first = delta.index not in self._begun
        if first and self.reads_prompt and not (delta.token_ids or delta.ended):
            return  # the first chunk has the prompt's log-probabilities, which are known then
        self._begun.add(delta.index)
        tokens = 0 if self.prompt_only else len(delta.token_ids)
        with_prompt = first and self.reads_prompt
        if with_prompt:
            self._check_prompt_told(delta.answer)
        text = "" if self.prompt_only else delta.text
        if first:
            text = self._echo(delta.index, delta.answer) + text
        if not ((first and self.chat) or tokens or text or with_prompt or delta.ended):
            return
        begin = delta.begins_at
        end = begin + tokens
        told = bool(tokens or with_prompt)
        choice: dict[str, Any] = {
            "index": delta.index,
            "logprobs": self._logprobs(delta.answer, begin, end, with_prompt) if told else None,
        }
        if self.chat:
            pieces = self._readers[delta.index].push(delta.answer, text, delta.ended)
            choice["delta"] = self._delta(delta.index, pieces, first)
        else:
            choice["text"] = text
        provenance = self._tokens(delta.answer, begin, end) if tokens else None
        rounds = self._rounds(delta)
        choice["finish_reason"] = None
        if delta.ended:
            self._end(delta)
            choice["finish_reason"] = self._finish_reason(delta)
            choice["tandem"] = ChoiceExtension(
                **self._figures(delta), provenance=provenance, rounds_ended=rounds
            )
        elif provenance or rounds:
            choice["tandem"] = ChunkExtension(provenance=provenance, rounds_ended=rounds)
        usage = None
        if self.continuous_usage:
            usage = _usage(delta.answer.prompt_tokens, end)
        is_last = len(self._ended) == len(self.requests)
        yield self._chunk(
            [choice], usage, self._metrics() if is_last and not self.include_usage else None
        )
        if is_last and self.include_usage:
            yield self._chunk([], self._usage(), self._metrics())

    def _chunk(
        self, choices: list[dict[str, Any]], usage: Usage | None, metrics: AnswerMetrics | None
    ) -> ChatCompletionChunk | TextCompletionChunk:
        frame = self._frame()
        if self.chat:
            written = [ChatChunkChoice(**each) for each in choices]
            return ChatCompletionChunk(**frame, choices=written, usage=usage, metrics=metrics)
        texts = [CompletionChunkChoice(**each) for each in choices]
        return TextCompletionChunk(**frame, choices=texts, usage=usage, metrics=metrics)

    def _delta(self, index: int, pieces: Sequence[Piece], first: bool) -> AssistantDelta:
        parts = Parts.of(piece for piece in pieces if not isinstance(piece, CallPiece))
        calls = [
            ToolCall(
                index=piece.index,
                id=None if piece.name is None else self._call_id(index, piece.index),
                type=None if piece.name is None else "function",
                function=CalledFunction(name=piece.name, arguments=piece.arguments),
            )
            for piece in pieces
            if isinstance(piece, CallPiece)
        ]
        return AssistantDelta(
            role="assistant" if first else None,
            content=parts.text or ("" if first and not calls else None),
            reasoning_content=parts.thinking or None,
            tool_calls=calls or None,
        )

    def _call_id(self, index: int, place: int) -> str:
        return f"call_{self.number[:16]}_{index}_{place}"

    def _end(self, last: ChoiceDelta) -> None:
        assert last.answer.summary is not None
        self._ended[last.index] = last.answer.summary

    def _finish_reason(self, ended: ChoiceDelta) -> Any:
        if self._ended[ended.index].finish_reason == "length":
            return "length"
        if self.tool_named:  # the reason says what the model chose; OpenAI has it so, too
            return "stop"
        return "tool_calls" if self._readers[ended.index].has_calls else "stop"

    def _echo(self, index: int, answer: Generated) -> str:
        """Return the beginning of choice `index`: its prompt, if `echo` was requested."""
        if not self.echoes:
            return ""
        text = self.echoes[index * len(self.echoes) // len(self.requests)]
        return "".join(answer.prompt.token_texts) if text is None else text

    def _check_prompt_told(self, answer: Generated) -> None:
        """Raise FailedPrecondition if a service is too old to say how likely a prompt is."""
        if self.reads_prompt and len(answer.prompt.logprobs) < answer.prompt_tokens:
            raise FailedPrecondition(
                "a service is of a version without log-probabilities of prompts"
            )

    def _frame(self) -> dict[str, Any]:
        return {
            "id": self.id,
            "created": self._created,
            "model": self.model,
            "system_fingerprint": self.fingerprint,
        }

    def _figures(self, delta: ChoiceDelta) -> dict[str, Any]:
        seed = self.requests[delta.index].params.seed
        return extension_of(delta.answer, seed)

    def _tokens(self, answer: Generated, begin: int, end: int) -> list[TokenProvenance] | None:
        if not self.provenance:
            return None
        texts = answer.token_texts[begin:end] if self.token_texts else []
        made = zip(answer.token_ids[begin:end], answer.token_sources[begin:end], strict=True)
        return [
            TokenProvenance(
                id=token, source=source or None, text=texts[place] if place < len(texts) else None
            )
            for place, (token, source) in enumerate(made)
        ]

    def _rounds(self, delta: ChoiceDelta) -> list[RoundReport] | None:
        """Return the rounds that were not reported so far, if there are any. A caller that did not
        ask for rounds gets none."""
        new = delta.answer.rounds[self._rounds_told[delta.index] :]
        self._rounds_told[delta.index] += len(new)
        names = RoundReport.model_fields
        return [
            RoundReport(**{name: getattr(each, name) for name in names}) for each in new
        ] or None

    def _metrics(self) -> AnswerMetrics | None:
        """Return the metrics over all choices; None if no drafts were verified."""
        figures = speculative_decoding_metrics(list(self._ended.values()))
        return None if figures is None else AnswerMetrics(speculative_decoding=figures)

    def _usage(self) -> Usage:
        """Return the token counts. However many choices a prompt has, it counts once, and so do its
        tokens that were cached before its first choice."""
        summaries = [self._ended[index] for index in sorted(self._ended)]
        first_choices = summaries[:: len(self.requests) // self.prompts]
        details = CompletionDetails.model_fields
        return _usage(
            sum(summary.prompt_tokens for summary in first_choices),
            0 if self.prompt_only else sum(summary.tokens for summary in summaries),
            prompt_tokens_details=PromptDetails(
                cached_tokens=sum(summary.cached_tokens for summary in first_choices)
            ),
            completion_tokens_details=CompletionDetails(
                **{name: sum(getattr(each, name) for each in summaries) for name in details}
            ),
        )

    def _logprobs(
        self, answer: Generated, begin: int, end: int, with_prompt: bool
    ) -> ChatLogprobs | CompletionLogprobs | None:
        """Return the log-probabilities of the tokens from `begin` to `end`, if the answer has
        them. They are of the distribution that was sampled from; null for a token that nobody
        verified. `with_prompt`: the prompt's tokens come first, by the target's own distribution;
        null for the first, which follows nothing."""
        if not answer.logprobs:
            return None
        if self.chat:
            return ChatLogprobs(content=[_content(answer, place) for place in range(begin, end)])
        prompt = answer.prompt
        texts = prompt.token_texts + answer.token_texts[:end]
        offsets = [0, *accumulate(map(len, texts))]
        first = 0 if with_prompt else len(prompt.token_texts) + begin
        values = (prompt.logprobs + answer.logprobs[:end])[first:]
        tops = (prompt.top_logprobs + answer.top_logprobs[:end])[first:]
        return CompletionLogprobs(
            tokens=texts[first:],
            token_logprobs=[value if math.isfinite(value) else None for value in values],
            top_logprobs=[_by_text(top) for top in tops] if any(tops) else None,
            text_offset=offsets[first:-1],
        )


def extension_of(answer: Generated, seed: int) -> dict[str, Any]:
    """Return what `ChoiceExtension` says of a finished answer."""
    figures = figures_of(answer)
    told = {name: getattr(figures, name) for name in Figures.__dataclass_fields__}
    return {"seed": seed, "session": answer.session, **told}


def _usage(prompt_tokens: int, completion_tokens: int, **details: Any) -> Usage:
    return Usage(
        prompt_tokens=prompt_tokens,
        completion_tokens=completion_tokens,
        total_tokens=prompt_tokens + completion_tokens,
        **details,
    )


def _content(answer: Generated, place: int) -> ContentLogprob:
    """Return a token with its log-probabilities, as a chat has it."""
    value = answer.logprobs[place]
    top = answer.top_logprobs[place]
    spelt: Sequence[bytes | None] = answer.top_bytes[place] or [None] * len(top)
    own = answer.token_bytes[place] if answer.token_bytes else None
    others = [
        LikelyToken(token=text, logprob=logprob, bytes=_bytes(text, other))
        for (_, text, logprob), other in zip(top, spelt, strict=True)
    ]
    text = answer.token_texts[place]
    return ContentLogprob(
        token=text,
        logprob=value if math.isfinite(value) else None,
        bytes=_bytes(text, own),
        top_logprobs=others,
    )


def _bytes(text: str, token_bytes: bytes | None) -> list[int]:
    return list(text.encode() if token_bytes is None else token_bytes)


def _by_text(top: TopLogprobs) -> dict[str, float] | None:
    """Merge tokens with the same text, keeping the most likely; null for a position that nobody
    verified."""
    return {text: logprob for _, text, logprob in reversed(top)} or None
