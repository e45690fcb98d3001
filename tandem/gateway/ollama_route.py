"""Routes of Ollama's API, for programs that speak no other. Invariant: what they ask goes the way
of OpenAI's routes, so that it is admitted, limited, counted and ended as theirs."""

import asyncio
import time
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from fastapi import FastAPI, Request
from pydantic import BaseModel, ValidationError
from starlette.responses import Response

from tandem.core.version import __version__
from tandem.gateway.body_parsing import parse_body
from tandem.gateway.catalog import Catalog
from tandem.gateway.connection_body import BodyReader, unless_ending, unless_gone
from tandem.gateway.error_forms import OLLAMA_CHAT_PATH, OLLAMA_PREFIX
from tandem.gateway.errors import json_response, validation_error
from tandem.gateway.ollama import (
    OllamaChatRequest,
    OllamaEmbedRequest,
    OllamaGenerateRequest,
    OllamaShowRequest,
    OllamaWriter,
    answer_line,
    chat_of,
    generation_of,
    model_details,
    model_entry,
    nanoseconds,
)
from tandem.gateway.text_endpoints import EmbeddingRequest
from tandem.gateway.translated import AnswerTranslated

OLLAMA_GENERATE_PATH = f"{OLLAMA_PREFIX}generate"
OLLAMA_TAGS_PATH = f"{OLLAMA_PREFIX}tags"
OLLAMA_SHOW_PATH = f"{OLLAMA_PREFIX}show"
OLLAMA_EMBED_PATH = f"{OLLAMA_PREFIX}embed"
OLLAMA_VERSION_PATH = f"{OLLAMA_PREFIX}version"
_LATEST = ":latest"

Body = TypeVar("Body", bound=BaseModel)


class OllamaRoute:
    """`embeddings` answers a body of /v1/embeddings."""

    def __init__(
        self,
        catalog: Catalog,
        bodies: BodyReader,
        ending: asyncio.Event,
        answer: AnswerTranslated,
        embeddings: Callable[[EmbeddingRequest], Coroutine[Any, Any, dict[str, Any]]],
    ) -> None:
        self._catalog = catalog
        self._bodies = bodies
        self._ending = ending
        self._answer = answer
        self._embeddings = embeddings

    def add_routes(self, app: FastAPI) -> None:
        for method, path, handler in (
            ("POST", OLLAMA_CHAT_PATH, self.ollama_chat),
            ("POST", OLLAMA_GENERATE_PATH, self.ollama_generate),
            ("POST", OLLAMA_EMBED_PATH, self.ollama_embed),
            ("POST", OLLAMA_SHOW_PATH, self.ollama_show),
            ("GET", OLLAMA_TAGS_PATH, self.ollama_tags),
            ("GET", OLLAMA_VERSION_PATH, self.ollama_version),
        ):
            app.add_api_route(path, handler, methods=[method], response_model=None)

    async def ollama_chat(self, request: Request) -> Response:
        """Complete a conversation as Ollama does."""
        asked = await self._read(request, OllamaChatRequest)
        model = await self._model(asked.model)
        if not asked.messages:
            return await self._loaded(asked.model, model, chat=True)
        return await self._answer(
            request,
            chat_of(asked, model),
            lambda writer: OllamaWriter(writer, asked.model, chat=True),
        )

    async def ollama_generate(self, request: Request) -> Response:
        """Complete a prompt as Ollama does."""
        asked = await self._read(request, OllamaGenerateRequest)
        model = await self._model(asked.model)
        if not (asked.prompt or asked.suffix or asked.images):
            return await self._loaded(asked.model, model, chat=False)
        return await self._answer(
            request,
            generation_of(asked, model),
            lambda writer: OllamaWriter(writer, asked.model, chat=False),
        )

    async def ollama_embed(self, request: Request) -> Response:
        """Return embeddings as Ollama does."""
        asked = await self._read(request, OllamaEmbedRequest)
        began_s = time.monotonic()
        body = asked.model_dump(include={"input", "dimensions", "truncate"})
        try:
            wanted = EmbeddingRequest(model=await self._model(asked.model), **body)
        except ValidationError as error:
            raise validation_error(error) from None
        answer = await unless_gone(request.receive, self._ending, self._embeddings(wanted))
        return json_response(
            {
                "model": asked.model,
                "embeddings": [each["embedding"] for each in answer["data"]],
                "total_duration": nanoseconds(time.monotonic() - began_s),
                "load_duration": 0,
                "prompt_eval_count": answer["usage"]["prompt_tokens"],
            }
        )

    async def ollama_show(self, request: Request) -> Response:
        """Describe a model as Ollama does."""
        asked = await self._read(request, OllamaShowRequest)
        card = await self._catalog.card(await self._model(asked.model))
        return json_response(model_details(card))

    async def ollama_tags(self) -> Response:
        """List the served models as Ollama does."""
        cards = await self._catalog.cards()
        return json_response({"models": [model_entry(card) for card in cards]})

    async def ollama_version(self) -> Response:
        """Return the version of this server."""
        return json_response({"version": __version__})

    async def _read(self, request: Request, kind: type[Body]) -> Body:
        raw = await unless_ending(self._ending, self._bodies.read(request))
        return parse_body(raw, kind, self._catalog.context_length)

    async def _model(self, name: str) -> str:
        """Return the name of the served model that is meant: Ollama's clients add the tag `:latest`
        to names without one, so it is taken off unless a served model has it."""
        if not name.endswith(_LATEST):
            return name
        served = [card["id"] for card in await self._catalog.cards()]
        return name if name in served else name.removesuffix(_LATEST)

    async def _loaded(self, name: str, model: str, chat: bool) -> Response:
        """Answer a request without a prompt or messages, which asks Ollama to load the model. Here
        it is loaded already."""
        await self._catalog.fingerprint(model)
        line = answer_line(name, "", chat=chat)
        return json_response({**line, "done": True, "done_reason": "load"})
