"""gRPC handlers of the retriever.

Invariants: with role `device` nothing that holds or takes text is answered to another side; what an
ingest answered is durable; reading goes no further ahead than a few documents. Must not import
torch; the index comes from outside.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import grpc

from services.retriever.convert import DEFAULT_COUNT, hit_to_proto, mode_from_proto
from services.retriever.forgetting import Forgetting
from services.retriever.intake import Intake, ingest_all
from services.retriever.read_ahead import ReadAhead
from tandem.core.errors import InvalidArgument, ResourceExhausted, Unavailable
from tandem.index.document_index import DocumentIndex
from tandem.index.errors import FolderReadOnly
from tandem.index.extraction import MAX_DOCUMENT_BYTES
from tandem.rpc.own_side import Network, check_own_side
from tandem.rpc.status import errors_as_status
from tandem.telemetry.logging import get_logger
from tandem.telemetry.metrics import Metrics, Side
from tandem.telemetry.tracing import NO_TRACING, Tracing
from tandem_api.retriever.v1 import retriever_pb2 as pb
from tandem_api.retriever.v1 import retriever_pb2_grpc as pb_grpc

log = get_logger(__name__)

Context = grpc.aio.ServicerContext[Any, Any]
Answer = TypeVar("Answer")

MAX_DELETED = 10_000
SEARCH_THREADS = 4


@dataclass(frozen=True, slots=True)
class RetrieverLimits:
    """What one retriever takes on at once."""

    max_searches: int = 64
    max_ingests: int = 8


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
    ) -> None:
        """`forgetting`: who is to forget documents before they leave."""
        self._index, self._role, self._networks, self._limits = index, role, networks, limits
        self._tracing, self._forgetting = tracing, forgetting
        self._searches = self._ingests = self._others = 0
        self._leaving = asyncio.Event()
        self._writer = ThreadPoolExecutor(1, "retriever-write")
        self._readers = ThreadPoolExecutor(SEARCH_THREADS, "retriever-search")
        self._series = metrics.retriever()
        self._series.documents.set_function(lambda: index.stats().documents)
        self._series.chunks.set_function(lambda: index.stats().chunks)

    def register(self, server: grpc.aio.Server) -> None:
        pb_grpc.add_RetrieverServiceServicer_to_server(self, server)

    @property
    def open_requests(self) -> int:
        return self._searches + self._ingests + self._others

    def going_away(self, grace_s: float) -> None:
        self._leaving.set()

    async def close(self) -> None:
        await asyncio.to_thread(self._close)
        if self._forgetting is not None:
            await self._forgetting.close()

    def _close(self) -> None:
        self._writer.shutdown()
        self._readers.shutdown()
        self._index.close()
        self._tracing.close()

    # The generated stubs know generators only; grpc.aio serves read/write handlers as well.
    async def Ingest(  # type: ignore[override]  # noqa: N802  # the RPC's name
        self, request_iterator: object, context: Context
    ) -> None:
        async with errors_as_status(context):
            self._admit(context)
            if self._ingests >= self._limits.max_ingests:
                raise ResourceExhausted(f"ingests: all {self._limits.max_ingests} are taken")
            self._ingests += 1
            try:
                await self._ingest(context)
            finally:
                self._ingests -= 1

    async def Search(  # noqa: N802  # the RPC's name
        self, request: pb.SearchRequest, context: Context
    ) -> pb.SearchResponse:
        async with errors_as_status(context):
            self._admit(context)
            mode = mode_from_proto(request.mode)
            if self._searches >= self._limits.max_searches:
                raise ResourceExhausted(f"searches: all {self._limits.max_searches} are taken")
            self._searches += 1
            began_s = time.perf_counter()
            headers = context.invocation_metadata()
            named = {"side": self._role, "mode": mode, "rerank": request.rerank}
            try:
                with self._tracing.span("search", headers, **named) as span:
                    hits = await self._on(
                        self._readers,
                        lambda: self._index.search(
                            request.query,
                            request.count or DEFAULT_COUNT,
                            mode,
                            rerank=request.rerank,
                        ),
                    )
                    span.note(documents=len(hits))
            finally:
                self._searches -= 1
            search_s = time.perf_counter() - began_s
            self._series.search.observe(search_s)
            return pb.SearchResponse(hits=map(hit_to_proto, hits), search_s=search_s)
        raise AssertionError("abort ends the call")

    async def Delete(  # noqa: N802  # the RPC's name
        self, request: pb.DeleteRequest, context: Context
    ) -> pb.DeleteResponse:
        async with errors_as_status(context):
            self._admit(context)
            if len(request.ids) > MAX_DELETED:
                raise InvalidArgument("ids", f"{len(request.ids)}; at most {MAX_DELETED} at once")
            with self._counted():
                leaving = self._leaving_hook()
                deleted = await self._on(
                    self._writer, lambda: _removed(self._index, list(request.ids), leaving)
                )
            return pb.DeleteResponse(deleted=deleted)
        raise AssertionError("abort ends the call")

    async def Stats(  # noqa: N802  # the RPC's name
        self, request: pb.StatsRequest, context: Context
    ) -> pb.StatsResponse:
        async with errors_as_status(context):
            self._admit(context)
            stats = self._index.stats()
            return pb.StatsResponse(
                documents=stats.documents,
                texts=stats.texts,
                chunks=stats.chunks,
                log_bytes=stats.log_bytes,
                snapshot_bytes=stats.snapshot_bytes,
                generation=stats.generation,
                dense=stats.dense,
            )
        raise AssertionError("abort ends the call")

    async def Snapshot(  # noqa: N802  # the RPC's name
        self, request: pb.SnapshotRequest, context: Context
    ) -> pb.SnapshotResponse:
        async with errors_as_status(context):
            self._admit(context)
            with self._counted():
                await self._on(self._writer, self._index.snapshot)
            stats = self._index.stats()
            return pb.SnapshotResponse(
                generation=stats.generation, snapshot_bytes=stats.snapshot_bytes
            )
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

    async def _ingest(self, context: Context) -> None:
        """Read ahead while what came before is being stored."""
        ahead, leaving = ReadAhead(), self._leaving_hook()
        reading = asyncio.create_task(_read(context, ahead))
        try:
            while batch := await self._unless_leaving(ahead.batch()):
                answers = await self._on(
                    self._writer, partial(ingest_all, self._index, batch, leaving)
                )
                for answer in answers:
                    self._series.ingested(pb.Outcome.Name(answer.outcome))
                    await context.write(answer)
        finally:
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)

    def _leaving_hook(self) -> Callable[[list[str]], None]:
        """For the writer's thread: have documents forgotten whose texts are about to go. It waits
        for that, so that no other change comes between."""
        forgetting, loop = self._forgetting, asyncio.get_running_loop()
        if forgetting is None:
            return lambda document_ids: None

        def forget(document_ids: list[str]) -> None:
            texts = self._index.chunks_of(document_ids)
            asyncio.run_coroutine_threadsafe(forgetting.forget(texts), loop).result()

        return forget

    async def _unless_leaving(self, work: Coroutine[Any, Any, Answer]) -> Answer:
        """The outcome of `work`, or Unavailable when the retriever stops before."""
        working = asyncio.create_task(work)
        leaving = asyncio.create_task(self._leaving.wait())
        try:
            await asyncio.wait((working, leaving), return_when=asyncio.FIRST_COMPLETED)
            if not working.done():
                raise Unavailable("the retriever is stopping; what was answered is stored")
            return working.result()
        finally:
            for task in (working, leaving):
                task.cancel()
            await asyncio.gather(working, leaving, return_exceptions=True)

    async def _on(self, threads: ThreadPoolExecutor, work: Callable[[], Answer]) -> Answer:
        try:
            return await asyncio.get_running_loop().run_in_executor(threads, work)
        except FolderReadOnly as error:
            raise Unavailable(str(error)) from error

    def _admit(self, context: Context) -> None:
        if self._leaving.is_set():
            raise Unavailable("the retriever is stopping")
        if self._role == "device":
            check_own_side(context.peer(), self._networks)

    @contextmanager
    def _counted(self) -> Iterator[None]:
        self._others += 1
        try:
            yield
        finally:
            self._others -= 1


def _removed(
    index: DocumentIndex, document_ids: list[str], leaving: Callable[[list[str]], None]
) -> list[bool]:
    leaving(document_ids)
    return index.remove(document_ids)


async def _read(context: Context, ahead: ReadAhead) -> None:
    """Whole documents, until the caller has no more or sends what cannot be."""
    intake = Intake()
    try:
        while isinstance(message := await context.read(), pb.IngestRequest):
            if (incoming := intake.take(message)) is not None:
                await ahead.put(incoming)
        if intake.in_the_middle:
            raise InvalidArgument("more", "the stream ended in the middle of a document")
    except Exception as error:  # raised where the answers are written
        await ahead.end(error)
        return
    await ahead.end()
