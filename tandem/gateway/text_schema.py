"""Bodies and answers of what is asked of texts beside their continuation: token ids, as vLLM's API
has them, and vectors, as OpenAI's. Invariant: as of `schema` and `answer_schema`."""

from typing import Annotated, Literal

from pydantic import Field

from tandem.gateway.body_parsing import Strict, TokenId
from tandem.gateway.schema import Message

MAX_INPUTS = 256


class TokenizeRequest(Strict):
    """Body of POST /tokenize: a prompt, or messages."""

    model: str
    prompt: str | None = None
    messages: Annotated[list[Message], Field(min_length=1, fail_fast=True)] | None = None
    return_token_strs: bool | None = Field(
        default=None, description="Tell what each token spells after those before it."
    )
    add_special_tokens: Literal[True] | None = Field(
        default=None, description="Always: as in a prompt."
    )
    add_generation_prompt: Literal[True] | None = Field(
        default=None, description="Always: up to where the answer begins."
    )


class DetokenizeRequest(Strict):
    """Body of POST /detokenize."""

    model: str
    tokens: Annotated[list[TokenId], Field(fail_fast=True)]


class EmbeddingRequest(Strict):
    """Body of POST /v1/embeddings."""

    model: str
    input: str | Annotated[list[str], Field(min_length=1, max_length=MAX_INPUTS, fail_fast=True)]
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: Annotated[int, Field(ge=1)] | None = Field(
        default=None, description="Only the model's own number is taken."
    )
    user: str | None = Field(default=None, description="Of no effect.")


class TokenizeResponse(Strict):
    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | None


class DetokenizeResponse(Strict):
    prompt: str = Field(description="Without special tokens.")


class EmbeddingVector(Strict):
    object: Literal["embedding"]
    index: int
    embedding: list[float] | str = Field(description="As text: float32, little endian, base64.")


class EmbeddingUsage(Strict):
    prompt_tokens: int
    total_tokens: int


class EmbeddingList(Strict):
    object: Literal["list"]
    data: list[EmbeddingVector]
    model: str
    usage: EmbeddingUsage
