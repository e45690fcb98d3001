"""Filling both retrievers of a local suite from folders."""

from __future__ import annotations

from itertools import count
from pathlib import Path

import pytest

from tandem.core.errors import TandemError
from tandem.suite.suite_documents import (
    Filled,
    SuiteDocuments,
    demo_documents,
    document_flags,
    fill,
)
from tests.services.two_sided_suite import retriever


async def test_each_side_gets_its_own_once(tmp_path: Path) -> None:
    documents = demo_documents()
    async with (
        retriever(tmp_path / "device") as device,
        retriever(tmp_path / "cloud", "cloud") as cloud,
    ):
        addresses = {"device": device.running.target, "cloud": cloud.running.target}
        first = await fill(documents, addresses)
        assert first == Filled({"device": 5, "cloud": 16})
        before = (await cloud.client.stats()).generation
        assert await fill(documents, addresses) == first
        assert (await cloud.client.stats()).generation == before  # nothing was written again
        assert "heron-style.md" in device.index.texts()
        assert not set(device.index.texts()) & set(cloud.index.texts())
        question = "How long is a Python release maintained, and which ones does Heron support?"
        for side, best in ((device, "heron-releases.md"), (cloud, "pep-0602.txt")):
            assert (await side.client.search(question)).hits[0].document_id == best


async def test_a_damaged_document_is_named_and_the_others_are_there(tmp_path: Path) -> None:
    notes = tmp_path / "notes"
    notes.mkdir()
    (notes / "torn.pdf").write_bytes(b"%PDF-1.4 nothing")
    (notes / "latin.txt").write_bytes(b"\x00\x01" * 40)
    (notes / "trip.md").write_text("The door code is 8841.")
    documents = SuiteDocuments((notes,), ())
    async with (
        retriever(tmp_path / "device") as device,
        retriever(tmp_path / "cloud", "cloud") as cloud,
    ):
        addresses = {"device": device.running.target, "cloud": cloud.running.target}
        filled = await fill(documents, addresses)
        assert filled.counts == {"device": 1, "cloud": 0}
        assert sorted(refusal.id for refusal in filled.refused) == ["latin.txt", "torn.pdf"]
        assert device.index.texts().keys() == {"trip.md"}


async def test_where_nothing_can_be_read_no_suite_starts(tmp_path: Path) -> None:
    (tmp_path / "torn.pdf").write_bytes(b"%PDF-1.4 nothing")
    documents = SuiteDocuments((tmp_path / "torn.pdf",), ())
    async with (
        retriever(tmp_path / "device") as device,
        retriever(tmp_path / "cloud", "cloud") as cloud,
    ):
        addresses = {"device": device.running.target, "cloud": cloud.running.target}
        with pytest.raises(
            TandemError, match=r"none of the device.s documents can be read; .*torn\.pdf"
        ):
            await fill(documents, addresses)


def test_an_index_lies_where_it_is_kept_or_with_what_is_forgotten(tmp_path: Path) -> None:
    names = ("verifier", "cloud-aggregator", "device-retriever", "cloud-retriever", "drafter")
    ports = dict(zip(names, count(1), strict=False))
    kept = document_flags(demo_documents(tmp_path / "kept", "lexical"), ports, tmp_path / "gone")
    retriever_flags = kept["cloud-retriever"]
    assert retriever_flags["folder"] == tmp_path / "kept" / "cloud"
    assert (retriever_flags["role"], retriever_flags["embedding"]) == ("cloud", "lexical")
    assert kept["cloud-aggregator"]["decoder"] == "127.0.0.1:1"
    decoders = [kept[f"{side}-retriever"]["decoder"] for side in ("device", "cloud")]
    assert decoders == ["127.0.0.1:5", "127.0.0.1:1"]
    forgotten = document_flags(demo_documents(), ports, tmp_path / "gone")
    assert forgotten["device-retriever"]["folder"] == tmp_path / "gone" / "device"
