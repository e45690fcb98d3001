"""Owners of documents over real gRPC: whose an ingest, a deletion, a list and a search are."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import grpc
import numpy as np
import pytest
from numpy.typing import NDArray

from tandem.index.owners import DocumentQuota
from tandem.net.retriever_client import Upload
from tandem.services.retriever.config import RetrieverSettings
from tandem.services.retriever.servicer import RetrieverLimits
from tandem.settings import SettingsError, load_settings
from tandem_api.retriever.v1 import retriever_pb2 as pb
from tandem_api.retriever.v1 import retriever_pb2_grpc as pb_grpc
from tests.services.scripted_suite import until
from tests.services.two_sided_suite import outcomes, retriever, status_of
from tests.unit.index.word_vectors import WordVectors

LIMITS = RetrieverLimits(owner_quota=DocumentQuota(documents=3, bytes=100))


async def test_documents_of_one_stream_go_to_their_owners(tmp_path: Path) -> None:
    """The operator's names are paths; a tenant's are cleaned, or refused alone."""
    uploads = (
        Upload("notes/a.md", b"heron of the operator"),
        Upload(" a.md", b"heron of ann", owner="ann"),
        Upload("../a.md", b"heron of nobody", owner="ann"),
        Upload("a\x1b[2J.md", b"heron of nobody", owner="ann"),
        Upload("a.md", b"heron of bob", owner="bob", shared=True),
        Upload("l.jsonl", b'{"id": "a/b", "text": "x"}\n{"text": "y"}', "jsonl", owner="bob"),
    )
    async with retriever(tmp_path) as service:
        answers = await service.ingest(*uploads)
        assert outcomes(answers) == [
            (0, "notes/a.md", "ADDED", True),
            (1, "a.md", "ADDED", True),
            (2, "../a.md", "REFUSED", True),
            (3, "a\ufffd[2J.md", "REFUSED", True),
            (4, "a.md", "ADDED", True),
            (5, "l.jsonl#a/b", "REFUSED", False),
            (5, "l.jsonl#2", "ADDED", True),
        ]
        assert "path separator" in answers[2].reason
        assert answers[3].reason == "name: contains a control character, U+001B"
        found = await service.client.search("heron", 9, tenant="ann")
        assert {(hit.owner, hit.document_id) for hit in found.hits} == {
            ("", "notes/a.md"),
            ("ann", "a.md"),
            ("bob", "a.md"),
        }
        assert {hit.owner for hit in (await service.client.search("heron", 9)).hits} == {"", "bob"}
        assert await service.client.delete(["a.md", "notes/a.md"], owner="ann") == [True, False]
        assert await service.client.delete(["a.md"]) == [False]
        listed = await service.client.listed("bob")
        assert [(each.id, each.shared) for each in listed.documents] == [
            ("a.md", True),
            ("l.jsonl#2", False),
        ]
        assert [each.id for each in (await service.client.listed()).documents] == ["notes/a.md"]


async def test_what_is_no_owner_is_refused_by_name(tmp_path: Path) -> None:
    async with retriever(tmp_path) as service:
        client = service.client
        for work in (
            service.ingest(Upload("a", b"x", owner="ann:shared")),
            client.delete(["a"], owner="a b"),
            client.listed("a/b"),
            client.search("x", tenant="\u202eann"),
        ):
            status, words = await status_of(work)
            assert (status, words.partition(":")[0]) == ("INVALID_ARGUMENT", "owner")
        for count in (1001, 2**32 - 1):
            status, words = await status_of(client.listed("ann", count=count))
            assert (status, words.partition(":")[0]) == ("INVALID_ARGUMENT", "count")


async def test_what_is_over_a_quota_is_refused_alone(tmp_path: Path) -> None:
    async with retriever(tmp_path, limits=LIMITS) as service:
        uploads = [Upload(f"{n}", b"x" * 30, owner="ann") for n in range(4)]
        answers = await service.ingest(*uploads, Upload("0", b"y" * 40, owner="ann"))
        assert [row[2] for row in outcomes(answers)] == [
            *["ADDED"] * 3,
            "REFUSED",
            "UPDATED",
        ]
        assert [answer.over_quota for answer in answers] == [False] * 3 + [True, False]
        assert "1 documents more needed, 'ann' has 0 of 3 left" in answers[3].reason
        usage = await service.client.listed("ann")
        assert (usage.total_documents, usage.total_bytes) == (3, 100)
        assert (usage.max_documents, usage.max_bytes) == (3, 100)
        # A key may say otherwise; the operator has no quota.
        more = replace(uploads[3], max_documents=5, max_bytes=200)
        operators = [replace(upload, owner="") for upload in uploads]
        answers = await service.ingest(more, *operators)
        assert [row[2] for row in outcomes(answers)] == ["ADDED"] * 5
        nobodys = await service.client.listed()
        assert (nobodys.total_documents, nobodys.max_documents) == (4, 0)


async def test_streams_at_once_do_not_exceed_a_quota(tmp_path: Path) -> None:
    async with retriever(tmp_path, limits=LIMITS) as service:
        streams = [
            service.ingest(*(Upload(f"{stream} {n}", b"x", owner="ann") for n in range(3)))
            for stream in range(5)
        ]
        answers = [each for answered in await asyncio.gather(*streams) for each in answered]
        assert sum(answer.over_quota for answer in answers) == 12
        assert (await service.client.listed("ann")).total_documents == 3


@pytest.mark.parametrize("name", ["owner_max_documents", "owner_max_bytes"])
def test_a_quota_that_is_none_is_refused_by_its_variable(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert load_settings(RetrieverSettings, {}).owner_max_documents == 1000
    for wrong in ("-1", "many", "1e30"):
        monkeypatch.setenv(f"TANDEM_{name.upper()}", wrong)
        with pytest.raises(SettingsError, match=f"TANDEM_{name.upper()}"):
            load_settings(RetrieverSettings, {})


class Stepwise(WordVectors):
    """Embeds when it is let, and notes how many texts at once."""

    def __init__(self) -> None:
        super().__init__(16)
        self.sizes: list[int] = []
        self.words: list[int] = []
        self.lets = threading.Semaphore(0)

    def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        assert self.lets.acquire(timeout=60)
        self.sizes.append(len(texts))
        self.words.append(sum(self.count_tokens(texts)))
        return super().embed(texts)

    def count_tokens(self, pieces: Sequence[str]) -> Sequence[int]:
        return [len(piece.split()) for piece in pieces]


async def test_a_long_document_of_one_owner_holds_up_no_other_s(tmp_path: Path) -> None:
    """It was embedded as one, on the thread that writes, with all others waiting behind it."""
    embedder = Stepwise()
    long = " ".join(f"word{number}" for number in range(20_000)).encode()
    async with retriever(tmp_path, embedder=embedder) as service, asyncio.TaskGroup() as group:
        first = group.create_task(service.ingest(Upload("long.md", long, owner="ann")))
        embedder.lets.release()
        await until(lambda: embedder.sizes)
        second = group.create_task(service.ingest(Upload("short.md", b"a heron", owner="bob")))
        while not second.done():
            embedder.lets.release()
            await asyncio.sleep(0.01)
        assert outcomes(second.result()) == [(0, "short.md", "ADDED", True)]
        assert not first.done()
        while not first.done():
            embedder.lets.release()
            await asyncio.sleep(0.001)
        assert outcomes(first.result()) == [(0, "long.md", "ADDED", True)]
        assert max(embedder.words) <= 256
        assert len(embedder.sizes) > 10


async def test_a_short_text_waits_for_short_steps_of_another_tenant_s(tmp_path: Path) -> None:
    """It waited for three turns, each behind eight windows of a model's whole context."""
    embedder = Stepwise()
    long = [" ".join(f"w{number}x{word}" for word in range(256)) for number in range(40)]
    async with (
        retriever(tmp_path, embedder=embedder) as service,
        grpc.aio.insecure_channel(service.running.target) as channel,
        asyncio.TaskGroup() as group,
    ):
        embed = pb_grpc.RetrieverServiceStub(channel).Embed

        async def embedded(texts: Sequence[str], tenant: str) -> None:
            await embed(pb.EmbedRequest(texts=texts, tenant=tenant))

        greedy = [group.create_task(embedded(long, "ann")) for _ in range(3)]
        embedder.lets.release()
        await until(lambda: embedder.sizes)
        short = group.create_task(embedded(["a heron"], "bob"))
        await asyncio.sleep(0.2)  # the call has come in
        released = 0
        while not short.done():
            released += 1
            embedder.lets.release()
            await asyncio.sleep(0.1)
        assert released <= 5, "the step of each thread, and its own"
        embedder.lets.release(1000)
        await asyncio.gather(*greedy)
    assert max(embedder.words) <= 256
