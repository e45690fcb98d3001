"""The retriever over real gRPC: acknowledgements, refusals, limits, whose callers, drain."""

from __future__ import annotations

import asyncio
import resource
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any, cast

import grpc
import pytest

from tandem.index.extraction import MAX_DOCUMENT_BYTES, Format
from tandem.net.connection import Connection
from tandem.net.own_side import check_own_side, is_loopback, parse_networks
from tandem.net.retriever_client import Upload
from tandem.net.status import Rejected
from tandem.services.aggregator.retrieval import Retrieval
from tandem.services.retriever.config import RetrieverSettings
from tandem.services.retriever.ingestion import Incoming
from tandem.services.retriever.read_ahead import MAX_BYTES, ReadAhead
from tandem.services.retriever.servicer import RetrieverLimits
from tandem.settings import SettingsError, load_settings
from tandem_api.retriever.v1 import retriever_pb2 as pb
from tandem_api.retriever.v1 import retriever_pb2_grpc as pb_grpc
from tests.services.scripted_suite import health_of, sample
from tests.services.two_sided_suite import outcomes, raw_ingest, retriever, status_of

TEXT = b"The quick brown fox jumps over the lazy dog."


def message(number: int, content: bytes, **fields: Any) -> pb.IngestRequest:
    known = {"id": f"d{number}", "format": pb.FORMAT_TEXT, **fields}
    return pb.IngestRequest(number=number, content=content, **known)


class CallThatIsOver:
    """As grpc.aio's, where the retriever refused before the first message had left."""

    async def write(self, message: object) -> None:
        raise asyncio.InvalidStateError

    async def __aiter__(self) -> AsyncIterator[object]:
        code, none = grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.aio.Metadata()
        raise grpc.aio.AioRpcError(code, none, none, details="all 8 ingests are in use")
        yield


class OneCall:
    """A connection, and its channel, on which each call is this one."""

    @asynccontextmanager
    async def channel(self) -> AsyncIterator[OneCall]:
        yield self

    def stream_stream(self, *method: object, **how: object) -> Callable[..., CallThatIsOver]:
        return lambda timeout: CallThatIsOver()

    unary_unary = stream_stream


async def test_a_document_that_is_refused_at_once_is_refused_with_that_status() -> None:
    retrieval = Retrieval(cast(Connection, OneCall()))
    with pytest.raises(Rejected, match="all 8 ingests are in use") as refused:
        await retrieval.add(Upload("long", b"x" * 2**21))
    assert refused.value.code is grpc.StatusCode.RESOURCE_EXHAUSTED


async def test_documents_are_answered_one_by_one_and_found_after_a_restart(tmp_path: Path) -> None:
    lines = b'{"id": "x", "text": "xylophone"}\nnot json\n{"text": "zebra"}'
    async with retriever(tmp_path) as service:
        answers = await service.ingest(
            Upload("fox", TEXT, title="Fox"),
            Upload("lines", lines, "jsonl"),
            Upload("junk", b"\x00\xff", "pdf"),
            Upload("page", b"<p>unicorn", "html"),
            Upload("fox", TEXT, title="Fox"),
            Upload("nothing", b"", "jsonl"),
        )
        assert outcomes(answers) == [
            (0, "fox", "ADDED", True),
            (1, "lines#x", "ADDED", False),
            (1, "lines#2", "REFUSED", False),
            (1, "lines#3", "ADDED", True),
            (2, "junk", "REFUSED", True),
            (3, "page", "ADDED", True),
            (4, "fox", "UNCHANGED", True),
            (5, "", "UNCHANGED", True),
        ]
        assert answers[4].reason.startswith("content: is not a readable PDF")
        added = partial(sample, service.metrics, outcome="OUTCOME_ADDED")
        assert added("tandem_ingested_documents_total") == 4
    async with retriever(tmp_path) as service:
        found = await service.client.search("brown fox", 3)
        (hit,) = found.hits
        assert (hit.document_id, hit.title, hit.text) == ("fox", "Fox", TEXT.decode())
        assert (hit.lexical_rank, hit.HasField("similarity")) == (1, False)
        assert await service.client.delete(["fox", "lines#x", "none"]) == [True, True, False]
        assert not (await service.client.search("fox xylophone")).hits
        stats = await service.client.stats()
        assert (stats.documents, stats.dense, stats.log_bytes) == (2, "none", 0)
        generation = stats.generation
        compacted = await service.client.snapshot()
        assert compacted.generation == generation
        assert compacted.snapshot_bytes <= stats.snapshot_bytes
        described = await service.client.describe()
        assert (described.role, described.embedding, described.dimension) == (
            "device",
            "lexical",
            0,
        )
        assert await health_of(service.running.target) == "SERVING"


async def test_a_long_document_comes_in_parts_and_one_too_long_is_refused_alone(
    tmp_path: Path,
) -> None:
    async with retriever(tmp_path) as service:
        long = TEXT.replace(b".", b" ") * (2**20 // len(TEXT) + 9)
        answers = await service.ingest(
            Upload("huge", bytes(50 * 2**20)),
            Upload("long", long),
            Upload("fox", TEXT),
        )
        assert outcomes(answers) == [
            (0, "huge", "REFUSED", True),
            (1, "long", "ADDED", True),
            (2, "fox", "ADDED", True),
        ]
        assert f"the maximum is {MAX_DOCUMENT_BYTES}" in answers[0].reason


async def test_messages_out_of_order_end_the_stream_and_what_was_answered_stays(
    tmp_path: Path,
) -> None:
    first = message(1, TEXT)
    bad = [
        ("number", [message(2, b"x", more=True), message(3, b"x")]),
        ("more", [message(2, b"x", more=True)]),
        ("format", [message(2, b"x", format=0)]),
        ("format", [message(2, b"x", format=77)]),
    ]
    async with retriever(tmp_path) as service:
        for field, messages in bad:
            code, details, answers = await raw_ingest(service.running.target, first, *messages)
            assert (code, details.split(":")[0]) == ("INVALID_ARGUMENT", field)
            assert [answer.number for answer in answers] == [1]
        assert (await service.client.stats()).documents == 1
        assert service.index.texts() == {"d1": TEXT.decode()}


@pytest.mark.parametrize(
    ("request_", "field"),
    [
        (pb.SearchRequest(query=" "), "query"),
        (pb.SearchRequest(query="x" * 10_000), "query"),
        (pb.SearchRequest(query="x", count=100_000), "count"),
        (pb.SearchRequest(query="x", mode=9), "mode"),  # type: ignore[arg-type]
        (pb.SearchRequest(query="x", mode=pb.SEARCH_MODE_DENSE), "mode"),
        (pb.SearchRequest(query="x", rerank=True), "rerank"),
    ],
)
async def test_a_bad_search_is_refused_by_name(
    tmp_path: Path, request_: pb.SearchRequest, field: str
) -> None:
    async with (
        retriever(tmp_path) as service,
        grpc.aio.insecure_channel(service.running.target) as channel,
    ):
        stub: Any = pb_grpc.RetrieverServiceStub(channel)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stub.Search(iter((request_,)), timeout=30).read()
    assert caught.value.code().name == "INVALID_ARGUMENT"
    assert (caught.value.details() or "").startswith(f"{field}: ")


async def test_queries_on_one_stream_are_answered_in_order(tmp_path: Path) -> None:
    """What was answered before a bad query holds."""
    async with retriever(tmp_path) as service:
        await service.ingest(Upload("fox", TEXT))
        queries = [pb.SearchRequest(query="fox", number=number) for number in (7, 3)]
        found = [answer async for answer in service.client.searches(queries)]
        assert [answer.number for answer in found] == [7, 3]
        assert all(answer.hits for answer in found)
        answers = service.client.searches([queries[0], pb.SearchRequest(query="x", mode=9)])  # type: ignore[arg-type]
        assert (await anext(answers)).number == 7
        with pytest.raises(Rejected, match="mode") as refused:
            await anext(answers)
        assert refused.value.code.name == "INVALID_ARGUMENT"


async def test_a_caller_of_before_searches_were_a_stream_is_answered(tmp_path: Path) -> None:
    async with (
        retriever(tmp_path) as service,
        grpc.aio.insecure_channel(service.running.target) as channel,
    ):
        await service.ingest(Upload("fox", TEXT))
        search = channel.unary_unary(
            "/tandem_api.retriever.v1.RetrieverService/Search",
            request_serializer=pb.SearchRequest.SerializeToString,
            response_deserializer=pb.SearchResponse.FromString,
        )
        assert (await search(pb.SearchRequest(query="fox"), timeout=30)).hits


async def test_a_full_disk_ends_an_ingest_and_nothing_answered_is_lost(tmp_path: Path) -> None:
    async with retriever(tmp_path) as service:
        await service.ingest(Upload("fox", TEXT))
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (10, hard))
        try:
            code, details, answers = await raw_ingest(service.running.target, message(1, b"more"))
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        assert (code, answers) == ("RESOURCE_EXHAUSTED", [])
        assert "no room" in details
        assert details.endswith("; 0 documents of this stream are stored")
        assert service.index.texts() == {"fox": TEXT.decode()}
        assert outcomes(await service.ingest(Upload("more", b"more")))[0][2] == "ADDED"


async def test_too_many_at_once_are_turned_away(tmp_path: Path) -> None:
    limits = RetrieverLimits(max_searches=1, max_ingests=1, max_waiting=0)
    async with (
        retriever(tmp_path, limits=limits) as service,
        grpc.aio.insecure_channel(service.running.target) as channel,
    ):
        call: Any = pb_grpc.RetrieverServiceStub(channel).Ingest(timeout=60)
        await call.write(message(1, TEXT))
        assert (await call.read()).document_id == "d1"  # the stream is taken, and stays open
        code, details, _ = await raw_ingest(service.running.target, message(1, TEXT))
        assert (code, details) == ("RESOURCE_EXHAUSTED", "all 1 ingests are in use; try again")
        call.cancel()


async def test_a_drain_ends_open_ingests_after_what_was_taken(tmp_path: Path) -> None:
    async with (
        retriever(tmp_path) as service,
        grpc.aio.insecure_channel(service.running.target) as channel,
    ):
        call: Any = pb_grpc.RetrieverServiceStub(channel).Ingest(timeout=60)
        await call.write(message(1, TEXT))
        assert (await call.read()).document_id == "d1"
        await service.running.drain(30.0)
        assert (await call.code()).name == "UNAVAILABLE"
        assert "acknowledged documents are stored" in await call.details()


@pytest.mark.parametrize(
    ("peer", "networks", "own"),
    [
        ("ipv4:127.0.0.1:50001", "", True),
        ("ipv6:%5B::1%5D:50001", "", True),
        ("ipv6:[::ffff:127.0.0.1]:50001", "", True),
        ("unix:/run/tandem", "", True),
        ("ipv4:10.1.2.3:50001", "", False),
        ("ipv4:10.1.2.3:50001", "10.1.0.0/16, fd00::/8", True),
        ("ipv6:%5Bfd00::7%5D:50001", "10.1.0.0/16, fd00::/8", True),
        ("ipv4:10.2.2.3:50001", "10.1.0.0/16", False),
        ("ipv6:[::ffff:10.2.2.3]:50001", "10.1.0.0/16", False),
        ("ipv6:[fe80::1%25eth0]:1", "10.1.0.0/16", False),
        ("localhost", "", False),
        ("", "0.0.0.0/0", False),
    ],
)
def test_only_the_own_side_is_let_in(peer: str, networks: str, own: bool) -> None:
    with nullcontext() if own else pytest.raises(Rejected, match="only its own side") as caught:
        check_own_side(peer, parse_networks(networks))
    assert own or (caught and caught.value.code.name == "PERMISSION_DENIED")


async def test_a_device_answers_nobody_else_and_the_cloud_everybody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # All callers of a test are on this machine; so the check is told that none of them is.
    monkeypatch.setattr("tandem.net.own_side._address", lambda peer: None)
    async with retriever(tmp_path, "device") as service:
        client = service.client
        for work in (
            client.search("fox"),
            client.delete(["fox"]),
            client.stats(),
            client.snapshot(),
            service.ingest(Upload("fox", TEXT)),
        ):
            code, details = await status_of(work)
            assert code == "PERMISSION_DENIED"
            assert "answers only its own side" in details
            assert "its setting own_side names the networks" in details
        assert (await client.describe()).role == "device"
    async with retriever(tmp_path, "cloud") as service:
        assert outcomes(await service.ingest(Upload("fox", TEXT)))[0][2] == "ADDED"
        assert (await service.client.search("fox")).hits[0].document_id == "fox"


def test_a_device_listens_beyond_its_machine_only_when_told_for_whom() -> None:
    with pytest.raises(SettingsError, match=r"TANDEM_OWN_SIDE.*host 0\.0\.0\.0"):
        load_settings(RetrieverSettings, {"host": "0.0.0.0"})
    with pytest.raises(SettingsError, match="own-side"):
        load_settings(RetrieverSettings, {"own_side": "not a network"})
    told = load_settings(RetrieverSettings, {"host": "0.0.0.0", "own_side": "10.0.0.0/8"})
    assert told.role == "device"
    assert load_settings(RetrieverSettings, {"host": "0.0.0.0", "role": "cloud"}).own_side == ""
    assert [is_loopback(h) for h in ("localhost", "127.0.0.9", "[::1]", "0.0.0.0", "host")] == [
        *(True, True, True, False, False)
    ]


async def test_reading_ahead_waits_for_room_and_tells_an_error_last() -> None:
    def incoming(number: int, size: int) -> Incoming:
        return Incoming(number, f"d{number}", "", Format.TEXT, bytes(size))

    ahead = ReadAhead()
    await ahead.put(incoming(1, MAX_BYTES))
    second = asyncio.create_task(ahead.put(incoming(2, 1)))
    await asyncio.wait([second], timeout=0.01)
    assert not second.done()
    assert [one.number for one in await ahead.batch()] == [1]
    await second
    await ahead.end(ValueError("late"))
    assert [one.number for one in await ahead.batch()] == [2]
    with pytest.raises(ValueError, match="late"):
        await ahead.batch()
