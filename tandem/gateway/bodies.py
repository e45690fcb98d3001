"""Answers as OpenAI's objects: whole, or as the chunks of a stream. Invariant: the chunks of a
choice, joined, are the choice that would have been sent whole; what is Tandem's own stands in the
field `tandem` of a choice and nowhere else."""

import math
import time
import uuid
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from tandem.gateway.event_stream import OPENAI_STREAM, StreamForm
from tandem.gateway.parallel_choices import ChoiceDelta
from tandem.gateway.tool_calls import ToolAnswer
from tandem.generation.client import Generated, TopLogprobs
from tandem.generation.figures import answer_figures
from tandem.generation.request import GenerationRequest
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
        """A part of a choice; the `first` of a chat says who speaks."""
        if not self.chat:
            return {"text": text}
        if first:
            return {"delta": {"role": "assistant", "content": text}}
        return {"delta": {"content": text} if text else {}}

    def logprobs(self, answer: Generated, begin: int, end: int) -> dict[str, Any] | None:
        """Return the log-probabilities of the tokens from `begin` to `end`, if the answer has
        them. They are of the distribution that was sampled from; null for a token that nobody
        verified."""
        if not answer.logprobs:
            return None
        texts = answer.token_texts[begin:end]
        values = [value if math.isfinite(value) else None for value in answer.logprobs[begin:end]]
        tops = answer.top_logprobs[begin:end]
        if self.chat:
            content = [
                {**_likely(text, value), "top_logprobs": [_likely(*each[1:]) for each in top]}
                for text, value, top in zip(texts, values, tops, strict=True)
            ]
            return {"content": content, "refusal": None}
        before = sum(map(len, answer.token_texts[:begin]))
        return {
            "tokens": texts,
            "token_logprobs": values,
            "top_logprobs": [_by_text(top) for top in tops] if any(tops) else None,
            "text_offset": [before + sum(map(len, texts[:index])) for index in range(len(texts))],
        }


def _likely(text: str, logprob: float | None) -> dict[str, Any]:
    return {"token": text, "logprob": logprob, "bytes": list(text.encode())}


def _by_text(top: TopLogprobs) -> dict[str, float] | None:
    """Merge tokens with the same text, keeping the most likely; null for a position that nobody
    verified."""
    return {text: logprob for _, text, logprob in reversed(top)} or None


_OF_A_ROUND = tuple(field.name for field in RoundFigures.DESCRIPTOR.fields)
CHAT = Form("chatcmpl-", "chat.completion", "chat.completion.chunk", chat=True)
COMPLETION = Form("cmpl-", "text_completion", "text_completion", chat=False)


@dataclass(slots=True)
class Writer:
    """Writes the answer to one HTTP request. `include_usage`: a stream ends with it."""

    form: Form
    model: str
    fingerprint: str
    requests: Sequence[GenerationRequest]
    prompts: int = 1
    echoes: Sequence[str] = ()
    tools: bool = False
    provenance: bool = False
    token_texts: bool = False
    include_usage: bool = False
    _ended: dict[int, Generated] = field(default_factory=dict)
    _begun: set[int] = field(default_factory=set)
    _rounds_told: Counter[int] = field(default_factory=Counter)
    _calling: dict[int, ToolAnswer] = field(default_factory=dict)
    _id: str = field(default_factory=lambda: uuid.uuid4().hex)
    _created: int = field(default_factory=lambda: int(time.time()))

    @property
    def stream_form(self) -> StreamForm:
        return OPENAI_STREAM

    def whole(self, deltas: Sequence[ChoiceDelta]) -> dict[str, Any]:
        """The answer at once, from all of its pieces."""
        choices = []
        for last in sorted((delta for delta in deltas if delta.ended), key=lambda p: p.index):
            self._ended[last.index] = last.answer
            choices.append(
                {
                    "index": last.index,
                    **self._choice(last.index, last.answer.text),
                    "logprobs": self.form.logprobs(last.answer, 0, last.begins_at),
                    "finish_reason": self._finish_reason(last),
                    "tandem": self._figures(last)
                    | self._tokens(last.answer, 0, last.begins_at)
                    | self._rounds(last),
                }
            )
        return {**self._frame(self.form.whole), "choices": choices, "usage": self._usage()}

    def chunk(self, delta: ChoiceDelta) -> dict[str, Any] | None:
        """The piece as a chunk; None where it says nothing."""
        first = delta.index not in self._begun
        self._begun.add(delta.index)
        text = self._echo(delta.index) + delta.text if first else delta.text
        if not ((first and self.form.chat) or delta.token_ids or text or delta.ended):
            return None
        begin = delta.begins_at
        end = begin + len(delta.token_ids)
        choice: dict[str, Any] = {
            "index": delta.index,
            **self._delta(delta, text, first),
            "logprobs": self.form.logprobs(delta.answer, begin, end) if delta.token_ids else None,
            "finish_reason": None,
        }
        tandem = self._tokens(delta.answer, begin, end) if delta.token_ids else {}
        tandem |= self._rounds(delta)
        if delta.ended:
            self._ended[delta.index] = delta.answer
            choice["finish_reason"] = self._finish_reason(delta)
            tandem |= self._figures(delta)
        if tandem:
            choice["tandem"] = tandem
        frame = self._frame(self.form.chunk)
        return {**frame, "choices": [choice], **({"usage": None} if self.include_usage else {})}

    def events(self, delta: ChoiceDelta) -> Iterator[dict[str, Any]]:
        """The chunk of a piece, if it says anything."""
        if (chunk := self.chunk(delta)) is not None:
            yield chunk

    def closing(self) -> Iterator[dict[str, Any]]:
        """The usage, where a stream tells it."""
        if self.include_usage:
            yield self.usage_chunk()

    def usage_chunk(self) -> dict[str, Any]:
        """The last chunk of a stream that tells its usage."""
        return {**self._frame(self.form.chunk), "choices": [], "usage": self._usage()}

    def _choice(self, index: int, text: str) -> dict[str, Any]:
        if self.tools:
            return self._tool_answer(index).message(text)
        return self.form.choice(self._echo(index) + text)

    def _delta(self, delta: ChoiceDelta, text: str, first: bool) -> dict[str, Any]:
        if self.tools:
            return self._tool_answer(delta.index).delta(text, first, delta.ended)
        return self.form.delta(text, first)

    def _tool_answer(self, index: int) -> ToolAnswer:
        return self._calling.setdefault(index, ToolAnswer(f"{self._id[:16]}_{index}"))

    def _finish_reason(self, ended: ChoiceDelta) -> str:
        assert ended.answer.summary is not None
        if ended.answer.summary.finish_reason == "length":
            return "length"
        calling = self._calling.get(ended.index)
        return "tool_calls" if calling is not None and calling.has_calls else "stop"

    def _echo(self, index: int) -> str:
        """Return the beginning of choice `index`: its prompt, if `echo` was requested."""
        return self.echoes[index * len(self.echoes) // len(self.requests)] if self.echoes else ""

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
        for token, sides in zip(provenance, answer.token_sides[begin:end], strict=False):
            token["sides"] = list(sides)
        return {"provenance": provenance}

    def _rounds(self, delta: ChoiceDelta) -> dict[str, Any]:
        """Those not told yet, where there are any: nobody who did not ask for them gets some."""
        new = delta.answer.rounds[self._rounds_told[delta.index] :]
        self._rounds_told[delta.index] += len(new)
        rounds = [{name: getattr(each, name) for name in _OF_A_ROUND} for each in new]
        return {"rounds_ended": rounds} if rounds else {}

    def _usage(self) -> dict[str, Any]:
        """Each prompt counts once, however many choices it has, and so does what was kept of it
        before its first choice."""
        ended = [self._ended[index].summary for index in sorted(self._ended)]
        summaries = [summary for summary in ended if summary is not None]
        first_choices = summaries[:: len(self.requests) // self.prompts]
        prompt = sum(summary.prompt_tokens for summary in first_choices)
        completion = sum(summary.tokens for summary in summaries)
        return {
            "prompt_tokens": prompt,
            "completion_tokens": completion,
            "total_tokens": prompt + completion,
            "prompt_tokens_details": {
                "cached_tokens": sum(summary.cached_tokens for summary in first_choices)
            },
        }
