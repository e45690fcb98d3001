"""The HTTP API as an ASGI application: OpenAI's routes, what is told in other APIs' forms, probes.
Invariant: a request is checked before the suite hears of it, and admitted by the suite before its
status is sent, so that a refusal is a status and no broken stream."""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from functools import cache, partial
from typing import Any, TypeVar

from fastapi import FastAPI, Request
from fastapi.routing import APIRoute
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import Response
from starlette.types import ASGIApp

from tandem.core.errors import TandemError
from tandem.core.foreign_words import without_addresses
from tandem.core.host_names import ANY
from tandem.core.version import __version__
from tandem.gateway.anthropic_messages import (
    CountTokensRequest,
    MessagesRequest,
    MessageWriter,
    chat_of_messages,
    chat_to_count,
)
from tandem.gateway.bodies import CHAT, COMPLETION, Form, Writer
from tandem.gateway.body_parsing import parse_body
from tandem.gateway.catalog import Catalog, ServingSuite
from tandem.gateway.connection_body import BodyReader, CallerLeft, unless_ending, unless_gone
from tandem.gateway.docs_page import DOCS_PATHS, add_docs_page
from tandem.gateway.document_route import DocumentRoute, TenantDocuments
from tandem.gateway.error_forms import COUNT_TOKENS_PATH, MESSAGES_PATH, error_response
from tandem.gateway.errors import ApiError, api_error, invalid, json_response
from tandem.gateway.even_stream import evenly
from tandem.gateway.event_stream import EventStream
from tandem.gateway.guard import CALLER_LEFT, METRICS_PATH, Guard
from tandem.gateway.known_names import KnownNames
from tandem.gateway.link_route import LinkRoute
from tandem.gateway.ollama_route import OllamaRoute
from tandem.gateway.openapi import (
    CHAT_PATH,
    COMPLETION_PATH,
    DETOKENIZE_PATH,
    EMBEDDINGS_PATH,
    MODEL_PATH,
    MODELS_PATH,
    RESPONSES_PATH,
    TOKENIZE_PATH,
    openapi_document,
)
from tandem.gateway.parallel_choices import ChoiceDelta, deltas
from tandem.gateway.reasoning import ReasoningOptions
from tandem.gateway.request_reading import RequestLimits, chat_requests, completion_requests
from tandem.gateway.responses import RESPONSE_NAMES, ResponsesRequest, ResponseWriter, as_chat
from tandem.gateway.schema import (
    ChatCompletionRequest,
    CommonParameters,
    CompletionRequest,
    TandemOptions,
)
from tandem.gateway.text_endpoints import TextEndpoints
from tandem.gateway.tool_schemas import refusal_of_schema
from tandem.gateway.translated import AnswerWriter, Translate
from tandem.gateway.web_page import WebPage
from tandem.generation.request import LONGEST_ANSWER_S, GenerationRequest
from tandem.net.access_keys import KeyRing
from tandem.net.keys_file import KeysFileState
from tandem.telemetry.metrics import Metrics

RequestKind = TypeVar("RequestKind", bound=CommonParameters)
_TANDEM_FIELDS = frozenset(
    TandemOptions.model_fields.keys() - ChatCompletionRequest.model_fields.keys()
)


@dataclass(frozen=True, slots=True)
class GatewaySettings:
    """`keys` gives the keys known now; None lets everybody in who calls by one of `names`.
    `keys_state`: what is wrong with their file, for readiness. `docs`: interactive documentation at
    /docs.
    `body_bytes_per_s`: of one key's bodies, together and on average; 0 is no limit.
    `max_requests` are handled at once; how many of them are answered at once, and how many wait, is
    for the suite to say. `page` serves the web page at `/`; `link_control` is the control socket of
    an emulated link, which callers may then change; `documents` are the device's, among which they
    may then keep some of their own; `embedding_aliases` are other names of the embedding model;
    `model_defaults`: requests that name no sampling settings get those of the model's makers."""

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
    link_control: str = ""
    documents: TenantDocuments | None = None
    embedding_aliases: tuple[str, ...] = ()
    model_defaults: bool = True

    @property
    def web_page(self) -> WebPage | None:
        able = {"link": bool(self.link_control), "documents": self.documents is not None}
        return WebPage(able) if self.page else None


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
    pages = DOCS_PATHS if settings.docs else frozenset[str]()
    if (page := settings.web_page) is not None:
        pages |= page.paths
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
        expose_headers=["X-Request-Id", "Retry-After"],
    )


def make_routes(
    suite: ServingSuite,
    metrics: Metrics,
    settings: GatewaySettings,
    ending: asyncio.Event | None = None,
) -> FastAPI:
    """Return the application with all its routes, but without the `Guard` that asks callers for a
    key."""
    gateway = _Gateway(suite, metrics, settings, ending or asyncio.Event())
    app = FastAPI(
        title="Tandem",
        version=__version__,
        docs_url=None,
        redoc_url=None,
        generate_unique_id_function=_operation_id,
    )
    _route(app, "POST", CHAT_PATH, gateway.chat)
    _route(app, "POST", COMPLETION_PATH, gateway.complete)
    _route(app, "POST", RESPONSES_PATH, gateway.respond)
    texts = TextEndpoints(suite, gateway.catalog, gateway.bodies, gateway.ending)
    _route(app, "POST", EMBEDDINGS_PATH, texts.embed)
    _route(app, "POST", TOKENIZE_PATH, texts.tokenize)
    _route(app, "POST", DETOKENIZE_PATH, texts.detokenize)
    _route(app, "POST", MESSAGES_PATH, gateway.create_message)
    _route(app, "POST", COUNT_TOKENS_PATH, gateway.count_message_tokens)
    OllamaRoute(
        catalog=gateway.catalog,
        bodies=gateway.bodies,
        ending=gateway.ending,
        answer=gateway.answer_translated,
        embeddings=texts.embeddings,
    ).add_routes(app)
    if settings.docs:
        add_docs_page(app)
    _route(app, "GET", MODELS_PATH, gateway.models)
    _route(app, "GET", MODEL_PATH.replace("}", ":path}"), gateway.model)
    _route(app, "GET", METRICS_PATH, gateway.metrics)
    _route(app, "GET", "/healthz", gateway.healthy)
    _route(app, "GET", "/readyz", gateway.ready)
    if settings.link_control:
        LinkRoute(settings.link_control).add_routes(app)
    if settings.documents is not None:
        DocumentRoute(settings.documents, gateway.bodies).add_routes(app)
    if (page := settings.web_page) is not None:
        page.add_routes(app)
    app.openapi = cache(partial(openapi_document, app))  # type: ignore[method-assign]
    for kind in (ApiError, TandemError, Exception):
        app.add_exception_handler(kind, _refused)
    app.add_exception_handler(CallerLeft, _nobody)
    app.add_exception_handler(HTTPException, _no_such_route)
    return app


class _Gateway:
    def __init__(
        self,
        suite: ServingSuite,
        metrics: Metrics,
        settings: GatewaySettings,
        ending: asyncio.Event,
    ) -> None:
        self._suite = suite
        self.ending = ending
        self._registry = metrics.registry
        self._settings = settings
        self.bodies = BodyReader(settings.max_body_bytes, settings.body_bytes_per_s)
        self.catalog = Catalog(suite, settings.embedding_aliases, settings.model_defaults)

    @property
    def _limits(self) -> RequestLimits:
        limits = self._settings.limits
        return replace(
            limits,
            unstated_tokens=self.catalog.unstated_tokens,
            default_sampling=self.catalog.default_sampling,
        )

    async def chat(self, request: Request) -> Response:
        """Complete a conversation, using the model's chat template."""
        return await self._answer(request, ChatCompletionRequest, self._chat_requests, CHAT)

    def _chat_requests(
        self, body: ChatCompletionRequest, limits: RequestLimits
    ) -> list[GenerationRequest]:
        """Return the requests of a chat. The suite must have been reached: the model's family is
        not known before."""
        return chat_requests(body, limits, self.catalog.family)

    async def complete(self, request: Request) -> Response:
        """Complete one or several prompts, each a text or a list of token ids."""
        return await self._answer(request, CompletionRequest, completion_requests, COMPLETION)

    async def models(self) -> Response:
        """List the served models: the pair of draft and target model, and the embedding model if
        there is one."""
        return json_response({"object": "list", "data": await self.catalog.cards()})

    async def model(self, model: str) -> Response:
        """Return one model by name."""
        return json_response(await self.catalog.card(model))

    async def metrics(self) -> Response:
        """Return the metrics of this process for Prometheus."""
        return Response(generate_latest(self._registry), media_type=CONTENT_TYPE_LATEST)

    async def healthy(self) -> Response:
        """Return 200 while the process runs (liveness probe)."""
        return json_response({"status": "ok"})

    async def ready(self) -> Response:
        """Return whether an answer could be given now: the drafter and the cloud are reached, and
        there is a key that is accepted. A malformed line of the keys file is told and keeps nobody
        else out: one mistake, brought to a whole fleet, must not end it."""
        keys = KeysFileState() if self._settings.keys_state is None else self._settings.keys_state()
        if keys.closed:
            return json_response({"status": "not ready", "reason": keys.warning}, 503)
        try:
            await self.catalog.reach()
        except TandemError as error:
            return json_response(
                {"status": "not ready", "reason": without_addresses(str(error))}, 503
            )
        return json_response(
            {"status": "ready", **({"warning": keys.warning} if keys.warning else {})}
        )

    async def _answer(
        self,
        request: Request,
        kind: type[RequestKind],
        requests_of: Callable[[RequestKind, RequestLimits], list[GenerationRequest]],
        form: Form,
    ) -> Response:
        raw = await unless_ending(self.ending, self.bodies.read(request))
        body = parse_body(raw, kind, self.catalog.context_length)
        return await self._complete(request, body, requests_of, form)

    async def _complete(
        self,
        request: Request,
        body: RequestKind,
        requests_of: Callable[[RequestKind, RequestLimits], list[GenerationRequest]],
        form: Form,
        translate: Translate | None = None,
    ) -> Response:
        _note_grammar(request, body)
        fingerprint = await self.catalog.fingerprint(body.model)
        generation_requests = requests_of(body, self._limits)
        chat = body if isinstance(body, ChatCompletionRequest) else None
        options = body.stream_options
        writer = Writer(
            form=form,
            model=body.model,
            fingerprint=fingerprint,
            requests=generation_requests,
            prompts=len(generation_requests) // (body.n or 1),
            echoes=await self._echoes(body, generation_requests),
            reads_prompt=body.reads_prompt,
            prompt_only=body.prompt_only,
            tools=chat is not None and bool(chat.offered),
            tool_named=chat is not None and chat.tool_named,
            calls=self.catalog.family.calls,
            reasoning=ReasoningOptions() if chat is None else chat.reasoning,
            provenance=body.tandem.provenance,
            token_texts=body.tandem.token_texts,
            include_usage=bool(options and options.include_usage),
            continuous_usage=bool(options and options.continuous_usage_stats),
        )
        return await self._written(
            request,
            generation_requests,
            writer if translate is None else translate(writer),
            stream=bool(body.stream),
            even=body.tandem.even_stream,
        )

    async def answer_translated(
        self,
        request: Request,
        body: ChatCompletionRequest | CompletionRequest,
        translate: Translate,
    ) -> Response:
        """Answer `body`, which `request` stands for in another API."""
        if isinstance(body, ChatCompletionRequest):
            return await self._complete(request, body, self._chat_requests, CHAT, translate)
        return await self._complete(request, body, completion_requests, COMPLETION, translate)

    async def create_message(self, request: Request) -> Response:
        """Complete a conversation as Anthropic's Messages API does."""
        raw = await unless_ending(self.ending, self.bodies.read(request))
        asked = parse_body(raw, MessagesRequest, self.catalog.context_length)
        return await self.answer_translated(
            request, chat_of_messages(asked), lambda writer: MessageWriter(writer, asked.model)
        )

    async def count_message_tokens(self, request: Request) -> Response:
        """Count the tokens of a prompt as Anthropic's API does, without an answer."""
        raw = await unless_ending(self.ending, self.bodies.read(request))
        asked = parse_body(raw, CountTokensRequest, self.catalog.context_length)
        await self.catalog.fingerprint(asked.model)
        (counted,) = self._chat_requests(chat_to_count(asked), self._limits)
        if counted.params.images:
            raise invalid("messages", "messages: the tokens of images cannot be counted")
        tokenizing = self._suite.tokenize(
            counted.prompt, tools=counted.tools, chat_template_kwargs=counted.chat_template_kwargs
        )
        tokenized = await unless_gone(request.receive, self.ending, tokenizing)
        return json_response({"input_tokens": len(tokenized.token_ids)})

    async def respond(self, request: Request) -> Response:
        """Create a response as OpenAI's Responses API does, without storing it."""
        raw = await unless_ending(self.ending, self.bodies.read(request))
        body = parse_body(raw, ResponsesRequest, self.catalog.context_length)
        chat = as_chat(body)
        _note_grammar(request, chat)
        await self.catalog.fingerprint(body.model)
        generation_requests = self._chat_requests(chat, self._limits)
        writer = ResponseWriter(
            body,
            generation_requests[0].params,
            self.catalog.family.calls if chat.offered else None,
        )
        return await self._written(
            request,
            generation_requests,
            writer,
            stream=bool(body.stream),
            even=body.tandem.even_stream,
        )

    async def _written(
        self,
        request: Request,
        asked: Sequence[GenerationRequest],
        writer: AnswerWriter,
        *,
        stream: bool,
        even: bool,
    ) -> Response:
        answering = deltas(self._suite, asked, self._settings.timeout_s)
        if stream:
            if even:
                answering = evenly(answering)
            first = await unless_gone(request.receive, self.ending, _next(answering))
            return EventStream(writer, first, answering, self.ending)
        ended = await unless_gone(request.receive, self.ending, _last_deltas(answering))
        return json_response(writer.whole(ended))

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


async def _next(answering: Any) -> ChoiceDelta:
    delta: ChoiceDelta = await anext(answering)
    return delta


async def _last_deltas(answering: Any) -> list[ChoiceDelta]:
    async with aclosing(answering):
        return [delta async for delta in answering if delta.ended]


def _operation_id(route: APIRoute) -> str:
    """Return the name of an operation in generated clients."""
    return route.name


def _route(app: FastAPI, method: str, path: str, handler: Any) -> None:
    """Add a route. The handler reads the body itself, within limits; `openapi` documents it."""
    app.add_api_route(path, handler, methods=[method], response_model=None)


def _note_grammar(request: Request, body: CommonParameters) -> None:
    """Note which parameter of a body a grammar that is refused comes from."""
    if grammar := body.named_grammar():
        request.state.grammar = grammar[0]
    if isinstance(body, ChatCompletionRequest):
        request.state.tools = [tool.function.name for tool in body.offered]


async def _refused(request: Request, error: Exception) -> Response:
    refused = api_error(error, _TANDEM_FIELDS)
    if request.url.path == CHAT_PATH and refused.body["param"] == "prompt":
        refused.body["param"] = "messages"  # which the suite made its prompt of
    if refused.body["param"] in ("grammar", "processors"):
        refused.body["param"] = getattr(request.state, "grammar", None)
        names = getattr(request.state, "tools", ())
        refused.body["message"] = refusal_of_schema(str(refused.body["message"]), names)
    if request.url.path == RESPONSES_PATH and refused.body["param"] is not None:
        name, dot, rest = refused.body["param"].partition(".")
        refused.body["param"] = RESPONSE_NAMES.get(name) or name + dot + rest
    return error_response(refused, request.url.path)


async def _nobody(request: Request, error: Exception) -> Response:
    return Response(status_code=CALLER_LEFT)


async def _no_such_route(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    words = f"{request.method} {request.url.path}: {error.detail}"
    code = error.status_code
    refused = ApiError(code, words, code="unknown_url", headers=error.headers)
    return error_response(refused, request.url.path)
