"""A document that is deleted or replaced leaves its side's decoder before that is answered."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import grpc
import pytest

from tandem.core.errors import Unavailable
from tandem.net.access import ClientAccess
from tandem.net.channels import replicas_of
from tandem.net.connection import Connection
from tandem.net.retriever_client import Upload
from tandem.services.retriever.forgetting import CHARACTERS_PER_CALL, TEXTS_PER_CALL, Forgetting
from tandem.two_sided.decoding.document_decoder import SEPARATOR
from tandem.two_sided.protocol.messages import ContextDocument
from tandem.two_sided.serving.decoding_service import MAX_FORGOTTEN
from tandem_api.decoding.v1 import decoding_pb2 as pb
from tandem_api.decoding.v1 import decoding_pb2_grpc as pb_grpc
from tests.services.decoding_peer import (
    TOKENIZER,
    OneDecoder,
    aggregator_peer,
    decoder,
    opening,
)
from tests.services.scripted_suite import sample
from tests.services.two_sided_suite import Retriever, outcomes, retriever, status_of

TEXTS = {"heron": "the heron note", "lamp": "a lamp is green", "boat": "boats sail"}


@asynccontextmanager
async def device(folder: Path) -> AsyncIterator[tuple[Retriever, OneDecoder]]:
    """A retriever with three documents, and its decoder, which has decoded all of them."""
    async with (
        decoder("drafter") as one,
        retriever(folder, decoder=one.running.target) as found,
    ):
        await found.ingest(*(Upload(name, text.encode()) for name, text in TEXTS.items()))
        await decode(one, *TEXTS.values())
        assert kept(one) == size_of(one, *TEXTS.values())
        yield found, one


async def decode(one: OneDecoder, *texts: str, owner: str = "") -> None:
    async with aggregator_peer(one.running) as peer:
        await peer.open(
            opening(documents=tuple(ContextDocument(text, 0.0, owner=owner) for text in texts))
        )
        await peer.drafts(1)
        await peer.cancel()


def kept(one: OneDecoder) -> float:
    """Bytes of documents that the decoder says it has."""
    return sample(one.metrics, "tandem_document_kv_bytes", model_name=one.engine.model_name)


def size_of(one: OneDecoder, *texts: str) -> int:
    tokens = sum(len(TOKENIZER.encode(text + SEPARATOR)) for text in texts)
    return tokens * one.engine.kv_bytes_per_token


async def test_what_is_deleted_is_forgotten_and_the_rest_stays(tmp_path: Path) -> None:
    async with device(tmp_path) as (found, one):
        assert await found.client.delete(["heron", "nobody"]) == [True, False]
        assert kept(one) == size_of(one, TEXTS["lamp"], TEXTS["boat"])


async def test_what_a_tenant_deletes_or_replaces_takes_nothing_from_others(tmp_path: Path) -> None:
    """Who has a text of the operator's could otherwise have its keys and values dropped."""
    text = TEXTS["heron"]
    async with device(tmp_path) as (found, one):
        before = kept(one)
        await found.ingest(Upload("mine", text.encode(), owner="ann"))
        await decode(one, text, owner="ann")
        assert kept(one) == before + size_of(one, text)
        await found.ingest(Upload("mine", b"another text", owner="ann"))
        assert kept(one) == before
        await found.ingest(Upload("mine", text.encode(), owner="ann"))
        assert await found.client.delete(["mine", "heron"], owner="ann") == [True, False]
        assert kept(one) == before
        assert await found.client.delete(["heron"]) == [True]
        assert kept(one) == size_of(one, TEXTS["lamp"], TEXTS["boat"])


async def test_what_is_replaced_is_forgotten_and_what_is_said_again_stays(tmp_path: Path) -> None:
    async with device(tmp_path) as (found, one):
        uploads = [Upload("lamp", b"a lamp is red"), Upload("boat", TEXTS["boat"].encode())]
        answers = [row[2] for row in outcomes(await found.ingest(*uploads))]
        assert answers == ["UPDATED", "UNCHANGED"]
        assert kept(one) == size_of(one, TEXTS["heron"], TEXTS["boat"])


async def test_nothing_is_deleted_that_the_decoder_could_not_be_told_of(tmp_path: Path) -> None:
    async with retriever(tmp_path, decoder="127.0.0.1:1") as found:
        await found.ingest(Upload("heron", b"the heron note"))
        refused = await status_of(found.client.delete(["heron"]))
        assert refused[0] == "UNAVAILABLE"
        assert refused[1].startswith("the decoder at 127.0.0.1:1 must forget a document first")
        assert await found.client.delete(["nobody"]) == [False]
        (hit,) = (await found.client.search("heron")).hits
        assert hit.text == "the heron note"


async def test_much_is_told_in_parts_and_more_at_once_is_refused() -> None:
    async with decoder("drafter") as one:
        connection = Connection(one.running.target, 2**20, ClientAccess())
        forgetting = Forgetting([connection])
        long = ["x" * CHARACTERS_PER_CALL + str(number) for number in range(4)]
        await decode(one, "the last note")
        assert kept(one) == size_of(one, "the last note")
        texts = [*map(str, range(TEXTS_PER_CALL + 1)), *long, "the last note"]
        await forgetting.forget(texts)
        assert kept(one) == 0
        await forgetting.close()
        request = pb.ForgetDocumentsRequest(texts=["x"] * (MAX_FORGOTTEN + 1))
        async with grpc.aio.insecure_channel(one.running.target) as channel:
            with pytest.raises(grpc.aio.AioRpcError, match="texts: 1025; at most 1024"):
                await pb_grpc.DecodingServiceStub(channel).ForgetDocuments(request, timeout=10)


async def test_every_decoder_must_be_told() -> None:
    async with decoder("drafter") as one:
        targets = (one.running.target, "127.0.0.1:1")
        forgetting = Forgetting(Connection(each, 2**20, ClientAccess()) for each in targets)
        with pytest.raises(Unavailable, match=r"127\.0\.0\.1:1"):
            await forgetting.forget(["a note"])
        await forgetting.close()


async def test_a_name_that_is_replicated_is_every_one_of_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Two replicas on one port of two loopback addresses, as a headless service names them."""
    async with decoder("drafter") as one:
        port = one.running.target.rpartition(":")[2]

        async def resolved(*_: object, **__: object) -> list[tuple[object, ...]]:
            return [(0, 0, 0, "", (host, int(port))) for host in ("127.0.0.1", "127.0.0.2")]

        monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", resolved)
        target = f"dns:///drafter.test:{port}"
        assert await replicas_of(target) == [f"127.0.0.1:{port}", f"127.0.0.2:{port}"]
        await decode(one, "the last note")
        forgetting = Forgetting([Connection(target, 2**20, ClientAccess())])
        with pytest.raises(Unavailable, match=r"drafter\.test"):  # the second does not answer
            await forgetting.forget(["the last note"])
        assert kept(one) == 0
        await forgetting.close()
    assert await replicas_of("127.0.0.1:1") == ["127.0.0.1:1"]
