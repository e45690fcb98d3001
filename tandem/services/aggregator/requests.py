"""Requests on their way through one drafter, whichever door they came in by. Invariant: every
request ends in exactly one status, counted once; all doors share the slots; times are of this
process's own clock."""

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import ExitStack, aclosing, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import grpc

from tandem.core.errors import InvalidArgument, Unavailable
from tandem.core.prompt import Prompt
from tandem.core.sharing import parse_sharing
from tandem.generation.client import Generated
from tandem.generation.conversation import answers_to
from tandem.generation.request import (
    DEFAULT_PRESET,
    GenerationRequest,
    request_from_proto,
    request_to_proto,
)
from tandem.net.access import ClientAccess
from tandem.net.admission import Admission, Slots, quota_of
from tandem.net.connection import Connection
from tandem.net.retriever_client import Upload
from tandem.net.scopes import current_caller
from tandem.net.status import Rejected, details_of, status_of, upstream_rejection
from tandem.net.tenant import calling_tenant, paying_tenant, tenant_ids
from tandem.services.aggregator.config import AggregatorSettings
from tandem.services.aggregator.request_series import RequestSeries, RequestTiming
from tandem.services.aggregator.retrieval import (
    EMBED_TIMEOUT_S,
    INGEST_TIMEOUT_S,
    SEARCH_TIMEOUT_S,
    Retrieval,
)
from tandem.services.aggregator.side_resources import SideResources
from tandem.settings import variable_of
from tandem.specdec.presets import PRESETS
from tandem.telemetry.logging import get_logger, log_context
from tandem.telemetry.metric import OTHER
from tandem.telemetry.metrics import Metrics
from tandem.telemetry.tracing import NO_TRACING, Headers, Span, Tracing
from tandem.two_sided.interface import AGGREGATION_PRESETS, DeviceAnswers, DeviceRequest
from tandem.wire.common_codec import prompt_to_proto
from tandem_api.common.v1 import generation_pb2 as pb
from tandem_api.drafter.v1.drafter_pb2 import TokenizeRequest, TokenizeResponse
from tandem_api.drafter.v1.drafter_pb2_grpc import DrafterServiceStub
from tandem_api.retriever.v1.retriever_pb2 import EmbedResponse, ListRequest, ListResponse

log = get_logger(__name__)

DESCRIBE_TIMEOUT_S = 5.0
TOKENIZE_TIMEOUT_S = 30.0
CLOSE_S = 1.0


@dataclass(frozen=True, slots=True)
class _AdmittedRequest:
    """A request that has a slot, and until `ends_s` to be answered. `start`: the message that it
    came as; None where it was made here. `owner`: see `Requests.answers`."""

    request: GenerationRequest
    start: pb.GenerateRequest | None
    ends_s: float
    cancel: Callable[[], Awaitable[None]] | None
    timing: RequestTiming
    span: Span
    owner: str


class DocumentCalls:
    """A tenant's calls about its documents, each in a slot. They raise ResourceExhausted, and what
    `Retrieval` raises."""

    def __init__(self, retrieval: Retrieval, slots: Slots) -> None:
        self._retrieval = retrieval
        self._slots = slots

    async def add(self, upload: Upload) -> None:
        """Store a document."""
        async with self._slots.slot(INGEST_TIMEOUT_S):
            await self._retrieval.add(upload)

    async def delete(self, name: str, owner: str) -> bool:
        """Delete a document; whether the owner had it."""
        async with self._slots.slot(INGEST_TIMEOUT_S):
            return await self._retrieval.delete(name, owner)

    async def listed(self, request: ListRequest) -> ListResponse:
        """List some of an owner's documents."""
        async with self._slots.slot(SEARCH_TIMEOUT_S):
            return await self._retrieval.listed(request)


class Requests:
    """Serves requests through one drafter; used on the event loop only."""

    def __init__(
        self,
        settings: AggregatorSettings,
        metrics: Metrics,
        access: ClientAccess,
        resources: SideResources,
        tracing: Tracing = NO_TRACING,
    ) -> None:
        self._settings = settings
        self._series = RequestSeries(metrics, self.describe)
        self._tracing = tracing
        self._tenants = tenant_ids(access)
        self._sharing = parse_sharing(settings.share_prefixes)
        admission = Admission({}, quota=quota_of(settings), series=metrics.holders())
        running, waiting = settings.max_running, settings.max_waiting
        self._slots = Slots(admission, "request slots", running, waiting)
        self._calls = Slots(admission, "call slots", running + waiting, waiting)
        """Of what takes no answer: tokenising, embedding, documents."""
        self._resources = resources
        self._connection = Connection(settings.drafter, settings.max_message_bytes, access)
        self._two_sides = DeviceAnswers(
            decoder=resources.decoder,
            cloud=resources.cloud,
            profiling=resources.profiling,
            metrics=metrics,
            target_name=lambda: self._series.target_name,
            give_up_after_s=settings.give_up_after_s,
        )
        self.leaving = False
        self.left = asyncio.Event()
        self.ending = asyncio.Event()
        self._idle = asyncio.Event()

    @property
    def open_requests(self) -> int:
        return sum(slots.running + slots.waiting for slots in (self._slots, self._calls))

    def going_away(self) -> None:
        """Let requests under way run to their end, refuse new ones, and set `left`."""
        self.leaving = True
        self.left.set()

    async def close(self) -> None:
        """Close all connections, but set `ending` first, and leave parts of this process that still
        wait for answers, such as its HTTP server, `CLOSE_S` to tell their callers."""
        self.ending.set()
        self._idle.clear()
        if self.open_requests:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._idle.wait(), CLOSE_S)
        await self._series.close()
        await self._two_sides.close()
        await self._connection.close()
        await asyncio.to_thread(self._tracing.close)

    async def describe(self, timeout_s: float = DESCRIBE_TIMEOUT_S) -> pb.DescribeResponse:
        """Describe the suite. Raises Rejected with the status."""
        embedding = asyncio.create_task(self._resources.retrieval.embedding())
        try:
            async with self._drafter() as drafter:
                described: pb.DescribeResponse = await drafter.Describe(
                    pb.DescribeRequest(), timeout=timeout_s
                )
            described.embedding, described.embedding_dimension = await embedding
        finally:
            embedding.cancel()
        described.presets.extend(AGGREGATION_PRESETS)
        self._series.learned(described.target.model_name)
        return described

    async def tokenize(
        self,
        prompt: Prompt,
        spell: bool = False,
        *,
        tools: str = "",
        chat_template_kwargs: str = "",
    ) -> TokenizeResponse:
        """Tokenize with the draft model's tokenizer; `tools` and `chat_template_kwargs` are as in
        `GenerationRequest`. Raises ResourceExhausted, Unavailable or Rejected."""
        asked = TokenizeRequest(
            spell=spell,
            tenant=self._tenant_id(b""),
            tools=tools,
            chat_template_kwargs=chat_template_kwargs,
        )
        prompt_to_proto(asked, prompt)
        async with self._calls.slot(TOKENIZE_TIMEOUT_S), self._drafter() as drafter:
            answer: TokenizeResponse = await drafter.Tokenize(asked, timeout=TOKENIZE_TIMEOUT_S)
        return answer

    @asynccontextmanager
    async def _drafter(self) -> AsyncIterator[Any]:
        """Yield the drafter to call; a failed call raises Rejected."""
        try:
            async with self._connection.channel() as channel:
                yield DrafterServiceStub(channel)
        except grpc.aio.AioRpcError as error:
            raise upstream_rejection(error.code(), details_of(error)) from None

    async def embed(
        self, texts: Sequence[str] | Sequence[Sequence[int]], most_tokens: int = 0
    ) -> EmbedResponse:
        """Return vectors from the retriever's model. Raises ResourceExhausted, FailedPrecondition
        or Rejected."""
        async with self._calls.slot(EMBED_TIMEOUT_S) as reservation:
            answer = await self._resources.retrieval.embed(
                texts, most_tokens, tenant=current_caller().holder
            )
            reservation.tokens = sum(answer.tokens)
        return answer

    @property
    def documents(self) -> DocumentCalls:
        """The device's."""
        return DocumentCalls(self._resources.retrieval, self._calls)

    async def stream(
        self, request: GenerationRequest, timeout_s: float
    ) -> AsyncGenerator[Generated]:
        """Stream like `AggregatorClient.stream`, within this process: the growing result, after
        each message. For callers over HTTP, whose documents are those of the key's holder. Raises
        ResourceExhausted, Unavailable or Rejected."""
        began_s = time.perf_counter()
        result = Generated()
        owner = current_caller().holder
        async with aclosing(self.answers(request, timeout_s, owner=owner)) as answers:
            async for answer in answers:
                result.observe(answer, time.perf_counter() - began_s)
                yield result

    async def answers(
        self,
        asked: GenerationRequest | pb.GenerateRequest,
        timeout_s: float | None = None,
        cancel: Callable[[], Awaitable[None]] | None = None,
        headers: Headers | None = None,
        owner: str = "",
    ) -> AsyncGenerator[pb.GenerateResponse]:
        """Yield the answer's messages, once there is a slot; closing the generator cancels the
        request. A request was validated where it was made; a message is here, and goes to the
        drafter as it is. A `cancel` that returns ends the answer with a summary; what it raises
        ends the request. `headers`, the caller's, may name the trace that the request is part
        of. `owner`: whose documents may be used beside the operator's and shared ones. Holders
        of keys for gRPC are none: they come from another file, in which a name may stand for
        somebody else."""
        arrived_s = time.monotonic()
        limit_s = self._settings.request_timeout_s
        ends_s = arrived_s + min(timeout_s or limit_s, limit_s)
        if self.leaving:
            raise Unavailable("the aggregator is stopping")
        self._series.learn()
        label = _label(asked if isinstance(asked, GenerationRequest) else asked.start)
        series = self._series.now(label)
        timing = RequestTiming(lambda: self._series.now(label), arrived_s)
        with self._counted(label, ends_s):
            start = None
            if isinstance(asked, GenerationRequest):
                request = asked
            else:
                start = asked
                request = request_from_proto(asked.start)
            payer = paying_tenant(request.payer or request.tenant)
            request = self._on_behalf(request)
            if start is not None:
                start.start.tenant = request.tenant
                start.start.payer = request.payer
            waits = series.requests_waiting.track_inprogress()
            with self._tracing.span("request", headers, preset=label) as span:
                async with self._slots.slot(
                    ends_s - arrived_s, tenant=payer, priority=request.priority, waits=waits
                ) as reservation:
                    span.record("wait for a slot", timing.elapsed_s())
                    with series.requests_running.track_inprogress():
                        relay = self._relayed(
                            _AdmittedRequest(
                                request,
                                start=start,
                                ends_s=ends_s,
                                cancel=cancel,
                                timing=timing,
                                span=span,
                                owner=owner,
                            )
                        )
                        async with aclosing(relay) as answers:
                            async for answer in answers:
                                timing.observe(answer)
                                reservation.tokens = timing.tokens
                                yield answer
                        span.note(tokens=timing.tokens)

    def _on_behalf(self, request: GenerationRequest) -> GenerationRequest:
        """Return the request with the ids of its tenant from here on; with one of who pays for it
        too, where the tenant shares what is kept."""
        payer = paying_tenant(request.payer or request.tenant)
        tenant = calling_tenant(request.tenant, self._sharing)
        shares = bool(request.payer) or tenant.caller != payer.caller
        return replace(
            request,
            tenant=self._tenants.id_of(tenant),
            payer=self._tenants.id_of(payer) if shares else b"",
        )

    def _tenant_id(self, given_id: bytes) -> bytes:
        """Return the id for the caller from here on, with any id that it sent: a caller separates
        its own tenants by one, and is never taken for another by it."""
        return self._tenants.id_of(calling_tenant(given_id, self._sharing))

    @contextmanager
    def _counted(self, label: str, ends_s: float) -> Iterator[None]:
        """Count the request that runs in this context by its status, and raise the error that its
        caller gets."""
        status = "CANCELLED"
        try:
            yield
            status = "OK"
        except Exception as error:
            code = status_of(error)[0]
            late = code is grpc.StatusCode.UNAVAILABLE or isinstance(error, TimeoutError)
            if late and time.monotonic() >= ends_s:
                # Whichever end of a call first noticed that its time was over.
                code = grpc.StatusCode.DEADLINE_EXCEEDED
                error = Rejected(code, "no complete answer in the time that the request had")
            status = code.name
            raise error
        finally:
            self._series.now(label).request_ended(status)
            if not self.open_requests:
                self._idle.set()

    def _relayed(self, admitted: _AdmittedRequest) -> AsyncGenerator[pb.GenerateResponse]:
        """Return the answer's messages: from both sides if the request asks for that, else from the
        drafter."""
        left_s = max(0.0, admitted.ends_s - time.monotonic())
        if admitted.request.from_two_sides:
            asked = self._device_request(admitted, left_s)
            return self._two_sides.answer(asked, admitted.cancel)
        return self._relay(admitted, left_s)

    def _device_request(self, admitted: _AdmittedRequest, timeout_s: float) -> DeviceRequest:
        """Return the request for the device's part of an answer from both sides. Raises
        InvalidArgument."""
        request = admitted.request
        preset = request.composed_aggregation()
        if self._resources.cloud is None and preset.needs_cloud:
            why = f"{preset.name} needs documents in the cloud, but this suite has none"
            why += f"; use 'tandem up --rag', or set {variable_of('cloud')} to an aggregator"
            raise InvalidArgument("preset", why)
        return DeviceRequest(
            prompt=request.prompt,
            preset=preset,
            query=request.query or _text_of(request),
            documents=request.documents or self._settings.documents,
            search=partial(self._resources.retrieval.search, owner=admitted.owner),
            params=request.params,
            stop=request.stop,
            token_texts=request.token_texts,
            lost_cloud=request.lost_cloud,
            timeout_s=timeout_s,
            headers=admitted.span.headers(),
            tenant=request.tenant,
            chat_template_kwargs=request.chat_template_kwargs,
        )

    async def _relay(
        self, admitted: _AdmittedRequest, timeout_s: float
    ) -> AsyncGenerator[pb.GenerateResponse]:
        """Pass the request to the drafter and its answer back; leaving cancels both."""
        start = admitted.start or pb.GenerateRequest(start=request_to_proto(admitted.request))
        cancel = admitted.cancel
        timing = admitted.timing
        span = admitted.span
        async with self._connection.channel() as channel:
            call = DrafterServiceStub(channel).Generate(timeout=timeout_s, metadata=span.headers())
            cancelling = None if cancel is None else asyncio.create_task(_pass_cancel(cancel, call))
            with ExitStack() as naming:
                try:
                    async for answer in answers_to(call, start, self.describe):
                        if answer.HasField("started"):
                            session = answer.started.session
                            preset = answer.started.preset
                            naming.enter_context(log_context(session=session, preset=preset))
                            log.info("request started")
                        yield answer
                except Rejected as error:
                    again_s = error.retry_after_s
                    raise upstream_rejection(error.code, str(error), again_s) from None
                finally:
                    call.cancel()
                    if cancelling is not None:
                        cancelling.cancel()
                        await _raise_fault(cancelling)
                    span.note(tokens=timing.tokens)
                    log.info("request ended", tokens=timing.tokens, duration_s=timing.elapsed_s())


def _label(asked: GenerationRequest | pb.Generation) -> str:
    """Return the preset that a request names, if it is one of ours, and otherwise `OTHER`."""
    preset = asked.preset or DEFAULT_PRESET
    return preset if preset in PRESETS or preset in AGGREGATION_PRESETS else OTHER


def _text_of(request: GenerationRequest) -> str:
    """Return the default search query: the prompt, or the last turn."""
    if isinstance(request.prompt, str):
        return request.prompt
    last = request.prompt[-1] if request.prompt else ""
    if isinstance(last, int | str):
        raise InvalidArgument("query", "is required if the prompt is token ids")
    return last.content


async def _pass_cancel(cancel: Callable[[], Awaitable[None]], call: Any) -> None:
    try:
        await cancel()
    except Exception:
        call.cancel()
        raise
    with suppress(asyncio.InvalidStateError, grpc.aio.AioRpcError):  # it ended meanwhile
        await call.write(pb.GenerateRequest(cancel=pb.Cancel()))


async def _raise_fault(cancelling: asyncio.Task[None]) -> None:
    """Raise the error by which the caller ended the request, if there is one."""
    (error,) = await asyncio.gather(cancelling, return_exceptions=True)
    if isinstance(error, Exception):
        raise error
