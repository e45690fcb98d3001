"""/tokenize and /detokenize, as vLLM's API has them, and /v1/embeddings, as OpenAI's: bodies,
answers and handlers. Invariants: those of `schema` for bodies; a request is checked before the
suite hears of it."""

import asyncio
import base64
from collections.abc import Callable, Coroutine
from typing import Annotated, Any, Literal, TypeVar, cast

import numpy as np
from pydantic import BaseModel, Field, PlainValidator
from starlette.requests import Request
from starlette.responses import Response

from tandem.core.prompt import Prompt
from tandem.gateway.body_parsing import UINT32, OnlyTrue, Strict, TokenId, parse_body
from tandem.gateway.catalog import Catalog, ServingSuite
from tandem.gateway.connection_body import BodyReader, unless_ending, unless_gone
from tandem.gateway.errors import invalid, json_response
from tandem.gateway.messages import Message
from tandem.gateway.request_reading import conversation
from tandem.gateway.schema import read_prompt

MAX_INPUTS = 2048

Body = TypeVar("Body", bound=BaseModel)


class TokenizeRequest(Strict):
    """Body of POST /tokenize. Set either `prompt` or `messages`."""

    model: str
    prompt: str | None = None
    messages: Annotated[list[Message], Field(min_length=1, fail_fast=True)] | None = None
    return_token_strs: bool | None = Field(
        default=None, description="Also return the text of each token."
    )
    add_special_tokens: OnlyTrue | None = Field(
        default=None, description="Always true: special tokens are added as for a prompt."
    )
    add_generation_prompt: OnlyTrue | None = Field(
        default=None, description="Always true: the tokens end where the answer would begin."
    )


class DetokenizeRequest(Strict):
    """Body of POST /detokenize."""

    model: str
    tokens: Annotated[list[TokenId], Field(fail_fast=True)]


def _read_input(given: object) -> object:
    """Check the form: a prompt's, not too many, and none empty."""
    read = read_prompt(given)
    if isinstance(read, list) and len(read) > MAX_INPUTS and not isinstance(read[0], int):
        raise ValueError(f"must have at most {MAX_INPUTS} texts")
    if isinstance(read, list) and not all(
        isinstance(token, int) and 0 <= token <= UINT32
        for each in read
        for token in (each if isinstance(each, list) else () if isinstance(each, str) else (each,))
    ):
        raise ValueError(f"token ids must be between 0 and {UINT32}")
    return read


_InputForms = str | list[str] | list[int] | list[list[int]]
EmbeddingInput = Annotated[
    _InputForms, PlainValidator(_read_input, json_schema_input_type=_InputForms)
]


class EmbeddingRequest(Strict):
    """Body of POST /v1/embeddings."""

    model: str
    input: EmbeddingInput = Field(
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
    user: str | None = Field(default=None, description="Ignored.")


class TokenizeResponse(Strict):
    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | None


class DetokenizeResponse(Strict):
    prompt: str = Field(description="Text of the tokens, without special tokens.")


class EmbeddingVector(Strict):
    object: Literal["embedding"]
    index: int
    embedding: list[float] | str = Field(
        description="A list of numbers, or with `encoding_format` `base64` the base64"
        " encoding of little-endian float32 values."
    )


class EmbeddingUsage(Strict):
    prompt_tokens: int
    total_tokens: int


class EmbeddingList(Strict):
    object: Literal["list"]
    data: list[EmbeddingVector]
    model: str
    usage: EmbeddingUsage


class TextEndpoints:
    """Handlers for the routes of an application."""

    def __init__(
        self, suite: ServingSuite, catalog: Catalog, bodies: BodyReader, ending: asyncio.Event
    ) -> None:
        self._suite = suite
        self._catalog = catalog
        self._bodies = bodies
        self._ending = ending

    async def tokenize(self, request: Request) -> Response:
        """Return the token ids of a prompt or a conversation."""

        async def answer(asked: TokenizeRequest) -> dict[str, Any]:
            await self._catalog.fingerprint(asked.model)
            spell = bool(asked.return_token_strs)
            tokenized = await self._suite.tokenize(_prompt(asked), spell)
            return {
                "count": len(tokenized.token_ids),
                "max_model_len": tokenized.context_length,
                "tokens": list(tokenized.token_ids),
                "token_strs": list(tokenized.token_texts) if spell else None,
            }

        return await self._answered(request, TokenizeRequest, answer)

    async def detokenize(self, request: Request) -> Response:
        """Return the text of token ids."""

        async def answer(asked: DetokenizeRequest) -> dict[str, Any]:
            await self._catalog.fingerprint(asked.model)
            if len(asked.tokens) > (most := self._catalog.context_length):
                words = f"tokens: {len(asked.tokens)}; the context holds {most}"
                raise invalid("tokens", words)
            tokenized = (
                await self._suite.tokenize(tuple(asked.tokens), True) if asked.tokens else None
            )
            return {"prompt": "".join(tokenized.token_texts) if tokenized else ""}

        return await self._answered(request, DetokenizeRequest, answer)

    async def embed(self, request: Request) -> Response:
        """Return embeddings from the model that searches this side's documents."""
        return await self._answered(request, EmbeddingRequest, self.embeddings)

    async def embeddings(self, asked: EmbeddingRequest) -> dict[str, Any]:
        """Return the body of an answer to a body of /v1/embeddings. Raises ApiError."""
        dimension = await self._catalog.embedding(asked.model)
        if asked.dimensions not in (None, dimension):
            words = f"dimensions: must be {dimension}, the dimension of this model"
            raise invalid("dimensions", words)
        texts = _inputs(asked)
        embedded = await self._suite.embed(texts, _most_tokens(asked))
        vectors = np.frombuffer(embedded.vectors, "<f4").reshape(len(texts), -1)
        as_text = asked.encoding_format == "base64"
        tokens = sum(embedded.tokens)
        return {
            "object": "list",
            "data": [
                {"object": "embedding", "index": index, "embedding": _written(row, as_text)}
                for index, row in enumerate(vectors)
            ],
            "model": asked.model,
            "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
        }

    async def _answered(
        self,
        request: Request,
        kind: type[Body],
        answer: Callable[[Body], Coroutine[Any, Any, dict[str, Any]]],
    ) -> Response:
        raw = await unless_ending(self._ending, self._bodies.read(request))
        body = parse_body(raw, kind, self._catalog.context_length)
        return json_response(await unless_gone(request.receive, self._ending, answer(body)))


def _prompt(asked: TokenizeRequest) -> Prompt:
    if (asked.prompt is None) == (asked.messages is None):
        raise invalid("prompt", "prompt: set either prompt or messages")
    if asked.messages is None:
        return asked.prompt or ""
    turns, images = conversation(asked.messages)
    if images:
        raise invalid("messages", "messages: images cannot be tokenized")
    return turns


def _inputs(asked: EmbeddingRequest) -> list[str] | list[list[int]]:
    """Return the texts or the lists of token ids. Raises ApiError for an empty one."""
    given = asked.input
    whole = isinstance(given, str) or (bool(given) and isinstance(given[0], int))
    inputs = cast("list[str] | list[list[int]]", [given] if whole else given)
    if not inputs or not all(inputs):
        raise invalid("input", "input: contains an empty text")
    return inputs


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
