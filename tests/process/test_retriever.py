"""The retriever as a process: killed while it takes documents, told to stop, started wrongly."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tandem.index.document_index import open_index
from tandem.rpc.retriever_client import RetrieverClient, Upload
from tandem.rpc.status import Rejected
from tests.process.service_process import ServiceProcess


def service(folder: Path, *flags: str) -> ServiceProcess:
    fixed = ("--port", "0", "--folder", str(folder), "--embedding", "lexical")
    return ServiceProcess("services.retriever", *fixed, *flags)


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
