"""Ollama's API, for programs that speak no other: its bodies as OpenAI's, OpenAI's answers in its
words, and its routes. Invariant: an answer is the one to the chat or the completion that the body
stands for, admitted, limited, counted and ended as theirs; what would have to be ignored, though it
could change an answer, is refused."""

import asyncio
import hashlib
import json
import time
import uuid
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Literal

from fastapi import FastAPI, Request
from pydantic import AliasChoices, Field, ValidationError, create_model
from starlette.responses import Response

from tandem.core.version import __version__
from tandem.gateway.base_models import UINT32, Absent, Answer, Body, Lenient, absent, refused_unless
from tandem.gateway.catalog import Catalog, ModelCard, ServedEmbedding
from tandem.gateway.choice_reader import ChoiceReader, Parts, ReasoningOptions
from tandem.gateway.connection_body import cancel_on_disconnect
from tandem.gateway.constraints import JsonSchema, Penalty
from tandem.gateway.errors import (
    OLLAMA_PREFIX,
    OllamaError,
    invalid,
    json_response,
    validation_error,
    written,
)
from tandem.gateway.event_stream import StreamForm
from tandem.gateway.long_bodies import in_turn
from tandem.gateway.openapi import FROM_THE_SUITE, OF_A_BODY, WITH_A_KEY, add_route
from tandem.gateway.parallel_choices import ChoiceDelta
from tandem.gateway.schema import (
    ChatCompletionRequest,
    CompletionRequest,
    Stops,
    chat_from,
    neutral_fields,
)
from tandem.gateway.text_endpoints import EmbeddingList, EmbeddingRequest
from tandem.gateway.tool_grammar import Tools
from tandem.generation.figures import figures_of
from tandem.text.families import CallFormat

NDJSON = "application/x-ndjson"
_LATEST = ":latest"
_SAME_NAME = (
    *("temperature", "top_p", "top_k", "min_p", "typical_p", "stop"),
    *("presence_penalty", "frequency_penalty"),
)
"""Options that OpenAI's or vLLM's API knows by the same name."""


if TYPE_CHECKING:
    OtherOptions = Body
else:
    OtherOptions = create_model(
        "OtherOptions",
        __base__=Body,
        **neutral_fields(
            *("num_keep", "repeat_last_n", "penalize_newline", "mirostat", "tfs_z", "samplers"),
            *("xtc_probability", "dry_multiplier", "dynatemp_range", "top_n_sigma"),
            "adaptive_target",
        ),
    )


class OllamaOptions(OtherOptions):
    """Options of the sampling. What is not set has this server's default, not Ollama's. Those that
    this server does not have are refused, unless their value is neutral."""

    num_predict: Annotated[int, Field(ge=-2, le=UINT32)] | None = Field(
        default=None, description="Maximum tokens of the answer. -1 or -2: the server's limit."
    )
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=-1, le=UINT32)] | None = None
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None
    typical_p: Annotated[float, Field(gt=0, le=1)] | None = None
    seed: Annotated[int, Field(ge=-1, lt=2**64)] | None = Field(
        default=None, description="Seed of the sampling. -1: a new one for each answer."
    )
    stop: str | Stops | None = None
    repeat_penalty: Annotated[float, Field(gt=0, le=10)] | None = Field(
        default=None, description="Penalty for tokens that occur in the prompt or the answer."
    )
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None


class OllamaFunction(Lenient):
    name: str
    arguments: dict[str, Any]


class OllamaToolCall(Lenient):
    function: OllamaFunction
    id: str | None = None
    type: Literal["function"] | None = None


class OllamaMessage(Lenient):
    role: Literal["system", "user", "assistant", "tool"]
    content: str = ""
    images: list[str] | None = Field(default=None, description="Images as base64.")
    tool_calls: Annotated[list[OllamaToolCall], Field(fail_fast=True)] | None = None
    tool_name: str | None = Field(
        default=None,
        description="The function whose result this is, in a message with the role `tool`.",
    )
    tool_call_id: str | None = None
    thinking: str | None = Field(
        default=None,
        description="What a model thought before an earlier answer, for chat templates that keep"
        " it.",
    )


class _OllamaBody(Body):
    model: str
    stream: bool | None = Field(default=None, description="Default: true.")
    format: Literal["", "json"] | JsonSchema | None = Field(
        default=None, description="`json`, or a JSON schema that the answer matches."
    )
    options: OllamaOptions | None = None
    think: bool | Literal["low", "medium", "high"] | None = Field(
        default=None,
        description="Whether, or how much, the model thinks before it answers. Default: its chat"
        " template decides.",
    )
    truncate: bool | None = Field(
        default=None,
        description="Drop the oldest turns if the prompt is longer than the context.",
    )
    shift: Annotated[None, refused_unless("an answer ends where the context does")] = None
    logprobs: Annotated[None, refused_unless("ask /v1/chat/completions")] = None
    top_logprobs: Annotated[None, refused_unless("ask /v1/chat/completions", 0)] = None

    @property
    def streamed(self) -> bool:
        return self.stream is not False


class OllamaChatRequest(_OllamaBody):
    """Body of POST /api/chat. Without messages nothing is generated."""

    messages: Annotated[list[OllamaMessage], Field(default_factory=list, fail_fast=True)]
    tools: Tools | None = None


class OllamaGenerateRequest(_OllamaBody):
    """Body of POST /api/generate. Without a prompt nothing is generated."""

    prompt: str = ""
    suffix: str | None = Field(
        default=None,
        description="Text after the answer. Only for models trained to fill in the middle.",
    )
    system: str | None = None
    images: list[str] | None = Field(default=None, description="Images as base64.")
    raw: bool | None = Field(default=None, description="Do not apply the chat template.")
    template: Annotated[None, refused_unless("send raw", "")] = None
    context: Annotated[None, refused_unless("send the conversation to /api/chat")] = None


class OllamaShowRequest(Lenient):
    """Body of POST /api/show. Older clients call the model `name`."""

    model: str = Field(validation_alias=AliasChoices("model", "name"))


class OllamaEmbedRequest(Lenient):
    """Body of POST /api/embed."""

    model: str
    input: str | Annotated[list[str], Field(fail_fast=True)]
    dimensions: Annotated[int, Field(ge=1)] | None = Field(
        default=None, description="Must be the model's own dimension."
    )
    truncate: bool | None = Field(
        default=None,
        description="Read only the beginning of a text that is longer than the model's maximum"
        " length. Without it such a text is embedded in windows.",
    )


class OllamaCalledFunction(Answer):
    name: str
    arguments: dict[str, Any]


class OllamaCall(Answer):
    id: str
    function: OllamaCalledFunction


class OllamaAnswerMessage(Answer):
    role: Literal["assistant"] = "assistant"
    content: str
    thinking: str | None = absent("The thinking before the answer.")
    tool_calls: list[OllamaCall] | None = Absent


class OllamaAnswer(Answer):
    """An answer, or a line of a streamed one: of /api/chat with a `message`, of /api/generate with
    a `response`. The figures come with the last line; durations are in nanoseconds."""

    model: str
    created_at: str
    message: OllamaAnswerMessage | None = Absent
    response: str | None = Absent
    thinking: str | None = absent("The thinking before the response.")
    done: bool = False
    done_reason: Literal["stop", "length", "load"] | None = Absent
    total_duration: int | None = Absent
    load_duration: int | None = Absent
    prompt_eval_count: int | None = Absent
    prompt_eval_duration: int | None = Absent
    eval_count: int | None = Absent
    eval_duration: int | None = Absent


class OllamaEmbeddings(Answer):
    model: str
    embeddings: list[list[float]]
    total_duration: int
    load_duration: int = 0
    prompt_eval_count: int


class OllamaDetails(Answer):
    """Empty: unknown."""

    parent_model: str = ""
    format: str = ""
    family: str = "tandem"
    families: tuple[str, ...] = ("tandem",)
    parameter_size: str = ""
    quantization_level: str = ""


class OllamaModel(Answer):
    name: str
    model: str
    modified_at: str
    size: int = Field(default=0, description="Always 0: unknown.")
    digest: str
    details: OllamaDetails = OllamaDetails()


class OllamaModels(Answer):
    models: list[OllamaModel]


class OllamaModelCard(Answer):
    modified_at: str
    details: OllamaDetails = OllamaDetails()
    model_info: dict[str, Any]
    capabilities: list[Literal["completion", "tools", "embedding"]]


class OllamaVersion(Answer):
    version: str


def chat_of(asked: OllamaChatRequest, model: str) -> ChatCompletionRequest:
    """Return the chat that asks `model` for the same. Raises ApiError."""
    tools = [tool.model_dump(exclude_none=True) for tool in asked.tools or ()]
    return chat_from(
        **_common_fields(asked, model),
        **_thinking(asked.think),
        messages=list(_messages(asked.messages)),
        tools=tools or None,
    )


def generation_of(
    asked: OllamaGenerateRequest, model: str
) -> ChatCompletionRequest | CompletionRequest:
    """Return the completion that asks `model` for the same, or the chat if its template is to be
    applied. Raises ApiError."""
    common = _common_fields(asked, model)
    if not (asked.raw or asked.suffix):
        system = [{"role": "system", "content": asked.system}] if asked.system else []
        user = {"role": "user", "content": _content(asked.prompt, asked.images)}
        return chat_from(**common, **_thinking(asked.think), messages=[*system, user])
    refused = (("system", asked.system), ("images", asked.images), ("think", asked.think))
    for name, given in refused:
        if given:
            raise invalid(name, f"{name}: cannot be combined with raw or suffix")
    body = {**common, "prompt": asked.prompt, "suffix": asked.suffix or None}
    try:
        sent = {name: value for name, value in body.items() if value is not None}
        return CompletionRequest.model_validate(sent)
    except ValidationError as error:
        raise validation_error(error.errors(include_url=False)) from None


def _common_fields(asked: _OllamaBody, model: str) -> dict[str, Any]:
    options = asked.options or OllamaOptions()
    limit = options.num_predict
    seed = options.seed
    return {
        "model": model,
        **{name: getattr(options, name) for name in _SAME_NAME},
        "max_tokens": None if limit in (-1, -2) else limit,
        "seed": None if seed == -1 else seed,
        "repetition_penalty": options.repeat_penalty,
        "response_format": _response_format(asked.format),
        "truncate": "oldest" if asked.truncate else None,
    }


def _thinking(think: bool | str | None) -> dict[str, Any]:
    """Return the parameters of a chat that say whether its model thinks first."""
    if isinstance(think, str):
        return {"reasoning_effort": think}
    return {} if think is None else {"chat_template_kwargs": {"enable_thinking": think}}


def _response_format(wanted: str | JsonSchema | None) -> dict[str, Any] | None:
    if isinstance(wanted, dict):
        return {"type": "json_schema", "json_schema": {"name": "format", "schema": wanted}}
    return {"type": "json_object"} if wanted == "json" else None


def _messages(messages: Sequence[OllamaMessage]) -> Iterator[dict[str, Any]]:
    """Yield OpenAI's messages. There, a tool's result names its call by id; in Ollama's API it
    names the function, or else follows the order of the calls."""
    unanswered: list[tuple[str, str]] = []
    for index, message in enumerate(messages):
        if message.role == "tool":
            number = _answered_call(index, message, unanswered)
            yield {"role": "tool", "tool_call_id": number, "content": message.content}
            continue
        content = _content(message.content, message.images)
        turn: dict[str, Any] = {"role": message.role, "content": content}
        if message.thinking:
            turn["reasoning_content"] = message.thinking
        if message.tool_calls:
            turn["tool_calls"] = calls = [
                _call(call, f"call_{index}_{place}")
                for place, call in enumerate(message.tool_calls)
            ]
            unanswered = [(call["function"]["name"], call["id"]) for call in calls]
        yield turn


def _answered_call(index: int, message: OllamaMessage, unanswered: list[tuple[str, str]]) -> str:
    """Return the id of the call whose result the message is, and take the call off `unanswered`.
    Raises ApiError if there is none."""
    for place, (name, number) in enumerate(unanswered):
        if message.tool_call_id is not None:
            matches = message.tool_call_id == number
        else:
            matches = message.tool_name in (None, name)
        if matches:
            del unanswered[place]
            return number
    field = f"messages.{index}"
    raise invalid(field, f"{field}: is not the result of a call in the message before it")


def _call(call: OllamaToolCall, number: str) -> dict[str, Any]:
    arguments = json.dumps(call.function.arguments)
    function = {"name": call.function.name, "arguments": arguments}
    return {"id": call.id or number, "type": "function", "function": function}


def _content(text: str, images: Sequence[str] | None) -> str | list[dict[str, Any]]:
    if not images:
        return text
    # Whoever decodes an image sees what kind it is; its address must say that it is one.
    parts: list[dict[str, Any]] = [
        {"type": "image_url", "image_url": {"url": f"data:image/*;base64,{image}"}}
        for image in images
    ]
    return [*parts, {"type": "text", "text": text}]


class OllamaWriter:
    """Writes the one answer to a request for `model` as Ollama does; `chat`: as /api/chat, not
    /api/generate. `reads`: the text has thinking, and calls written as `calls` says."""

    def __init__(
        self, model: str, *, chat: bool, reads: bool = True, calls: CallFormat | None = None
    ) -> None:
        self.id = uuid.uuid4().hex
        self._model = model
        self._chat = chat
        self._reader = ChoiceReader(ReasoningOptions(separate=reads), calls)
        self._called = Parts()

    @property
    def stream_form(self) -> StreamForm:
        return StreamForm(
            path=OLLAMA_PREFIX,
            media_type=NDJSON,
            event=_json_line,
            keep_alive=_json_line(self._line(Parts())),
        )

    def whole(self, deltas: Sequence[ChoiceDelta]) -> OllamaAnswer:
        """Return the whole answer, from its last piece."""
        (last,) = deltas
        return self._line(self._parts(last.answer.text, last), **_figures(last))

    def events(self, delta: ChoiceDelta) -> Iterator[OllamaAnswer]:
        """Yield the lines of a piece of the answer. A call is written once it is complete."""
        parts = self._parts(delta.text, delta)
        if parts.text or parts.thinking or parts.calls:
            yield self._line(parts)
        if delta.ended:
            yield self._line(Parts(), **_figures(delta))

    def _parts(self, text: str, delta: ChoiceDelta) -> Parts:
        """Return what a piece adds; calls are added at the end."""
        for piece in self._reader.push(delta.answer, text, delta.ended):
            self._called.add(piece)
        parts = self._called
        self._called = Parts() if delta.ended else Parts(calls=parts.calls)
        return Parts(parts.text, parts.thinking, parts.calls if delta.ended else [])

    def _line(self, parts: Parts, **figures: Any) -> OllamaAnswer:
        return _answer_line(self._model, parts, chat=self._chat, prefix=self.id[:16], **figures)


def _answer_line(
    model: str, parts: Parts, *, chat: bool, prefix: str = "", **figures: Any
) -> OllamaAnswer:
    """Return a part of an answer by `model`. A call that was cut off is left out; the ids of the
    others begin with `prefix`."""
    created_at = _as_time(datetime.now(UTC).timestamp())
    thinking = parts.thinking or None
    if not chat:
        return OllamaAnswer(
            model=model, created_at=created_at, response=parts.text, thinking=thinking, **figures
        )
    calls = [
        OllamaCall(
            id=f"call_{prefix}_{place}",
            function=OllamaCalledFunction(name=name, arguments=arguments),
        )
        for place, name, arguments in parts.whole_calls()
    ]
    message = OllamaAnswerMessage(content=parts.text, thinking=thinking, tool_calls=calls or None)
    return OllamaAnswer(model=model, created_at=created_at, message=message, **figures)


def _figures(ended: ChoiceDelta) -> dict[str, Any]:
    summary = ended.answer.summary
    assert summary is not None
    figures = figures_of(ended.answer)
    total_s = figures.duration_s
    prompt_s = total_s if figures.ttft_s is None else figures.ttft_s
    return {
        "done": True,
        "done_reason": "length" if summary.finish_reason == "length" else "stop",
        "total_duration": _nanoseconds(total_s),
        "load_duration": 0,
        "prompt_eval_count": summary.prompt_tokens,
        "prompt_eval_duration": _nanoseconds(prompt_s),
        "eval_count": summary.tokens,
        "eval_duration": _nanoseconds(total_s - prompt_s),
    }


def _model_entry(card: ModelCard) -> OllamaModel:
    """Return a model of /v1/models as /api/tags lists it."""
    return OllamaModel(
        name=card.id,
        model=card.id,
        modified_at=_as_time(card.created),
        digest=hashlib.sha256(written(card.tandem)).hexdigest(),
    )


def _model_details(card: ModelCard) -> OllamaModelCard:
    """Return a model of /v1/models as /api/show describes it."""
    served = card.tandem
    embeds = isinstance(served, ServedEmbedding)
    length = (
        {"tandem.embedding_length": served.dimension}
        if isinstance(served, ServedEmbedding)
        else {"tandem.context_length": served.context_length}
    )
    return OllamaModelCard(
        modified_at=_as_time(card.created),
        model_info={"general.architecture": "tandem", **length},
        capabilities=["embedding"] if embeds else ["completion", "tools"],
    )


def _nanoseconds(seconds: float) -> int:
    return round(seconds * 1e9)


def _as_time(timestamp: float) -> str:
    """Return seconds since 1970 as RFC 3339 in UTC."""
    return datetime.fromtimestamp(timestamp, UTC).isoformat().replace("+00:00", "Z")


def _json_line(content: Any) -> bytes:
    return written(content) + b"\n"


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
            await in_turn(request, partial(chat_of, body, model), spends=body.messages),
            body.streamed,
            lambda calls: OllamaWriter(body.model, chat=True, calls=calls),
        )

    async def ollama_generate(self, request: Request, body: OllamaGenerateRequest) -> Response:
        """Complete a prompt as Ollama does."""
        model = await self._model(body.model)
        if not (body.prompt or body.suffix or body.images):
            return await self._loaded(body.model, model, chat=False)
        asked = await in_turn(request, partial(generation_of, body, model))
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
                total_duration=_nanoseconds(time.monotonic() - began_s),
                prompt_eval_count=answer.usage.prompt_tokens,
            )
        )

    async def ollama_show(self, body: OllamaShowRequest) -> Response:
        """Describe a model as Ollama does."""
        card = await self._catalog.card(await self._model(body.model))
        return json_response(_model_details(card))

    async def ollama_tags(self) -> Response:
        """List the served models as Ollama does."""
        cards = await self._catalog.cards()
        return json_response(OllamaModels(models=[_model_entry(card) for card in cards]))

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
        return json_response(_answer_line(name, Parts(), chat=chat, done=True, done_reason="load"))
