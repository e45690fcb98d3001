"""The HTTP API as an ASGI application: OpenAI's routes, what is told in other APIs' forms, probes.
Invariant: a request is checked before the suite hears of it, and admitted by the suite before its
status is sent, so that a refusal is a status and no broken stream."""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import aclosing, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Annotated, Any, Literal

from fastapi import FastAPI, Header, Query, Request
from fastapi.exceptions import RequestValidationError
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import Response
from starlette.routing import Match, Route
from starlette.types import ASGIApp

from tandem.core.errors import TandemError
from tandem.core.foreign_words import without_addresses
from tandem.core.host_names import ANY
from tandem.core.version import __version__
from tandem.gateway.anthropic_messages import (
    CountTokensRequest,
    MessageEvent,
    MessageObject,
    MessagesRequest,
    MessageWriter,
    TokenCount,
    chat_of_messages,
    chat_to_count,
)
from tandem.gateway.base_models import Absent, Answer
from tandem.gateway.catalog import Catalog, ModelCard, ModelList, ServingSuite
from tandem.gateway.choice_reader import ReasoningOptions
from tandem.gateway.connection_body import BodyLimits, CallerLeft, cancel_on_disconnect
from tandem.gateway.document_route import DocumentRoute, TenantDocuments
from tandem.gateway.errors import (
    CHAT_PATH,
    MESSAGES_PATH,
    RESPONSES_PATH,
    ApiError,
    MessageError,
    api_error,
    error_response,
    invalid,
    json_response,
    validation_error,
)
from tandem.gateway.even_stream import evenly
from tandem.gateway.event_stream import EVENTS, AnswerWriter, BegunAnswer, EventStream
from tandem.gateway.guard import METRICS_PATH, WHY_NOT, Guard
from tandem.gateway.kept_answers import KeptAnswer, KeptAnswers, place_after
from tandem.gateway.known_names import KnownNames
from tandem.gateway.long_bodies import in_turn, turns
from tandem.gateway.ollama import OllamaRoute
from tandem.gateway.openai_answer import (
    ChatCompletion,
    ChatCompletionChunk,
    OpenAIWriter,
    TextCompletion,
    TextCompletionChunk,
)
from tandem.gateway.openapi import (
    AT_THE_DOOR,
    FROM_THE_SUITE,
    OF_A_BODY,
    WITH_A_KEY,
    add_document,
    add_route,
)
from tandem.gateway.parallel_choices import ChoiceDelta, deltas
from tandem.gateway.request_reading import RequestLimits, chat_requests, completion_requests
from tandem.gateway.responses import (
    Deleted,
    ResponseEvent,
    ResponseObject,
    ResponsesRequest,
    ResponseWriter,
    as_chat,
)
from tandem.gateway.schema import (
    ChatCompletionRequest,
    CommonParameters,
    CompletionRequest,
    TandemOptions,
    neutral_fields,
)
from tandem.gateway.text_endpoints import TextEndpoints
from tandem.gateway.tool_schemas import refusal_of_schema
from tandem.gateway.web_page import DOCS_FILES, FEATURES_PATH, PAGE_FILES, add_docs, add_page
from tandem.generation.request import LONGEST_ANSWER_S, GenerationRequest
from tandem.net.access_keys import KeyRing
from tandem.net.keys_file import KeysFileState
from tandem.telemetry.metrics import Metrics

_IN_BODY = ChatCompletionRequest.model_fields.keys() - neutral_fields().keys()
_TANDEM_FIELDS = frozenset(TandemOptions.model_fields.keys() - _IN_BODY)
COMPLETION_PATH = "/v1/completions"
MODELS_PATH = "/v1/models"
STREAM_PATH = "/v1/tandem/streams/{number}"
_DONE = "[DONE]"


@dataclass(frozen=True, slots=True)
class GatewaySettings:
    """`keys` gives the keys known now; None lets everybody in who calls by one of `names`.
    `keys_state`: what is wrong with their file, for readiness. `docs`: interactive documentation at
    /docs.
    `body_bytes_per_s`: of one key's bodies, together and on average; 0 is no limit.
    `max_requests` are handled at once; how many of them are answered at once, and how many wait, is
    for the suite to say. `page` serves the web page at `/`; `documents` are the device's, among
    which callers may then keep some; `embedding_aliases` are other names of the embedding model;
    `model_defaults`: requests that name no sampling settings get those of the model's makers;
    `grpc_port` is told to who looks for the same suite over gRPC."""

    keys: Callable[[], KeyRing] | None = None
    keys_state: Callable[[], KeysFileState] | None = None
    docs: bool = True
    names: KnownNames = field(default_factory=KnownNames)
    limits: RequestLimits = field(default_factory=RequestLimits)
    max_body_bytes: int = 2 * 2**20
    body_bytes_per_s: int = 4 * 2**20
    max_requests: int = 256
    timeout_s: float = LONGEST_ANSWER_S
    page: bool = True
    documents: TenantDocuments | None = None
    embedding_aliases: tuple[str, ...] = ()
    model_defaults: bool = True
    grpc_port: int | None = None


def make_app(
    suite: ServingSuite,
    metrics: Metrics,
    settings: GatewaySettings,
    ending: asyncio.Event | None = None,
) -> ASGIApp:
    """Return the application, for an ASGI server that runs on the suite's event loop. Answers that
    are not complete when `ending` is set end with an error: this process is stopping."""
    app = make_routes(suite, metrics, settings, ending)
    series = metrics.http()
    pages = frozenset(DOCS_FILES if settings.docs else ())
    if settings.page:
        pages |= {*PAGE_FILES, FEATURES_PATH}
    guarded = Guard(
        app=app,
        keys=settings.keys,
        names=settings.names,
        max_requests=settings.max_requests,
        series=series,
        pages=pages,
    )
    if not settings.names.origins:
        return guarded
    # A browser asks whether it may ask before it asks, and without the key.
    return CORSMiddleware(
        guarded,
        allow_origins=[ANY] if ANY in settings.names.origins else sorted(settings.names.origins),
        allow_methods=["GET", "HEAD", "POST", "DELETE"],
        allow_headers=["*"],
        expose_headers=["X-Request-Id", "Request-Id", "Retry-After"],
    )


def make_routes(
    suite: ServingSuite,
    metrics: Metrics,
    settings: GatewaySettings,
    ending: asyncio.Event | None = None,
) -> FastAPI:
    """Return the application with all its routes, but without the `Guard` that asks callers for a
    key."""
    ending = ending or asyncio.Event()
    gateway = _Gateway(suite, metrics, settings, ending)
    app = FastAPI(
        title="Tandem", version=__version__, docs_url=None, redoc_url=None, openapi_url=None
    )
    app.state.events = []
    app.state.body_limits = BodyLimits(
        max_bytes=settings.max_body_bytes,
        bytes_per_s=settings.body_bytes_per_s,
        max_ids=lambda: gateway.catalog.context_length,
        ending=ending,
    )
    app.state.long_bodies = turns()
    posted = (*FROM_THE_SUITE, *OF_A_BODY)
    route = partial(add_route, app)
    route(
        "POST",
        CHAT_PATH,
        gateway.chat,
        answer=ChatCompletion,
        event=ChatCompletionChunk,
        last_event=_DONE,
        refusals=posted,
    )
    route(
        "POST",
        COMPLETION_PATH,
        gateway.complete,
        answer=TextCompletion,
        event=TextCompletionChunk,
        last_event=_DONE,
        refusals=posted,
    )
    route(
        "POST",
        RESPONSES_PATH,
        gateway.respond,
        answer=ResponseObject,
        event=ResponseEvent,
        last_event=_DONE,
        refusals=posted,
    )
    one, kept = f"{RESPONSES_PATH}/resp_{{number}}", (*WITH_A_KEY, 400, 404)
    route(
        "GET",
        one,
        gateway.response,
        answer=ResponseObject,
        event=ResponseEvent,
        last_event=_DONE,
        refusals=(*kept, 410),
    )
    route("DELETE", one, gateway.delete_response, answer=Deleted, refusals=kept)
    cancelling = f"{one}/cancel"
    route("POST", cancelling, gateway.cancel_response, answer=ResponseObject, refusals=kept)
    route("GET", STREAM_PATH, gateway.stream, text=EVENTS, refusals=(*kept, 410))
    route("DELETE", STREAM_PATH, gateway.delete_stream, answer=Deleted, refusals=kept)
    texts = TextEndpoints(suite, gateway.catalog, ending)
    texts.add_routes(app)
    route(
        "POST",
        MESSAGES_PATH,
        gateway.create_message,
        answer=MessageObject,
        event=MessageEvent,
        refusals=posted,
        error=MessageError,
    )
    route(
        "POST",
        f"{MESSAGES_PATH}/count_tokens",
        gateway.count_message_tokens,
        answer=TokenCount,
        refusals=posted,
        error=MessageError,
    )
    OllamaRoute(
        catalog=gateway.catalog,
        ending=ending,
        answer=gateway.answer,
        embeddings=texts.embeddings,
    ).add_routes(app)
    if settings.docs:
        add_docs(app)
    route("GET", MODELS_PATH, gateway.models, answer=ModelList, refusals=FROM_THE_SUITE)
    route(
        "GET",
        f"{MODELS_PATH}/{{model:path}}",
        gateway.model,
        answer=ModelCard,
        refusals=(*FROM_THE_SUITE, 404),
    )
    route("GET", METRICS_PATH, gateway.metrics, text=CONTENT_TYPE_LATEST, refusals=WITH_A_KEY)
    open_to_all = partial(route, "GET", needs_key=False, refusals=AT_THE_DOOR)
    open_to_all("/healthz", gateway.healthy, answer=AliveAnswer)
    open_to_all("/readyz", gateway.ready, answer=ReadyAnswer, answered_as={503: ReadyAnswer})
    if settings.documents is not None:
        DocumentRoute(settings.documents, ending).add_routes(app)
    if settings.page:
        add_page(app, {"documents": settings.documents is not None})
    add_document(app)
    for kind in (ApiError, TandemError, RequestValidationError, Exception):
        app.add_exception_handler(kind, _refused)
    app.add_exception_handler(CallerLeft, _client_closed)
    app.add_exception_handler(HTTPException, _no_such_route)
    return app


class AliveAnswer(Answer):
    status: Literal["ok"] = "ok"
    grpc_port: int | None = Absent


class ReadyAnswer(Answer):
    status: Literal["ready", "not ready"]
    reason: str | None = Absent
    warning: str | None = Absent


Number = Annotated[int, Query(ge=0, lt=2**32)]


class _Gateway:
    def __init__(
        self,
        suite: ServingSuite,
        metrics: Metrics,
        settings: GatewaySettings,
        ending: asyncio.Event,
    ) -> None:
        self._suite = suite
        self._ending = ending
        self._registry = metrics.registry
        self._settings = settings
        self._kept = KeptAnswers(ending)
        self.catalog = Catalog(suite, settings.embedding_aliases, settings.model_defaults)

    @property
    def _limits(self) -> RequestLimits:
        limits = self._settings.limits
        return replace(
            limits,
            unstated_tokens=self.catalog.unstated_tokens,
            default_sampling=self.catalog.default_sampling,
        )

    async def chat(self, request: Request, body: ChatCompletionRequest) -> Response:
        """Complete a conversation, using the model's chat template."""
        return await self._openai(request, body)

    async def complete(self, request: Request, body: CompletionRequest) -> Response:
        """Complete one or several prompts, each a text or a list of token ids."""
        return await self._openai(request, body)

    async def respond(self, request: Request, body: ResponsesRequest) -> Response:
        """Create a response as OpenAI's Responses API does. It is kept only with `background`."""
        if body.background and body.store is False:
            words = "background: needs the response to be kept; leave out store, or send true"
            raise invalid("background", words)
        items = body.input if isinstance(body.input, list) else None
        chat = await in_turn(request, partial(as_chat, body), spends=items)
        (asked,) = await self._asked(request, chat)
        writer = ResponseWriter(body, asked, self._calls_of(chat))
        return await self._answered(
            request,
            [asked],
            writer,
            stream=body.stream is True,
            options=body.tandem,
            background=body.background is True,
        )

    async def response(
        self,
        number: str,
        stream: bool = False,
        starting_after: Number | None = None,
    ) -> Response:
        """Return a response that was created with `background`, or its events from the one after
        `starting_after` on."""
        kept = self._kept.find(f"resp_{number}")
        if stream:
            place = 0 if starting_after is None else starting_after + 1
            return self._kept.stream(kept.writer.id, place)
        return self._response_of(kept)

    async def cancel_response(self, number: str) -> Response:
        """End a response that was created with `background`, and return what there is of it. One
        that has ended stays as it is."""
        return self._response_of(await self._kept.cancel(f"resp_{number}"))

    def _response_of(self, kept: KeptAnswer) -> Response:
        assert isinstance(kept.writer, ResponseWriter)
        with self._kept.reading(kept):
            failure = kept.failure if kept.ended else None
            kept.was_read = kept.was_read or kept.ended
            return json_response(kept.writer.response(failure, cancelled=kept.was_cancelled))

    async def delete_response(self, number: str) -> Response:
        """End a response that was created with `background`, and forget it."""
        await self._kept.delete(f"resp_{number}")
        return json_response(Deleted(id=f"resp_{number}", object="response"))

    async def stream(
        self,
        number: str,
        starting_after: Number | None = None,
        last_event_id: Annotated[str, Header(max_length=256)] = "",
    ) -> Response:
        """Take up a stream that was asked for as `resumable`, after the event that the header
        `Last-Event-ID` or `starting_after` names."""
        place = 0 if starting_after is None else starting_after + 1
        if last_event_id:
            place = place_after(last_event_id, number)
        return self._kept.stream(number, place)

    async def delete_stream(self, number: str) -> Response:
        """End a stream that was asked for as `resumable`, and forget it."""
        await self._kept.delete(number)
        return json_response(Deleted(id=number, object="stream"))

    async def create_message(self, request: Request, body: MessagesRequest) -> Response:
        """Complete a conversation as Anthropic's Messages API does."""
        chat = await in_turn(request, partial(chat_of_messages, body), spends=body.messages)
        asked = await self._asked(request, chat)
        writer = MessageWriter(body.model, chat.reasoning, self._calls_of(chat))
        return await self._answered(
            request, asked, writer, stream=body.stream is True, options=body.tandem
        )

    async def count_message_tokens(self, request: Request, body: CountTokensRequest) -> Response:
        """Count the tokens of a prompt as Anthropic's API does, without an answer."""
        chat = await in_turn(request, partial(chat_to_count, body), spends=body.messages)
        (counted,) = await self._asked(request, chat)
        if counted.params.images:
            raise invalid("messages", "messages: the tokens of images cannot be counted")
        tokenizing = self._suite.tokenize(
            counted.prompt, tools=counted.tools, chat_template_kwargs=counted.chat_template_kwargs
        )
        tokenized = await cancel_on_disconnect(request.receive, self._ending, tokenizing)
        return json_response(TokenCount(input_tokens=len(tokenized.token_ids)))

    async def models(self) -> Response:
        """List the served models: the pair of draft and target model, and the embedding model if
        there is one."""
        return json_response(ModelList(data=await self.catalog.cards()))

    async def model(self, model: str) -> Response:
        """Return one model by name."""
        return json_response(await self.catalog.card(model))

    async def metrics(self) -> Response:
        """Return the metrics of this process for Prometheus."""
        return Response(generate_latest(self._registry), media_type=CONTENT_TYPE_LATEST)

    async def healthy(self) -> Response:
        """Return 200 while the process runs (liveness probe)."""
        return json_response(AliveAnswer(grpc_port=self._settings.grpc_port))

    async def ready(self) -> Response:
        """Return whether an answer could be given now: the drafter and the cloud are reached, and
        there is a key that is accepted. A malformed line of the keys file is told and keeps nobody
        else out: one mistake, brought to a whole fleet, must not end it."""
        keys = KeysFileState() if self._settings.keys_state is None else self._settings.keys_state()
        if keys.closed:
            return json_response(ReadyAnswer(status="not ready", reason=keys.warning), 503)
        try:
            await self.catalog.reach()
        except TandemError as error:
            reason = without_addresses(str(error))
            return json_response(ReadyAnswer(status="not ready", reason=reason), 503)
        return json_response(ReadyAnswer(status="ready", warning=keys.warning or None))

    async def answer(
        self,
        request: Request,
        body: ChatCompletionRequest | CompletionRequest,
        stream: bool,
        writer_of: Callable[[Any], AnswerWriter],
    ) -> Response:
        """Answer another API's request, for which `body` stands. `writer_of` makes the writer,
        given how the model writes tool calls."""
        asked = await self._asked(request, body)
        writer = writer_of(self._calls_of(body))
        return await self._answered(request, asked, writer, stream=stream, options=body.tandem)

    async def _openai(
        self, request: Request, body: ChatCompletionRequest | CompletionRequest
    ) -> Response:
        asked = await self._asked(request, body)
        chat = body if isinstance(body, ChatCompletionRequest) else None
        options = body.stream_options
        writer = OpenAIWriter(
            chat=chat is not None,
            model=body.model,
            fingerprint=await self.catalog.fingerprint(body.model),
            requests=asked,
            prompts=len(asked) // (body.n or 1),
            echoes=await self._echoes(body, asked),
            reads_prompt=body.reads_prompt,
            prompt_only=body.prompt_only,
            tool_named=chat is not None and chat.tool_named,
            calls=self._calls_of(body),
            provenance=body.tandem.provenance,
            token_texts=body.tandem.token_texts,
            include_usage=bool(options and options.include_usage),
            continuous_usage=bool(options and options.continuous_usage_stats),
            reasoning=ReasoningOptions() if chat is None else chat.reasoning,
        )
        stream = body.stream is True
        return await self._answered(request, asked, writer, stream=stream, options=body.tandem)

    def _calls_of(self, body: CommonParameters) -> Any:
        """Return how the model writes tool calls; None if it is offered no tools."""
        offers = isinstance(body, ChatCompletionRequest) and bool(body.offered)
        return self.catalog.family.calls if offers else None

    async def _asked(
        self, request: Request, body: ChatCompletionRequest | CompletionRequest
    ) -> list[GenerationRequest]:
        """Return the requests that a body stands for, once the suite was reached: the model's
        family is not known before."""
        if grammar := body.named_grammar():
            request.state.grammar = grammar[0]
        if isinstance(body, ChatCompletionRequest):
            request.state.tools = [tool.function.name for tool in body.offered]
        await self.catalog.fingerprint(body.model)
        if isinstance(body, ChatCompletionRequest):
            read = partial(chat_requests, body, self._limits, self.catalog.family)
            return await in_turn(request, read, spends=body.messages)
        return await in_turn(request, partial(completion_requests, body, self._limits))

    async def _answered(
        self,
        request: Request,
        asked: Sequence[GenerationRequest],
        writer: AnswerWriter,
        *,
        stream: bool,
        options: TandemOptions,
        background: bool = False,
    ) -> Response:
        if options.resumable and not (stream or background):
            words = "tandem.resumable: requires stream to be true"
            raise invalid("tandem.resumable", words)
        answering = deltas(self._suite, asked, self._settings.timeout_s)
        if not (stream or background):
            last = _last_deltas(answering)
            ended = await cancel_on_disconnect(request.receive, self._ending, last)
            return json_response(writer.whole(ended))
        if options.even_stream:
            answering = evenly(answering)
        kept = background or options.resumable
        with self._kept.room() if kept else nullcontext():
            first = None
            if not background:  # its status is told before the suite has admitted it
                first = await cancel_on_disconnect(request.receive, self._ending, anext(answering))
            begun = BegunAnswer(writer, first, answering)
            if not kept:
                return EventStream(begun, self._ending)
            self._kept.keep(begun, request.scope.get(WHY_NOT, lambda: None))
        if stream or not isinstance(writer, ResponseWriter):
            return self._kept.stream(writer.id, 0)
        return json_response(writer.response())

    async def _echoes(
        self, body: CommonParameters, asked: Sequence[GenerationRequest]
    ) -> list[str | None]:
        """Return the text of each prompt if answers are to begin with it, otherwise an empty list.
        None stands for token ids whose text the suite will send with their log-probabilities."""
        if not (isinstance(body, CompletionRequest) and body.echo):
            return []
        texts: list[str | None] = []
        for request in asked[:: body.n or 1]:
            if isinstance(request.prompt, str):
                texts.append(request.prompt)
            elif body.reads_prompt:
                texts.append(None)
            else:
                tokenized = await self._suite.tokenize(request.prompt, spell=True)
                texts.append("".join(tokenized.token_texts))
        return texts


async def _last_deltas(answering: Any) -> list[ChoiceDelta]:
    async with aclosing(answering):
        return [delta async for delta in answering if delta.ended]


async def _refused(request: Request, error: Exception) -> Response:
    if isinstance(error, RequestValidationError):
        error = _invalid_request(error)
    refused = api_error(error, _TANDEM_FIELDS)
    if refused.param in ("grammar", "processors"):
        refused.param = getattr(request.state, "grammar", None)
        names = getattr(request.state, "tools", ())
        refused.message = refusal_of_schema(refused.message, names)
    return error_response(refused, request.url.path)


def _invalid_request(error: RequestValidationError) -> ApiError:
    """Return the error without where FastAPI found the value: in the body, the path, or behind
    it."""
    details = [{**each, "loc": _names(*each["loc"])} for each in error.errors()]
    if details[0]["type"] == "missing" and not details[0]["loc"]:
        return invalid(None, "the body is not JSON: it is empty", "invalid_json")
    return validation_error(details)


def _names(source: str, *parts: int | str) -> tuple[int | str, ...]:
    """Return where in a request a value is; a header's name is no identifier."""
    if source != "header":
        return parts
    return tuple(str(part).replace("-", "_") for part in parts)


async def _client_closed(request: Request, error: Exception) -> Response:
    assert isinstance(error, CallerLeft)
    return Response(status_code=error.status_code)


async def _no_such_route(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    words = f"{request.method} {request.url.path}: {error.detail}"
    code = error.status_code
    headers = {"Allow": _methods_of(request)} if code == 405 else error.headers
    refused = ApiError(code, words, code="unknown_url", headers=headers)
    return error_response(refused, request.url.path)


def _methods_of(request: Request) -> str:
    """Return the methods of a path, each of which is a route that knows its own alone."""
    routes = (each for each in request.app.router.routes if isinstance(each, Route))
    matching = (each for each in routes if each.matches(request.scope)[0] is not Match.NONE)
    return ", ".join(sorted({name for each in matching for name in each.methods or ()}))
