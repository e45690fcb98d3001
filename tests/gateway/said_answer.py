"""A suite that says a given text, for what is made of an answer's text and of nothing else."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import dataclass, field

from tandem.generation.client import Generated
from tandem.generation.request import GenerationRequest
from tandem_api.common.v1 import generation_pb2 as pb
from tests.gateway.http_suite import NoTexts

PROMPT_TOKENS = 7
CACHED_TOKENS = 4


@dataclass
class Saying(NoTexts):
    """Says `text` a few letters at a time, each letter a token, then ends or raises `error`. It
    keeps what it was asked."""

    text: str
    finish_reason: str = "stop"
    error: Exception | None = None
    asked: list[GenerationRequest] = field(default_factory=list)

    async def stream(
        self, request: GenerationRequest, timeout_s: float
    ) -> AsyncGenerator[Generated]:
        self.asked.append(request)
        answer = Generated(preset="auto", session="s", prompt_tokens=PROMPT_TOKENS)
        yield answer
        for place in range(0, len(self.text), 5):
            part = self.text[place : place + 5]
            answer.take(pb.Committed(text=part, token_ids=range(len(part))), 0.25)
            yield answer
        if self.error is not None:
            raise self.error
        summary = pb.Summary(
            finish_reason=self.finish_reason,
            preset="auto",
            prompt_tokens=PROMPT_TOKENS,
            tokens=len(self.text),
            cached_tokens=CACHED_TOKENS,
        )
        answer.end(summary, 1.0)
        yield answer
