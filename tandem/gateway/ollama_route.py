"""Routes of Ollama's API, for programs that speak no other. Invariant: what they ask goes the way
of OpenAI's routes, so that it is admitted, limited, counted and ended as theirs."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from fastapi import FastAPI, Request
from pydantic import ValidationError
from starlette.responses import Response

from tandem.core.version import __version__
from tandem.gateway.catalog import Catalog
from tandem.gateway.choice_reader import Parts
from tandem.gateway.connection_body import cancel_on_disconnect
from tandem.gateway.errors import (
    OLLAMA_PREFIX,
    OllamaError,
    json_response,
    validation_error,
)
from tandem.gateway.ollama import (
    OllamaAnswer,
    OllamaChatRequest,
    OllamaEmbeddings,
    OllamaEmbedRequest,
    OllamaGenerateRequest,
    OllamaModelCard,
    OllamaModels,
    OllamaShowRequest,
    OllamaVersion,
    OllamaWriter,
    answer_line,
    chat_of,
    generation_of,
    model_details,
    model_entry,
    nanoseconds,
)
from tandem.gateway.openapi import FROM_THE_SUITE, OF_A_BODY, WITH_A_KEY, add_route
from tandem.gateway.schema import ChatCompletionRequest
from tandem.gateway.text_endpoints import EmbeddingList, EmbeddingRequest

_LATEST = ":latest"


class OllamaRoute:
    """`answer` answers a chat or a completion, as a stream if that is wanted, by the writer that is
    made given how the model writes tool calls; `embeddings` a body of /v1/embeddings."""

    def __init__(
        self,
        catalog: Catalog,
        ending: asyncio.Event,
        answer: Callable[..., Awaitable[Response]],
        embeddings: Callable[[EmbeddingRequest], Coroutine[Any, Any, EmbeddingList]],
    ) -> None:
        self._catalog = catalog
        self._ending = ending
        self._answer = answer
        self._embeddings = embeddings

    def add_routes(self, app: FastAPI) -> None:
        posted = (*FROM_THE_SUITE, *OF_A_BODY)
        for method, name, handler, answer, refusals in (
            ("POST", "chat", self.ollama_chat, OllamaAnswer, posted),
            ("POST", "generate", self.ollama_generate, OllamaAnswer, posted),
            ("POST", "embed", self.ollama_embed, OllamaEmbeddings, posted),
            ("POST", "show", self.ollama_show, OllamaModelCard, posted),
            ("GET", "tags", self.ollama_tags, OllamaModels, FROM_THE_SUITE),
            ("GET", "version", self.ollama_version, OllamaVersion, WITH_A_KEY),
        ):
            add_route(
                app,
                method,
                f"{OLLAMA_PREFIX}{name}",
                handler,
                answer=answer,
                refusals=refusals,
                error=OllamaError,
                lines=answer is OllamaAnswer,
            )

    async def ollama_chat(self, request: Request, body: OllamaChatRequest) -> Response:
        """Complete a conversation as Ollama does."""
        model = await self._model(body.model)
        if not body.messages:
            return await self._loaded(body.model, model, chat=True)
        return await self._answer(
            request,
            chat_of(body, model),
            body.streamed,
            lambda calls: OllamaWriter(body.model, chat=True, calls=calls),
        )

    async def ollama_generate(self, request: Request, body: OllamaGenerateRequest) -> Response:
        """Complete a prompt as Ollama does."""
        model = await self._model(body.model)
        if not (body.prompt or body.suffix or body.images):
            return await self._loaded(body.model, model, chat=False)
        asked = generation_of(body, model)
        reads = isinstance(asked, ChatCompletionRequest)
        return await self._answer(
            request,
            asked,
            body.streamed,
            lambda calls: OllamaWriter(body.model, chat=False, reads=reads),
        )

    async def ollama_embed(self, request: Request, body: OllamaEmbedRequest) -> Response:
        """Return embeddings as Ollama does."""
        began_s = time.monotonic()
        given = body.model_dump(include={"input", "dimensions", "truncate"})
        try:
            wanted = EmbeddingRequest(model=await self._model(body.model), **given)
        except ValidationError as error:
            raise validation_error(error.errors(include_url=False)) from None
        embedding = self._embeddings(wanted)
        answer = await cancel_on_disconnect(request.receive, self._ending, embedding)
        return json_response(
            OllamaEmbeddings(
                model=body.model,
                embeddings=[
                    each.embedding for each in answer.data if isinstance(each.embedding, list)
                ],
                total_duration=nanoseconds(time.monotonic() - began_s),
                prompt_eval_count=answer.usage.prompt_tokens,
            )
        )

    async def ollama_show(self, body: OllamaShowRequest) -> Response:
        """Describe a model as Ollama does."""
        card = await self._catalog.card(await self._model(body.model))
        return json_response(model_details(card))

    async def ollama_tags(self) -> Response:
        """List the served models as Ollama does."""
        cards = await self._catalog.cards()
        return json_response(OllamaModels(models=[model_entry(card) for card in cards]))

    async def ollama_version(self) -> Response:
        """Return the version of this server."""
        return json_response(OllamaVersion(version=__version__))

    async def _model(self, name: str) -> str:
        """Return the name of the served model that is meant: Ollama's clients add the tag `:latest`
        to names without one, so it is taken off unless a served model has it."""
        if not name.endswith(_LATEST):
            return name
        served = [card.id for card in await self._catalog.cards()]
        return name if name in served else name.removesuffix(_LATEST)

    async def _loaded(self, name: str, model: str, chat: bool) -> Response:
        """Answer a request without a prompt or messages, which asks Ollama to load the model. Here
        it is loaded already."""
        await self._catalog.fingerprint(model)
        return json_response(answer_line(name, Parts(), chat=chat, done=True, done_reason="load"))
