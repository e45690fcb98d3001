"""What other APIs than OpenAI's are given of the gateway: chats and completions that are answered
as OpenAI's are, and written in another form."""

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Protocol

from fastapi import Request
from starlette.responses import Response

from tandem.gateway.bodies import Writer
from tandem.gateway.event_stream import StreamWriter
from tandem.gateway.parallel_choices import ChoiceDelta
from tandem.gateway.schema import ChatCompletionRequest, CompletionRequest


class AnswerWriter(StreamWriter, Protocol):
    """Writes an answer as events, or whole."""

    def whole(self, deltas: Sequence[ChoiceDelta]) -> dict[str, Any]: ...


Translate = Callable[[Writer], AnswerWriter]
"""Makes a writer in another API's form of the one in OpenAI's."""

AnswerTranslated = Callable[
    [Request, ChatCompletionRequest | CompletionRequest, Translate], Awaitable[Response]
]
"""Answers a request by the chat or completion that it stands for."""
