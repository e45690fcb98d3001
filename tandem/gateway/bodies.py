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
from typing import Any

from tandem.core.errors import FailedPrecondition
from tandem.gateway.event_stream import OPENAI_STREAM, StreamForm
from tandem.gateway.parallel_choices import ChoiceDelta
from tandem.gateway.reasoning import ReasoningOptions, ReasoningReader, joined
from tandem.gateway.tool_calls import ToolAnswer
from tandem.generation.client import Generated, TopLogprobs
from tandem.generation.figures import answer_figures, speculative_decoding_metrics
from tandem.generation.request import GenerationRequest
from tandem.text.families import HERMES, CallFormat
from tandem_api.common.v1.generation_pb2 import RoundFigures


@dataclass(frozen=True, slots=True)
class Form:
    """Form in which one endpoint writes a choice."""

    prefix: str
    whole: str
    chunk: str
    chat: bool

    def choice(self, text: str) -> dict[str, Any]:
        return {"message": {"role": "assistant", "content": text}} if self.chat else {"text": text}

    def delta(self, text: str, first: bool) -> dict[str, Any]:
        """Return a part of a choice; the `first` one of a chat names the role."""
        if not self.chat:
            return {"text": text}
        if first:
            return {"delta": {"role": "assistant", "content": text}}
        return {"delta": {"content": text} if text else {}}

    def logprobs(
        self, answer: Generated, begin: int, end: int, with_prompt: bool = False
    ) -> dict[str, Any] | None:
        """Return the log-probabilities of the tokens from `begin` to `end`, if the answer has
        them. They are of the distribution that was sampled from; null for a token that nobody
        verified. `with_prompt`: the prompt's tokens come first, by the target's own distribution;
        null for the first, which follows nothing."""
        if not answer.logprobs:
            return None
        if self.chat:
            return {"content": _content(answer, begin, end), "refusal": None}
        prompt = answer.prompt
        texts = prompt.token_texts + answer.token_texts[:end]
        offsets = [0, *accumulate(map(len, texts))]
        first = 0 if with_prompt else len(prompt.token_texts) + begin
        values = (prompt.logprobs + answer.logprobs[:end])[first:]
        tops = (prompt.top_logprobs + answer.top_logprobs[:end])[first:]
        return {
            "tokens": texts[first:],
            "token_logprobs": [value if math.isfinite(value) else None for value in values],
            "top_logprobs": [_by_text(top) for top in tops] if any(tops) else None,
            "text_offset": offsets[first:-1],
        }


def _running_usage(prompt_tokens: int, completion_tokens: int) -> dict[str, int]:
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": completion_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
    }


def _content(answer: Generated, begin: int, end: int) -> list[dict[str, Any]]:
    """Return the tokens from `begin` to `end` with their log-probabilities, as a chat has them. A
    service of an older release tells no bytes."""
    token_bytes: Sequence[bytes | None] = answer.token_bytes or [None] * end
    content = []
    for place in range(begin, end):
        value = answer.logprobs[place]
        top = answer.top_logprobs[place]
        spelt: Sequence[bytes | None] = answer.top_bytes[place] or [None] * len(top)
        token = _likely(
            answer.token_texts[place], value if math.isfinite(value) else None, token_bytes[place]
        )
        others = [
            _likely(text, logprob, other)
            for (_, text, logprob), other in zip(top, spelt, strict=True)
        ]
        content.append({**token, "top_logprobs": others})
    return content


def _likely(text: str, logprob: float | None, token_bytes: bytes | None) -> dict[str, Any]:
    spelt = text.encode() if token_bytes is None else token_bytes
    return {"token": text, "logprob": logprob, "bytes": list(spelt)}


def _by_text(top: TopLogprobs) -> dict[str, float] | None:
    """Merge tokens with the same text, keeping the most likely; null for a position that nobody
    verified."""
    return {text: logprob for _, text, logprob in reversed(top)} or None


_COMPLETION_DETAILS = (
    "reasoning_tokens",
    "accepted_prediction_tokens",
    "rejected_prediction_tokens",
)
_OF_A_ROUND = tuple(field.name for field in RoundFigures.DESCRIPTOR.fields)
CHAT = Form("chatcmpl-", "chat.completion", "chat.completion.chunk", chat=True)
COMPLETION = Form("cmpl-", "text_completion", "text_completion", chat=False)


@dataclass(slots=True)
class Writer:
    """Writes the answer to one HTTP request. `include_usage`: a stream ends with it;
    `continuous_usage`: every chunk has that of its choice so far. `tool_named`: the request named
    the tool to call. `calls`: how the model writes tool calls, where it is offered `tools`.
    `echoes`: the text of each prompt that its choices begin with; None where the prompt's tokens
    say it. `reads_prompt`: their log-probabilities are told with it. `prompt_only`: nothing else
    is."""

    form: Form
    model: str
    fingerprint: str
    requests: Sequence[GenerationRequest]
    prompts: int = 1
    echoes: Sequence[str | None] = ()
    reads_prompt: bool = False
    prompt_only: bool = False
    tools: bool = False
    tool_named: bool = False
    calls: CallFormat = HERMES
    reasoning: ReasoningOptions = field(default_factory=ReasoningOptions)
    provenance: bool = False
    token_texts: bool = False
    include_usage: bool = False
    continuous_usage: bool = False
    _ended: dict[int, Generated] = field(default_factory=dict)
    _begun: set[int] = field(default_factory=set)
    _rounds_told: Counter[int] = field(default_factory=Counter)
    _calling: dict[int, ToolAnswer] = field(default_factory=dict)
    _reading: dict[int, ReasoningReader] = field(default_factory=dict)
    _id: str = field(default_factory=lambda: uuid.uuid4().hex)
    _created: int = field(default_factory=lambda: int(time.time()))

    @property
    def stream_form(self) -> StreamForm:
        return OPENAI_STREAM

    def whole(self, deltas: Sequence[ChoiceDelta]) -> dict[str, Any]:
        """Return the whole answer, from the last piece of each choice."""
        choices = []
        for last in sorted((delta for delta in deltas if delta.ended), key=lambda p: p.index):
            answer = last.answer
            self._ended[last.index] = answer
            self._check_prompt_told(answer)
            end = 0 if self.prompt_only else last.begins_at
            text = "" if self.prompt_only else answer.text
            choices.append(
                {
                    "index": last.index,
                    **self._choice(last, text),
                    "logprobs": self.form.logprobs(answer, 0, end, self.reads_prompt),
                    "finish_reason": self._finish_reason(last),
                    "tandem": self._figures(last)
                    | self._tokens(answer, 0, end)
                    | self._rounds(last),
                }
            )
        frame = self._frame(self.form.whole)
        return {**frame, "choices": choices, "usage": self._usage(), **self._metrics()}

    def chunk(self, delta: ChoiceDelta) -> dict[str, Any] | None:
        """Return the piece as a chunk, or None if it would say nothing."""
        first = delta.index not in self._begun
        if first and self.reads_prompt and not (delta.token_ids or delta.ended):
            return None  # the first chunk has the prompt's log-probabilities, which are known then
        self._begun.add(delta.index)
        text = "" if self.prompt_only else delta.text
        tokens = 0 if self.prompt_only else len(delta.token_ids)
        with_prompt = first and self.reads_prompt
        if with_prompt:
            self._check_prompt_told(delta.answer)
        if first:
            text = self._echo(delta.index, delta.answer) + text
        if not ((first and self.form.chat) or tokens or text or with_prompt or delta.ended):
            return None
        begin = delta.begins_at
        end = begin + tokens
        logprobs = None
        if tokens or with_prompt:
            logprobs = self.form.logprobs(delta.answer, begin, end, with_prompt)
        choice: dict[str, Any] = {
            "index": delta.index,
            **self._delta(delta, text, first),
            "logprobs": logprobs,
            "finish_reason": None,
        }
        tandem = self._tokens(delta.answer, begin, end) if tokens else {}
        tandem |= self._rounds(delta)
        if delta.ended:
            self._ended[delta.index] = delta.answer
            choice["finish_reason"] = self._finish_reason(delta)
            tandem |= self._figures(delta)
        if tandem:
            choice["tandem"] = tandem
        chunk = {**self._frame(self.form.chunk), "choices": [choice]}
        if self.continuous_usage:
            chunk["usage"] = _running_usage(delta.answer.prompt_tokens, end)
        elif self.include_usage:
            chunk["usage"] = None
        if len(self._ended) == len(self.requests) and not self.include_usage:
            chunk |= self._metrics()
        return chunk

    def events(self, delta: ChoiceDelta) -> Iterator[dict[str, Any]]:
        """Yield the chunk of a piece, if it says anything."""
        if (chunk := self.chunk(delta)) is not None:
            yield chunk

    def closing(self) -> Iterator[dict[str, Any]]:
        """Yield the usage, if the stream reports it."""
        if self.include_usage:
            yield self.usage_chunk()

    def usage_chunk(self) -> dict[str, Any]:
        """Return the last chunk of a stream that reports its usage."""
        frame = self._frame(self.form.chunk)
        return {**frame, "choices": [], "usage": self._usage(), **self._metrics()}

    def _choice(self, last: ChoiceDelta, text: str) -> dict[str, Any]:
        if not self.form.chat:
            return self.form.choice(self._echo(last.index, last.answer) + text)
        parts = self._reader(last).push(text, ended=True)
        answer = joined(parts, thinks=False)
        choice = self.form.choice(answer)
        if self.tools:
            choice = self._tool_answer(last.index).message(answer)
        if thinking := joined(parts, thinks=True):
            choice["message"]["reasoning_content"] = thinking
        return choice

    def _delta(self, delta: ChoiceDelta, text: str, first: bool) -> dict[str, Any]:
        if not self.form.chat:
            return self.form.delta(text, first)
        parts = self._reader(delta).push(text, delta.ended)
        answer = joined(parts, thinks=False)
        if self.tools:
            choice = self._tool_answer(delta.index).delta(answer, first, delta.ended)
        else:
            choice = self.form.delta(answer, first)
        if thinking := joined(parts, thinks=True):
            choice["delta"]["reasoning_content"] = thinking
        return choice

    def _reader(self, delta: ChoiceDelta) -> ReasoningReader:
        if delta.index not in self._reading:
            self._reading[delta.index] = ReasoningReader(delta.answer, self.reasoning)
        return self._reading[delta.index]

    def _tool_answer(self, index: int) -> ToolAnswer:
        if index not in self._calling:
            self._calling[index] = ToolAnswer(f"{self._id[:16]}_{index}", self.calls)
        return self._calling[index]

    def _finish_reason(self, ended: ChoiceDelta) -> str:
        assert ended.answer.summary is not None
        if ended.answer.summary.finish_reason == "length":
            return "length"
        if self.tool_named:  # the reason says what the model chose; OpenAI has it so, too
            return "stop"
        calling = self._calling.get(ended.index)
        return "tool_calls" if calling is not None and calling.has_calls else "stop"

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

    def _frame(self, kind: str) -> dict[str, Any]:
        return {
            "id": self.form.prefix + self._id,
            "object": kind,
            "created": self._created,
            "model": self.model,
            "system_fingerprint": self.fingerprint,
        }

    def _figures(self, delta: ChoiceDelta) -> dict[str, Any]:
        seed = self.requests[delta.index].params.seed
        return {"seed": seed, "session": delta.answer.session, **answer_figures(delta.answer)}

    def _tokens(self, answer: Generated, begin: int, end: int) -> dict[str, Any]:
        if not self.provenance:
            return {}
        made = zip(answer.token_ids[begin:end], answer.token_sources[begin:end], strict=True)
        provenance: list[dict[str, Any]]
        provenance = [{"id": token, "source": source or None} for token, source in made]
        if self.token_texts:  # a decoder of an earlier version tells none
            for token, text in zip(provenance, answer.token_texts[begin:end], strict=False):
                token["text"] = text
        return {"provenance": provenance}

    def _rounds(self, delta: ChoiceDelta) -> dict[str, Any]:
        """Return the rounds that were not reported so far, if there are any. A caller that did not
        ask for rounds gets none."""
        new = delta.answer.rounds[self._rounds_told[delta.index] :]
        self._rounds_told[delta.index] += len(new)
        rounds = [{name: getattr(each, name) for name in _OF_A_ROUND} for each in new]
        return {"rounds_ended": rounds} if rounds else {}

    def _metrics(self) -> dict[str, Any]:
        """Return the metrics over all choices; empty if no drafts were verified."""
        summaries = [
            answer.summary for answer in self._ended.values() if answer.summary is not None
        ]
        figures = speculative_decoding_metrics(summaries)
        return {} if figures is None else {"metrics": {"speculative_decoding": figures}}

    def _usage(self) -> dict[str, Any]:
        """Return the token counts. However many choices a prompt has, it counts once, and so do its
        tokens that were cached before its first choice."""
        ended = [self._ended[index].summary for index in sorted(self._ended)]
        summaries = [summary for summary in ended if summary is not None]
        first_choices = summaries[:: len(self.requests) // self.prompts]
        prompt = sum(summary.prompt_tokens for summary in first_choices)
        completion = 0 if self.prompt_only else sum(summary.tokens for summary in summaries)
        return {
            "prompt_tokens": prompt,
            "completion_tokens": completion,
            "total_tokens": prompt + completion,
            "prompt_tokens_details": {
                "cached_tokens": sum(summary.cached_tokens for summary in first_choices)
            },
            "completion_tokens_details": {
                name: sum(getattr(summary, name) for summary in summaries)
                for name in _COMPLETION_DETAILS
            },
        }
