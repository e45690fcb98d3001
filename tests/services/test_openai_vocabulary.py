"""OpenAI's vocabulary is there when it is needed, or its absence is known at once."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence

import pytest

from tandem.core.errors import InvalidArgument
from tandem.services.retriever.openai_vocabulary import (
    OpenAIVocabulary,
    TokenSpelling,
    spelt_texts,
)

SOON_S = 5.0


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


async def test_a_failure_is_remembered_for_a_while() -> None:
    now_s = 0.0
    loading = Loading(OSError("no network"))
    vocabulary = OpenAIVocabulary(loading, retry_s=300.0, clock=lambda: now_s)
    assert await vocabulary.loaded() is None
    loading.error = None
    now_s = 299.0
    assert await vocabulary.loaded() is None
    assert loading.times == 1
    now_s = 300.0
    assert isinstance(await vocabulary.loaded(), Letters)


async def test_nobody_waits_for_a_download_that_hangs_and_it_is_used_once_it_is_there() -> None:
    released = threading.Event()
    loading = Loading()

    def hang() -> TokenSpelling:
        released.wait()
        return loading()

    now_s = 0.0
    vocabulary = OpenAIVocabulary(hang, timeout_s=0.01, clock=lambda: now_s)
    try:
        async with asyncio.timeout(SOON_S):
            assert await vocabulary.loaded() is None
            now_s = 1e6  # another thread is not begun while the first one hangs
            assert await vocabulary.loaded() is None
    finally:
        released.set()
    async with asyncio.timeout(SOON_S):
        while await vocabulary.loaded() is None:
            await asyncio.sleep(0)
    assert loading.times == 1


async def test_closing_does_not_wait_for_it() -> None:
    released = threading.Event()

    def hang() -> TokenSpelling:
        released.wait()
        raise OSError("too late")

    vocabulary = OpenAIVocabulary(hang, timeout_s=0.01)
    try:
        async with asyncio.timeout(SOON_S):
            assert await vocabulary.loaded() is None
            await vocabulary.close()
    finally:
        released.set()


def test_only_the_named_places_are_read_and_bounded() -> None:
    ids = [[97, 98], [1, 2], [99]]
    assert spelt_texts(Letters(), ids, [0, 2], 3) == ["ab", [1, 2], "c"]
    with pytest.raises(InvalidArgument, match="more than 2 characters"):
        spelt_texts(Letters(), ids, [0, 2], 2)
    with pytest.raises(InvalidArgument, match="token id 200 is not in") as refused:
        spelt_texts(Letters(), [[97, 200, 300]], [0], 9)
    assert refused.value.field == "input"
