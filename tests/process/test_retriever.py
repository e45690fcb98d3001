"""The retriever as a process: killed while it takes documents, told to stop, started wrongly."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tandem.index.document_index import open_index
from tandem.net.retriever_client import RetrieverClient, Upload
from tandem.net.status import Rejected
from tests.process.service_process import ServiceProcess
from tests.unit.index.postgres_server import plain_binaries, running_server


def service(folder: Path, *flags: str) -> ServiceProcess:
    fixed = ("--port", "0", "--folder", str(folder), "--embedding", "lexical")
    return ServiceProcess("tandem.services.retriever", *fixed, *flags)


def uploads() -> Iterator[Upload]:
    for number in range(100_000):
        yield Upload(f"d{number}", f"document number {number} ".encode() * 40)


async def ingest_until_killed(process: ServiceProcess, answered: list[str]) -> None:
    async with RetrieverClient(process.address()) as client:
        async for answer in client.ingest(uploads()):
            answered.append(answer.document_id)
            if len(answered) == 150:
                process.signal(signal.SIGKILL)


async def test_a_killed_retriever_has_every_document_that_it_answered(tmp_path: Path) -> None:
    folder = tmp_path / "index"
    answered: list[str] = []
    with service(folder) as process:
        with pytest.raises(Rejected) as caught:
            await ingest_until_killed(process, answered)
        assert caught.value.code.name == "UNAVAILABLE"
        assert process.ended() == -signal.SIGKILL
    assert len(answered) >= 150
    index = open_index(folder, "lexical")
    held = index.texts()
    index.close()
    assert set(answered) <= set(held)
    # Whatever else is there is whole: a change that was durable before it was answered.
    assert all(text == (f"document number {name[1:]} " * 40).strip() for name, text in held.items())


def test_a_stopped_retriever_exits_with_0_and_a_wrong_start_says_why(tmp_path: Path) -> None:
    folder = tmp_path / "index"
    with service(folder) as process:
        process.address()
        with service(folder) as second:
            assert second.ended() == 1
            assert f"error: {folder}: is open in process" in second.log()
        with service(tmp_path / "other", "--host", "0.0.0.0") as exposed:
            assert exposed.ended() == 2
            assert "own-side" in exposed.log().lower().replace("_", "-")
        process.signal(signal.SIGTERM)
        assert process.ended() == 0


async def test_retrievers_share_the_documents_on_a_server() -> None:
    pytest.importorskip("psycopg", reason="the extra 'postgres' is not installed")
    if (binaries := plain_binaries()) is None:
        pytest.skip("no PostgreSQL server is installed (apt-get install postgresql)")
    with running_server(binaries) as dsn:

        def replica() -> ServiceProcess:
            flags = ("--port", "0", "--role", "cloud", "--embedding", "lexical")
            module = "tandem.services.retriever"
            return ServiceProcess(module, *flags, environment={"TANDEM_DSN": dsn})

        with replica() as first, replica() as second:
            async with (
                RetrieverClient(first.address()) as writer,
                RetrieverClient(second.address()) as reader,
            ):
                document = Upload("fox", b"The quick brown fox")
                answers = [answer async for answer in writer.ingest([document])]
                assert [answer.document_id for answer in answers] == ["fox"]
                (hit,) = (await reader.search("quick fox")).hits
                assert hit.document_id == "fox"
                async with asyncio.timeout(30):
                    while (await reader.stats()).documents == 0:
                        await asyncio.sleep(0.05)
                assert await reader.delete(["fox"]) == [True]
                assert not (await writer.search("quick fox")).hits
            for process in (first, second):
                process.signal(signal.SIGTERM)
                assert process.ended() == 0


def test_a_device_keeps_no_documents_on_a_server() -> None:
    with ServiceProcess("tandem.services.retriever", "--dsn", "postgresql://host/x") as process:
        assert process.ended() == 2
        assert "--dsn: must not be set with role device" in process.log()
