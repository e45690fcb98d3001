"""gRPC handlers of the retriever.

Invariants: with role `device` nothing that holds or takes text is answered to another side; what an
ingest answered is durable; reading goes no further ahead than a few documents.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any, TypeVar

import grpc

from tandem.core.errors import InvalidArgument, ResourceExhausted, Unavailable, check_count
from tandem.index.document_index import DocumentIndex, Preparation, TextEmbedding
from tandem.index.extraction import MAX_DOCUMENT_BYTES
from tandem.index.extractor import Extractor
from tandem.index.owners import NO_DOCUMENT_QUOTA, DocumentQuota, check_owner
from tandem.net.admission import Admission, Slots
from tandem.net.own_side import Network, check_own_side
from tandem.net.quotas import Quota
from tandem.net.status import errors_as_status
from tandem.net.stream_limits import ServedStream, StreamLimits, served
from tandem.net.tenant import Tenant, paying_tenant
from tandem.net.turns import FairExecutor
from tandem.services.retriever.conversion import (
    DEFAULT_COUNT,
    hit_to_proto,
    listed_to_proto,
    mode_from_proto,
)
from tandem.services.retriever.extraction_pool import ExtractionPool, PoolLimits
from tandem.services.retriever.forgetting import Forgetting
from tandem.services.retriever.ingestion import (
    Incoming,
    Intake,
    Leaving,
    ReadDocument,
    commit,
    letters_of,
    preparation_of,
    read_group,
    runs_of_owners,
    unread_of,
)
from tandem.services.retriever.openai_vocabulary import OpenAIVocabulary, spelt_texts
from tandem.services.retriever.read_ahead import ReadAhead
from tandem.telemetry.logging import get_logger
from tandem.telemetry.metrics import Metrics, Side
from tandem.telemetry.tracing import NO_TRACING, Tracing
from tandem_api.retriever.v1 import retriever_pb2 as pb
from tandem_api.retriever.v1 import retriever_pb2_grpc as pb_grpc

log = get_logger(__name__)

Context = grpc.aio.ServicerContext[Any, Any]
Stream = ServedStream[pb.IngestRequest, pb.IngestResponse]
Answer = TypeVar("Answer")

MAX_DELETED = 10_000
DEFAULT_LISTED = 100
MAX_EMBEDDED = 256
"""Texts of one call."""
MAX_EMBEDDED_CHARACTERS = 2**20
"""Characters of one call's texts: half a minute of one core."""
MAX_EMBEDDED_TOKENS = 2**18
"""Token ids of one call, where it has these."""
SEARCH_THREADS = 4
EMBEDDING_THREADS = 2
"""So that a short document or text need not wait for a step with another tenant's long one."""
EMBEDDING_NICENESS = 10
"""Nobody's answer waits for a document that is embedded, but for its own upload."""
SHORT_LETTERS = 512
"""Of documents that are embedded as the query of a search is: it takes a few milliseconds, and on a
thread that gives way many times as long."""
TEXTS_NICENESS = 5
"""Who asks for vectors of texts waits for them, but answers in flight have more who wait."""
INGESTS = "ingests"
SEARCHES = "searches"
PLACE_WAIT_S = 30.0
"""A call waits no longer than that for its place."""
MOST_WAITING = 1024
"""Work that waits for threads: more than is ever admitted at once."""


@dataclass(frozen=True, slots=True)
class RetrieverLimits:
    """Limits of one retriever."""

    max_searches: int = 64
    max_ingests: int = 8
    max_waiting: int = 64
    """Searches, and as many ingests, that wait for a place."""
    streams: StreamLimits = field(default_factory=StreamLimits)
    quota: Quota = field(default_factory=Quota)
    owner_quota: DocumentQuota = NO_DOCUMENT_QUOTA
    """Of an owner whose key says nothing else; the operator has none."""
    extraction: PoolLimits = field(default_factory=PoolLimits)


class RetrieverServicer(pb_grpc.RetrieverServiceServicer):
    """Serves one folder of documents."""

    full_name = pb.DESCRIPTOR.services_by_name["RetrieverService"].full_name

    def __init__(
        self,
        index: DocumentIndex,
        role: Side,
        networks: Sequence[Network],
        limits: RetrieverLimits,
        metrics: Metrics,
        tracing: Tracing = NO_TRACING,
        forgetting: Forgetting | None = None,
        extractor: Extractor | None = None,
        openai_vocabulary: OpenAIVocabulary | None = None,
    ) -> None:
        """Set up the service. `forgetting`: the decoders that forget documents before these are
        deleted. `openai_vocabulary`: for token ids that are not the embedding model's."""
        self._index = index
        self._role = role
        self._networks = networks
        self._limits = limits
        self._tracing = tracing
        self._forgetting = forgetting
        self._admission = Admission({}, quota=limits.quota, series=metrics.holders())
        # A large document is embedded for minutes, and keeps its place while another tenant comes.
        of_one = max(1, limits.max_ingests // 2)
        self._slots = {
            INGESTS: Slots(
                self._admission, INGESTS, limits.max_ingests, limits.max_waiting, of_one
            ),
            SEARCHES: Slots(self._admission, SEARCHES, limits.max_searches, limits.max_waiting),
        }
        self._leaving = asyncio.Event()
        self._writer = FairExecutor("retriever-write", 1, waiting=MOST_WAITING)
        processes = range(limits.extraction.processes)
        extractors = [extractor] if extractor else [Extractor() for _ in processes]
        self._extraction = ExtractionPool(extractors, limits.extraction)
        self._embedding = FairExecutor(
            "retriever-embed", EMBEDDING_THREADS, MOST_WAITING, niceness=EMBEDDING_NICENESS
        )
        self._texts = FairExecutor(
            "retriever-texts", EMBEDDING_THREADS, MOST_WAITING, niceness=TEXTS_NICENESS
        )
        self._openai_vocabulary = openai_vocabulary or OpenAIVocabulary()
        self._readers = FairExecutor("retriever-search", SEARCH_THREADS, waiting=MOST_WAITING)
        self._series = metrics.retriever()
        self._series.documents.set_function(lambda: index.stats().documents)
        self._series.chunks.set_function(lambda: index.stats().chunks)

    def register(self, server: grpc.aio.Server) -> None:
        pb_grpc.add_RetrieverServiceServicer_to_server(self, server)

    @property
    def open_requests(self) -> int:
        return sum(slots.running + slots.waiting for slots in self._slots.values())

    def going_away(self, grace_s: float) -> None:
        self._leaving.set()

    async def close(self) -> None:
        await asyncio.to_thread(self._close)
        if self._forgetting is not None:
            await self._forgetting.close()

    def _close(self) -> None:
        self._extraction.close()
        self._embedding.close()
        self._texts.close()
        self._writer.close()
        self._readers.close()
        self._index.close()
        self._tracing.close()

    # The generated stubs know generators only; grpc.aio serves read/write handlers as well.
    async def Ingest(  # type: ignore[override]  # noqa: N802  # the RPC's name
        self, request_iterator: object, context: Context
    ) -> None:
        async with served(context, self._limits.streams) as stream:
            self._admit(context)
            first = await stream.read(first=True)
            tenant = _tenant_of(first.owner if isinstance(first, pb.IngestRequest) else "")
            async with self._place(INGESTS, tenant):
                await self._ingest(first, stream)

    async def Search(  # type: ignore[override]  # noqa: N802  # the RPC's name
        self, request_iterator: object, context: Context
    ) -> None:
        async with served(context, self._limits.streams) as stream:
            self._admit(context)
            request = await stream.read(first=True)
            while isinstance(request, pb.SearchRequest):
                await stream.write(await self._search(request, context.invocation_metadata()))
                request = await self._unless_leaving(stream.read())

    async def Embed(  # noqa: N802  # the RPC's name
        self, request: pb.EmbedRequest, context: Context
    ) -> pb.EmbedResponse:
        async with errors_as_status(context):
            self._admit(context)
            texts: Sequence[str | Sequence[int]] = _texts_of(request)
            check_owner(tenant := request.tenant)
            async with self._place(SEARCHES, _tenant_of(tenant)):
                if token_ids := [each for each in texts if not isinstance(each, str)]:
                    texts = await self._with_openai_texts(token_ids, tenant)
                begin = partial(self._begun, texts, request.truncate_tokens)
                embedding, goes_on = await self._on(self._texts, begin, tenant)
                while goes_on:
                    goes_on = await self._on(self._texts, embedding.step, tenant)
            raw = embedding.vectors.astype("<f4", copy=False).tobytes()
            return pb.EmbedResponse(vectors=raw, tokens=embedding.tokens, windows=embedding.windows)
        raise AssertionError("abort ends the call")

    async def Delete(  # noqa: N802  # the RPC's name
        self, request: pb.DeleteRequest, context: Context
    ) -> pb.DeleteResponse:
        async with errors_as_status(context):
            self._admit(context)
            if len(request.ids) > MAX_DELETED:
                raise InvalidArgument("ids", f"{len(request.ids)}; at most {MAX_DELETED} at once")
            remove = partial(
                _remove,
                self._index,
                list(request.ids),
                owner=request.owner,
                leaving=self._leaving_hook(),
            )
            async with self._place(INGESTS, _tenant_of(request.owner)):
                return pb.DeleteResponse(
                    deleted=await self._on(self._writer, remove, request.owner)
                )
        raise AssertionError("abort ends the call")

    async def List(  # noqa: N802  # the RPC's name
        self, request: pb.ListRequest, context: Context
    ) -> pb.ListResponse:
        async with errors_as_status(context):
            self._admit(context)
            count = request.count or DEFAULT_LISTED
            listing = partial(self._index.listed, request.owner, request.after, count)
            owner = request.owner
            async with self._place(SEARCHES, _tenant_of(owner)):
                listed = await self._on(self._readers, listing, owner)
                total = await self._on(self._readers, partial(self._index.usage, owner), owner)
            asked_quota = DocumentQuota(request.max_documents, request.max_bytes)
            quota = (
                asked_quota.over(self._limits.owner_quota) if request.owner else NO_DOCUMENT_QUOTA
            )
            return pb.ListResponse(
                documents=map(listed_to_proto, listed),
                total_documents=total.documents,
                total_bytes=total.bytes,
                max_documents=quota.documents,
                max_bytes=quota.bytes,
            )
        raise AssertionError("abort ends the call")

    async def Stats(  # noqa: N802  # the RPC's name
        self, request: pb.StatsRequest, context: Context
    ) -> pb.StatsResponse:
        async with errors_as_status(context):
            self._admit(context)
            stats = await self._on(self._readers, self._index.stats)
            return pb.StatsResponse(**asdict(stats))  # the same fields
        raise AssertionError("abort ends the call")

    async def Snapshot(  # noqa: N802  # the RPC's name
        self, request: pb.SnapshotRequest, context: Context
    ) -> pb.SnapshotResponse:
        async with errors_as_status(context):
            self._admit(context)
            async with self._place(INGESTS, _tenant_of()):
                await self._on(self._writer, self._index.compact)
            now = await self._on(self._readers, self._index.stats)
            return pb.SnapshotResponse(generation=now.generation, snapshot_bytes=now.snapshot_bytes)
        raise AssertionError("abort ends the call")

    async def Describe(  # noqa: N802  # the RPC's name
        self, request: pb.DescribeRequest, context: Context
    ) -> pb.DescribeResponse:
        manifest = self._index.manifest
        return pb.DescribeResponse(
            role=self._role,
            embedding=manifest.embedding,
            dimension=manifest.dimension,
            chunk_tokens=manifest.max_tokens,
            overlap_tokens=manifest.overlap_tokens,
            reranker=self._index.reranker_name,
            max_document_bytes=MAX_DOCUMENT_BYTES,
        )

    def _begun(
        self, texts: Sequence[str | Sequence[int]], most_tokens: int
    ) -> tuple[TextEmbedding, bool]:
        """Tokenise texts and take the first step with them: short ones have one turn, not two."""
        embedding = self._index.text_embedding(texts, most_tokens)
        return embedding, embedding.step()

    async def _with_openai_texts(
        self, inputs: Sequence[Sequence[int]], tenant: str
    ) -> Sequence[str | Sequence[int]]:
        """Return the token ids with texts in place of those that are not the embedding model's, as
        OpenAI's vocabulary has them; as they are without that."""
        places = await self._on(self._texts, partial(self._index.foreign_token_ids, inputs), tenant)
        vocabulary = await self._openai_vocabulary.loaded() if places else None
        if vocabulary is None:
            return inputs
        read = partial(spelt_texts, vocabulary, inputs, places, MAX_EMBEDDED_CHARACTERS)
        return await self._on(self._texts, read, tenant)

    async def _search(self, request: pb.SearchRequest, headers: Any) -> pb.SearchResponse:
        """Search, with a place among the searches for this one alone: a stream that waits has
        none."""
        mode = mode_from_proto(request.mode)
        count = request.count or DEFAULT_COUNT
        rerank = request.rerank
        search = partial(
            self._index.search, request.query, count, mode, rerank=rerank, tenant=request.tenant
        )
        named = {"side": self._role, "mode": mode, "rerank": rerank}
        async with self._place(SEARCHES, _tenant_of(request.tenant)):
            began_s = time.perf_counter()
            with self._tracing.span("search", headers, **named) as span:
                hits = await self._on(self._readers, search, request.tenant)
                span.note(documents=len(hits))
            search_s = time.perf_counter() - began_s
        self._series.search.observe(search_s)
        protos = map(hit_to_proto, hits)
        return pb.SearchResponse(hits=protos, search_s=search_s, number=request.number)

    async def _ingest(self, first: Any, stream: Stream) -> None:
        ahead = ReadAhead()
        stored = 0
        reading = asyncio.create_task(_read(first, stream, ahead))
        try:
            while batch := await self._unless_leaving(ahead.batch()):
                for owner, run in runs_of_owners(batch):
                    async for answer in self._stored(owner, run):
                        self._series.ingested(pb.Outcome.Name(answer.outcome))
                        stored += answer.outcome != pb.OUTCOME_REFUSED
                        await stream.write(answer)
        except ResourceExhausted as error:
            # The error itself goes on, since it may say when to try again.
            error.args = (f"{error}; {stored} documents of this stream are stored",)
            raise
        finally:
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)

    async def _stored(
        self, owner: str, run: Sequence[Incoming]
    ) -> AsyncIterator[pb.IngestResponse]:
        """Read, embed and store documents of one owner, each in turn with others: whoever writes
        waits for who writes now, and a long document takes many seconds to embed."""
        # Tenants over HTTP all come by the aggregator's key: their documents say whose.
        tenant = _tenant_of(owner)
        read = partial(read_group, unread_of(run))
        quota = self._limits.owner_quota
        leaving = self._leaving_hook()
        done = 0
        while done < len(run):
            group = await self._unless_leaving(self._extracted(tenant, read))
            done += sum(document.last for document in group)
            begin = partial(_embedding_of, self._index, group, quota)
            threads = self._readers if letters_of(group) <= SHORT_LETTERS else self._embedding
            preparation, goes_on = await self._on(threads, begin, owner)
            while goes_on:
                goes_on = await self._on(threads, preparation.step, owner)
            adding = partial(
                commit,
                self._index,
                group,
                leaving,
                owner_quota=quota,
                prepared=preparation.contents,
            )
            for answer in await self._on(self._writer, adding, owner):
                yield answer

    async def _extracted(
        self, tenant: Tenant, read: Callable[[Extractor], tuple[Answer, float]]
    ) -> Answer:
        with self._admission.refusals_counted(tenant):
            return await self._extraction.run(tenant, read)

    def _leaving_hook(self) -> Leaving:
        """Return a hook for the writer's thread: it waits until decoders forgot the texts that are
        about to go."""
        forgetting = self._forgetting
        loop = asyncio.get_running_loop()
        if forgetting is None:
            return lambda document_ids, owner: None

        def forget(document_ids: list[str], owner: str) -> None:
            texts = self._index.chunks_of(document_ids, owner)
            asyncio.run_coroutine_threadsafe(forgetting.forget(texts, owner), loop).result()

        return forget

    async def _unless_leaving(self, work: Coroutine[Any, Any, Answer]) -> Answer:
        """Return the outcome of `work`. Raises Unavailable when the retriever stops before."""
        working = asyncio.create_task(work)
        leaving = asyncio.create_task(self._leaving.wait())
        try:
            await asyncio.wait((working, leaving), return_when=asyncio.FIRST_COMPLETED)
            if not working.done():
                raise Unavailable("the retriever is stopping; acknowledged documents are stored")
            return working.result()
        finally:
            working.cancel()
            leaving.cancel()
            await asyncio.gather(working, leaving, return_exceptions=True)

    async def _on(
        self, threads: FairExecutor, work: Callable[[], Answer], owner: str = ""
    ) -> Answer:
        """Run `work` on these threads, in the caller's turn among others who have work for them.
        `owner`: the tenant of the caller's that it is for."""
        return await asyncio.wrap_future(threads.submit(_tenant_of(owner), work))

    def _admit(self, context: Context) -> None:
        if self._leaving.is_set():
            raise Unavailable("the retriever is stopping")
        if self._role == "device":
            check_own_side(context.peer(), self._networks)

    def _place(self, place: str, tenant: Tenant) -> AbstractAsyncContextManager[object]:
        """Hold a place for a call, once there is one. Raises as `Slots.slot`."""
        return self._slots[place].slot(PLACE_WAIT_S, tenant=tenant)


def _tenant_of(owner: str = "") -> Tenant:
    """Return the current caller's tenant whose documents a call is about."""
    return paying_tenant(owner.encode())


def _texts_of(request: pb.EmbedRequest) -> list[str] | list[tuple[int, ...]]:
    """Return the request's texts, or lists of token ids. Raises InvalidArgument for more than one
    call may have."""
    if request.token_ids and request.texts:
        raise InvalidArgument("input", "has texts and token ids")
    check_count(len(request.texts), MAX_EMBEDDED, "input")
    check_count(len(request.token_ids), MAX_EMBEDDED, "input")
    if request.token_ids:
        check_count(sum(len(each.ids) for each in request.token_ids), MAX_EMBEDDED_TOKENS, "input")
        return [tuple(each.ids) for each in request.token_ids]
    if (size := sum(map(len, request.texts))) > MAX_EMBEDDED_CHARACTERS:
        why = f"{size} characters in all; at most {MAX_EMBEDDED_CHARACTERS}"
        raise InvalidArgument("input", why)
    return list(request.texts)


def _embedding_of(
    index: DocumentIndex, group: Sequence[ReadDocument], quota: DocumentQuota
) -> tuple[Preparation, bool]:
    """Take the first step of a group: a short one has one turn, not two."""
    preparation = preparation_of(index, group, quota)
    return preparation, preparation.step()


def _remove(
    index: DocumentIndex, document_ids: list[str], *, owner: str, leaving: Leaving
) -> list[bool]:
    check_owner(owner)
    leaving(document_ids, owner)
    return index.remove(document_ids, owner)


async def _read(message: Any, stream: Stream, ahead: ReadAhead) -> None:
    """Read whole documents into `ahead`, until the caller has no more or sends something
    invalid."""
    intake = Intake()
    try:
        while isinstance(message, pb.IngestRequest):
            if (incoming := intake.take(message)) is not None:
                await ahead.put(incoming)
            message = await stream.read()
        if intake.in_the_middle:
            raise InvalidArgument("more", "the stream ended in the middle of a document")
        await ahead.end()
    except Exception as error:  # raised where the answers are written
        await ahead.end(error)
