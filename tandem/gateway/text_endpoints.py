"""/tokenize and /detokenize, as vLLM's API has them, and /v1/embeddings, as OpenAI's: bodies,
answers and handlers. Invariants: those of `schema` for bodies; a request is checked before the
suite hears of it."""

import asyncio
import base64
from collections.abc import Coroutine
from functools import partial
from typing import Annotated, Any, Literal

import numpy as np
from fastapi import FastAPI, Request
from pydantic import AfterValidator, Field
from starlette.responses import Response

from tandem.core.prompt import Prompt
from tandem.gateway.base_models import UINT32, Answer, Body, TokenId, one_of
from tandem.gateway.catalog import Catalog, ServingSuite
from tandem.gateway.connection_body import cancel_on_disconnect
from tandem.gateway.errors import DETOKENIZE_PATH, invalid, json_response
from tandem.gateway.long_bodies import in_turn
from tandem.gateway.messages import Message
from tandem.gateway.openapi import FROM_THE_SUITE, OF_A_BODY, add_route
from tandem.gateway.request_reading import conversation
from tandem.gateway.schema import Texts
from tandem_api.drafter.v1.drafter_pb2 import TokenizeResponse as TokenizeResponseMessage

MAX_INPUTS = 2048


class TokenizeRequest(Body):
    """Body of POST /tokenize. Set either `prompt` or `messages`."""

    model: str
    prompt: str | None = None
    messages: Annotated[list[Message], Field(min_length=1, fail_fast=True)] | None = None
    return_token_strs: bool | None = Field(
        default=None, description="Also return the text of each token."
    )
    add_special_tokens: Annotated[None, one_of("they are added as for a prompt", True)] = None
    add_generation_prompt: Annotated[None, one_of("the answer would begin there", True)] = None


class DetokenizeRequest(Body):
    """Body of POST /detokenize."""

    model: str
    tokens: Annotated[list[TokenId], Field(fail_fast=True)]


def _few(texts: list[Any]) -> list[Any]:
    if len(texts) > MAX_INPUTS:
        raise ValueError(f"must have at most {MAX_INPUTS} texts")
    if not all(texts):
        raise ValueError("contains an empty text")
    return texts


class EmbeddingRequest(Body):
    """Body of POST /v1/embeddings."""

    model: str
    input: Annotated[Texts, AfterValidator(_few)] = Field(
        description="One text or several, or their token ids: those of the embedding model's own"
        " tokenizer, with its special tokens at both ends, or of OpenAI's vocabulary cl100k_base. A"
        " text longer than the model's maximum length is embedded in windows: the result is their"
        " average, weighted by length and normalized."
    )
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: Annotated[int, Field(ge=1)] | None = Field(
        default=None, description="Must be the model's own dimension."
    )
    truncate: bool | None = Field(
        default=None,
        description="Read only the beginning of a text that is longer than the model's maximum"
        " length. Not part of OpenAI's API.",
    )
    truncate_prompt_tokens: Annotated[int, Field(ge=-1, le=UINT32)] | None = Field(
        default=None,
        description="Read only this many tokens from the beginning of each text, at most the"
        " model's maximum length. -1: the maximum length. As in vLLM.",
    )


class TokenizeResponse(Answer):
    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | None


class DetokenizeResponse(Answer):
    prompt: str = Field(description="Text of the tokens, without special tokens.")


class EmbeddingVector(Answer):
    object: Literal["embedding"] = "embedding"
    index: int
    embedding: list[float] | str = Field(
        description="A list of numbers, or with `encoding_format` `base64` the base64"
        " encoding of little-endian float32 values."
    )


class EmbeddingUsage(Answer):
    prompt_tokens: int
    total_tokens: int


class EmbeddingList(Answer):
    object: Literal["list"] = "list"
    data: list[EmbeddingVector]
    model: str
    usage: EmbeddingUsage


class TextEndpoints:
    """Handlers for the routes of an application."""

    def __init__(self, suite: ServingSuite, catalog: Catalog, ending: asyncio.Event) -> None:
        self._suite = suite
        self._catalog = catalog
        self._ending = ending

    def add_routes(self, app: FastAPI) -> None:
        post = partial(add_route, app, "POST", refusals=(*FROM_THE_SUITE, *OF_A_BODY))
        post("/v1/embeddings", self.embed, answer=EmbeddingList)
        post("/tokenize", self.tokenize, answer=TokenizeResponse)
        post(DETOKENIZE_PATH, self.detokenize, answer=DetokenizeResponse)

    async def tokenize(self, request: Request, body: TokenizeRequest) -> Response:
        """Return the token ids of a prompt or a conversation."""
        return await self._answered(request, self._tokenized(request, body))

    async def detokenize(self, request: Request, body: DetokenizeRequest) -> Response:
        """Return the text of token ids."""
        return await self._answered(request, self._detokenized(body))

    async def embed(self, request: Request, body: EmbeddingRequest) -> Response:
        """Return embeddings from the model that searches this side's documents."""
        return await self._answered(request, self.embeddings(body))

    async def _tokenized(self, request: Request, asked: TokenizeRequest) -> TokenizeResponse:
        await self._catalog.fingerprint(asked.model)
        spell = bool(asked.return_token_strs)
        prompt = await in_turn(request, partial(_prompt, asked))
        tokenized = await self._suite.tokenize(prompt, spell)
        return await in_turn(request, partial(_tokenize_answer, tokenized, spell))

    async def _detokenized(self, asked: DetokenizeRequest) -> DetokenizeResponse:
        await self._catalog.fingerprint(asked.model)
        if len(asked.tokens) > (most := self._catalog.context_length):
            words = f"tokens: {len(asked.tokens)}; the context holds {most}"
            raise invalid("tokens", words)
        if not asked.tokens:
            return DetokenizeResponse(prompt="")
        tokenized = await self._suite.tokenize(tuple(asked.tokens), True)
        return DetokenizeResponse(prompt="".join(tokenized.token_texts))

    async def embeddings(self, asked: EmbeddingRequest) -> EmbeddingList:
        """Return the answer to a body of /v1/embeddings. Raises ApiError."""
        dimension = await self._catalog.embedding(asked.model)
        if asked.dimensions not in (None, dimension):
            words = f"dimensions: must be {dimension}, the dimension of this model"
            raise invalid("dimensions", words)
        embedded = await self._suite.embed(asked.input, _most_tokens(asked))
        vectors = np.frombuffer(embedded.vectors, "<f4").reshape(len(asked.input), -1)
        as_text = asked.encoding_format == "base64"
        tokens = sum(embedded.tokens)
        return EmbeddingList(
            data=[
                EmbeddingVector(index=index, embedding=_written(row, as_text))
                for index, row in enumerate(vectors)
            ],
            model=asked.model,
            usage=EmbeddingUsage(prompt_tokens=tokens, total_tokens=tokens),
        )

    async def _answered(self, request: Request, answering: Coroutine[Any, Any, Answer]) -> Response:
        answer = await cancel_on_disconnect(request.receive, self._ending, answering)
        return await in_turn(request, partial(json_response, answer))


def _prompt(asked: TokenizeRequest) -> Prompt:
    if (asked.prompt is None) == (asked.messages is None):
        raise invalid("prompt", "prompt: set either prompt or messages")
    if asked.messages is None:
        return asked.prompt or ""
    turns, images = conversation(asked.messages)
    if images:
        raise invalid("messages", "messages: images cannot be tokenized")
    return turns


def _tokenize_answer(tokenized: TokenizeResponseMessage, spell: bool) -> TokenizeResponse:
    return TokenizeResponse(
        count=len(tokenized.token_ids),
        max_model_len=tokenized.context_length,
        tokens=list(tokenized.token_ids),
        token_strs=list(tokenized.token_texts) if spell else None,
    )


def _most_tokens(asked: EmbeddingRequest) -> int:
    """Return how many tokens of a text are read; 0: all. Raises ApiError."""
    most = asked.truncate_prompt_tokens
    if most == 0:
        raise invalid("truncate_prompt_tokens", "truncate_prompt_tokens: must be at least 1, or -1")
    if most is not None and most > 0:
        return most
    return UINT32 if asked.truncate or most == -1 else 0


def _written(row: Any, as_text: bool) -> list[float] | str:
    return base64.b64encode(row.tobytes()).decode() if as_text else row.tolist()
