"""OpenAI's vocabulary is there when it is needed, and nothing is downloaded for it."""

from __future__ import annotations

import asyncio
import hashlib
import importlib
import logging
from collections.abc import Sequence
from pathlib import Path

import pytest

from tandem.core.errors import InvalidArgument
from tandem.services.retriever.openai_vocabulary import (
    FILE,
    SHA256,
    OpenAIVocabulary,
    TokenSpelling,
    spelt_texts,
)


class Letters:
    """Ids are those of letters; there are no others than ASCII's."""

    def decode_bytes(self, tokens: Sequence[int], /) -> bytes:
        if any(token > 127 for token in tokens):
            raise KeyError("no such letter")
        return bytes(tokens)


class Loading:
    """Counts how often the vocabulary is loaded; fails while it has an error."""

    def __init__(self, error: Exception | None = None) -> None:
        self.times = 0
        self.error = error

    def __call__(self) -> TokenSpelling:
        self.times += 1
        if self.error is not None:
            raise self.error
        return Letters()


async def test_it_is_loaded_once_for_all_who_ask() -> None:
    loading = Loading()
    vocabulary = OpenAIVocabulary(loading)
    first, second = await asyncio.gather(vocabulary.loaded(), vocabulary.loaded())
    assert isinstance(first, Letters)
    assert first is second is await vocabulary.loaded()
    assert loading.times == 1


async def test_a_missing_vocabulary_is_found_once_it_is_there_and_logged_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    loading = Loading(OSError("no such file"))
    vocabulary = OpenAIVocabulary(loading)
    with caplog.at_level(logging.WARNING):
        assert await vocabulary.loaded() is None
        assert await vocabulary.loaded() is None
    assert [record.getMessage() for record in caplog.records] == [
        "no vocabulary for OpenAI's token ids"
    ]
    loading.error = None
    assert isinstance(await vocabulary.loaded(), Letters)


@pytest.mark.parametrize("folder", ["unnamed", "missing", "empty", "damaged"])
async def test_a_caller_s_token_ids_reach_no_network(
    folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither where there is no file nor where it is another than its hash says."""
    asked = list[str]()

    def fetched(address: str) -> bytes:
        asked.append(address)
        raise OSError("no network")

    monkeypatch.setattr("tiktoken.load.read_file", fetched)
    monkeypatch.setattr("tiktoken.registry.ENCODINGS", {})
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.delenv("TIKTOKEN_CACHE_DIR", raising=False)
    monkeypatch.delenv("DATA_GYM_CACHE_DIR", raising=False)
    if folder != "unnamed":
        monkeypatch.setenv("TIKTOKEN_CACHE_DIR", str(tmp_path / folder))
    if folder in ("empty", "damaged"):
        (tmp_path / folder).mkdir()
    if folder == "damaged":
        (tmp_path / folder / FILE).write_bytes(b"IQ== 0\n")
    assert await OpenAIVocabulary().loaded() is None
    assert asked == []
    if folder == "damaged":
        assert (tmp_path / folder / FILE).exists(), "the operator's file is left alone"


def test_the_file_is_where_tiktoken_looks_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the hash that tiktoken compares: a later tiktoken that looks elsewhere would download
    it."""
    looked_for = list[tuple[str, str | None]]()

    def noted(address: str, expected_hash: str | None = None) -> bytes:
        looked_for.append((hashlib.sha1(address.encode()).hexdigest(), expected_hash))
        return b"IQ== 0"

    monkeypatch.setattr("tiktoken.load.read_file_cached", noted)
    importlib.import_module("tiktoken_ext.openai_public").cl100k_base()
    assert looked_for == [(FILE, SHA256)]


def test_only_the_named_places_are_read_and_bounded() -> None:
    ids = [[97, 98], [1, 2], [99]]
    assert spelt_texts(Letters(), ids, [0, 2], 3) == ["ab", [1, 2], "c"]
    with pytest.raises(InvalidArgument, match="more than 2 characters"):
        spelt_texts(Letters(), ids, [0, 2], 2)
    with pytest.raises(InvalidArgument, match="token id 200 is not in") as refused:
        spelt_texts(Letters(), [[97, 200, 300]], [0], 9)
    assert refused.value.field == "input"
