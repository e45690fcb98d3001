"""The suite behind the gateway: which model it offers, and whether it can be reached now.
Invariant: however many ask at once, the suite is asked once, and not more often than every
`MAX_AGE_S`, or every `FAILED_AGE_S` while it cannot be reached."""

import asyncio
import hashlib
import time
from collections.abc import AsyncGenerator, Iterable, Sequence
from typing import Literal, Protocol

from pydantic import Field

from tandem.core.default_sampling import NO_DEFAULTS, DefaultSampling
from tandem.core.errors import InvalidArgument, TandemError, Unavailable
from tandem.core.prompt import Prompt
from tandem.core.version import __version__
from tandem.gateway.base_models import Answer
from tandem.gateway.errors import ApiError
from tandem.generation.client import Generated
from tandem.generation.request import DEFAULT_PRESET, GenerationRequest
from tandem.specdec.logprobs import MAX_TOP_LOGPROBS, check_logprobs_available
from tandem.specdec.presets import PRESETS, Preset
from tandem.text.families import PLAIN, ModelFamily, family_named
from tandem.two_sided.interface import AGGREGATION_PRESETS
from tandem.wire.common_codec import default_sampling_from_proto
from tandem_api.common.v1.generation_pb2 import DescribeResponse
from tandem_api.drafter.v1.drafter_pb2 import TokenizeResponse
from tandem_api.retriever.v1.retriever_pb2 import EmbedResponse

MAX_AGE_S = 2.0
FAILED_AGE_S = 1.0
"""A failure is told to all who ask within this time: probes of a broken cloud come in storms, and
each question may take seconds. Shorter than a success, since callers wait for it to pass."""
UNKNOWN_CONTEXT = 2**17
"""Taken for a model's context while its suite was not heard of."""
USUAL_TOKENS = 4096
UNSTATED_SHARE = 4
"""See `Catalog.unstated_tokens`: this part of a service's memory, and these tokens."""


class ServedPair(Answer):
    draft: str
    context_length: int
    presets: list[str]
    default_preset: str
    default_sampling: dict[str, float] = Field(
        description="Sampling settings of requests that name none, from the model's"
        " generation_config.json: `temperature`, `top_p`, `top_k`, `repetition_penalty`, as far as"
        " it has them. Others have OpenAI's defaults."
    )
    logprobs: list[str] = Field(description="Presets that support log-probabilities.")
    documents: list[str] = Field(description="Presets that answer from documents.")
    lossy: list[str] = Field(
        description="Presets whose answers do not follow the target's distribution exactly."
    )


class ServedEmbedding(Answer):
    dimension: int


class ModelCard(Answer):
    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: Literal["tandem"] = "tandem"
    tandem: ServedPair | ServedEmbedding


class ModelList(Answer):
    object: Literal["list"] = "list"
    data: list[ModelCard]


class ServingSuite(Protocol):
    """The suite behind the gateway; its errors are those that `tandem.net.status` knows."""

    @property
    def leaving(self) -> bool:
        """True if new requests are refused because the process is stopping."""

    async def describe(self) -> DescribeResponse:
        """Describe the suite; without a cloud, `cloud_error` says why and `target` is empty."""

    async def tokenize(
        self,
        prompt: Prompt,
        spell: bool = False,
        *,
        tools: str = "",
        chat_template_kwargs: str = "",
    ) -> TokenizeResponse:
        """Return the token ids of a prompt; `spell`: also the text of each token. The other
        arguments are for chats, and as in `GenerationRequest`."""

    async def embed(
        self, texts: Sequence[str] | Sequence[Sequence[int]], most_tokens: int = 0
    ) -> EmbedResponse:
        """Embed texts with the model that `describe` calls `embedding`. Texts may be given as token
        ids: the model's, with its special tokens, or those of OpenAI's vocabulary cl100k_base.
        `most_tokens`: read that many of the first tokens of each text; 0: read all, in windows if
        the model reads fewer at once."""

    def stream(self, request: GenerationRequest, timeout_s: float) -> AsyncGenerator[Generated]:
        """Yield the growing answer after each message; the last one has its summary. Closing the
        generator early cancels the request on every service."""


class Catalog:
    """Cached description of the suite."""

    def __init__(
        self,
        suite: ServingSuite,
        embedding_aliases: Sequence[str] = (),
        model_defaults: bool = True,
    ) -> None:
        """Create the catalog. `embedding_aliases`: other names of the embedding model.
        `model_defaults`: use the sampling settings that the model's makers recommend."""
        self._suite = suite
        self._uses_model_defaults = model_defaults
        self._embedding_aliases = tuple(embedding_aliases)
        self._asking = asyncio.Lock()
        self._known: DescribeResponse | None = None
        self._known_at_s = 0.0
        self._failure: Exception | None = None
        self._failed_at_s = 0.0
        self._created = int(time.time())

    async def reach(self) -> DescribeResponse:
        """Return the description of the suite with its cloud, at most `MAX_AGE_S` old. Raises
        Unavailable, or what `describe` raises, if one of them cannot be reached."""
        if self._suite.leaving:
            raise Unavailable("the aggregator is stopping")
        async with self._asking:
            if self._failure is not None and time.monotonic() - self._failed_at_s < FAILED_AGE_S:
                raise self._failure.with_traceback(None)
            if self._known is None or time.monotonic() - self._known_at_s > MAX_AGE_S:
                try:
                    self._known = await self._described()
                    self._known_at_s = time.monotonic()
                except TandemError as error:
                    self._failure = error
                    self._failed_at_s = time.monotonic()
                    raise
                self._failure = None
            return self._known

    async def _described(self) -> DescribeResponse:
        described = await self._suite.describe()
        if not described.target.model_name:
            raise Unavailable(described.cloud_error or "the cloud cannot be reached")
        return described

    @property
    def context_length(self) -> int:
        """Tokens that a prompt has at most; `UNKNOWN_CONTEXT` until the suite has said."""
        described = self._known
        if described is None:
            return UNKNOWN_CONTEXT
        return _context_of(described) or UNKNOWN_CONTEXT

    @property
    def family(self) -> ModelFamily:
        """The model's family, by what the suite said last."""
        return PLAIN if self._known is None else family_named(self._known.family)

    @property
    def default_sampling(self) -> DefaultSampling:
        """The settings that requests get which name none, by what the suite said last."""
        if self._known is None or not self._uses_model_defaults:
            return NO_DEFAULTS
        return default_sampling_from_proto(self._known.target)

    @property
    def unstated_tokens(self) -> int:
        """Tokens of an answer to a caller that sets no limit: what the context holds. A session
        reserves memory for all of them, so that one takes a share of it at most, unless that is
        less than a usual answer needs."""
        described = self._known
        if described is None:
            return USUAL_TOKENS
        models = (described.draft, described.target)
        context = _context_of(described) or USUAL_TOKENS
        held = min((model.kv_tokens for model in models if model.kv_tokens), default=0)
        return min(max(USUAL_TOKENS, held // UNSTATED_SHARE), context)

    async def fingerprint(self, model: str) -> str:
        """Return the fingerprint of the pair that serves `model`; ApiError 404 for a model that is
        not here. A model that was here is taken to be: a caller's first token does not wait for a
        question."""
        described = self._known
        if described is None or described.target.model_name != model:
            described = await self.reach()
        if described.target.model_name != model:
            why = f"The model '{model}' does not exist here; '{described.target.model_name}' does."
            raise ApiError(404, why, param="model", code="model_not_found")
        pair = (__version__, described.draft.model_name, model, described.target.vocabulary_hash)
        return "fp_" + hashlib.sha256("\n".join(pair).encode()).hexdigest()[:12]

    async def embedding(self, model: str) -> int:
        """Return the length of the vectors that `model` makes. Raises ApiError 404 for a model that
        is not here."""
        known = await self.reach()
        if not known.embedding or model not in (known.embedding, *self._embedding_aliases):
            here = f"'{known.embedding}' does" if known.embedding else "none does"
            why = f"The embedding model '{model}' does not exist here; {here}."
            raise ApiError(404, why, param="model", code="model_not_found")
        return known.embedding_dimension

    async def card(self, model: str) -> ModelCard:
        """Return the card of one model. Raises ApiError 404 for a model that is not here."""
        for card in (cards := await self.cards()):
            if card.id == model:
                return card
        why = f"The model '{model}' does not exist here; '{cards[0].id}' does."
        raise ApiError(404, why, param="model", code="model_not_found")

    async def cards(self) -> list[ModelCard]:
        """Return the cards of the pair and of the embedding model, if there is one, as /v1/models
        lists them."""
        known = await self.reach()
        served = ServedPair(
            draft=known.draft.model_name,
            context_length=_context_of(known),
            presets=list(known.presets),
            default_preset=DEFAULT_PRESET,
            default_sampling=self.default_sampling.named,
            **_kinds_of(known.presets),
        )
        pair = ModelCard(id=known.target.model_name, created=self._created, tandem=served)
        if not known.embedding:
            return [pair]
        vectors = ServedEmbedding(dimension=known.embedding_dimension)
        names = (known.embedding, *self._embedding_aliases)
        return [
            pair,
            *(ModelCard(id=name, created=self._created, tandem=vectors) for name in names),
        ]


def _context_of(described: DescribeResponse) -> int:
    """Return the tokens of a prompt and its answer: the target's context, whose text it is. A draft
    model that reads fewer at once drafts after the text's end."""
    return int(described.target.context_length or described.draft.context_length)


def _kinds_of(names: Iterable[str]) -> dict[str, list[str]]:
    """Return the kinds of those presets of a suite that this version knows."""
    known = [PRESETS[name] for name in names if name in PRESETS]
    two_sided = [AGGREGATION_PRESETS[name] for name in names if name in AGGREGATION_PRESETS]
    return {
        "logprobs": [preset.name for preset in known if _tells_logprobs(preset)],
        "documents": [preset.name for preset in two_sided],
        "lossy": [each.name for each in known if each.lossy]
        + [each.name for each in two_sided if each.lossy],
    }


def _tells_logprobs(preset: Preset) -> bool:
    try:
        check_logprobs_available(preset.verify_settings, MAX_TOP_LOGPROBS)
    except InvalidArgument:
        return False
    return True
