"""Documents from one decoder to another: bit for bit what it would have computed, within budget."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from tandem.core.errors import InvalidArgument, ResourceExhausted
from tandem.engine.base import KvFileRefused
from tandem.engine.document_exchange import DocumentExchange
from tandem.engine.document_files import document_origin
from tandem.engine.document_store import DocumentStore, Source
from tandem.engine.jobs import EngineThread
from tandem.engine.kv_files import KvTensors
from tandem.protocol.decoding_messages import Document
from tandem.protocol.document_kv import KvModelMismatch
from tests.unit.engine.document_checks import DOCUMENTS, engine_thread, files_in, logits_after
from tests.unit.engine.reference_models import pair

BUDGET = 2**30
SPELLED = {f"text {number}": ids for number, ids in enumerate(DOCUMENTS)}
DOCUMENT = Document("text 0", 0.0)


async def spelled(document: Document) -> tuple[int, ...]:
    return SPELLED[document.text]


def exchange(
    thread: EngineThread, store: DocumentStore, weights: Callable[[], str] = lambda: "w"
) -> DocumentExchange:
    return DocumentExchange(thread, store, spelled, weights)


async def sent(source: DocumentExchange, target: DocumentExchange, text: str) -> None:
    document = Document(text, 0.0)
    found = await source.exported(document, await target.model())
    assert found.kv.size_bytes == len(found.packed) <= source.size_bytes(found.kv.tokens)
    async with target.importing(document, found.kv) as received:
        await received(found.packed)


@pytest.mark.parametrize("name", ["llama", "gemma2", "gpt2"])
async def test_what_was_sent_is_what_would_have_been_computed(name: str, tmp_path: Path) -> None:
    """Also when it was kept on disk meanwhile."""
    engine = pair(name).engine
    sources: list[Source] = []
    async with engine_thread(engine) as thread:
        computed = DocumentStore(thread, BUDGET)
        expected = await logits_after(computed, DOCUMENTS)
        for _ in range(2):
            store = DocumentStore(thread, BUDGET, files_in(tmp_path, engine), sources.append)
            if not sources:
                for text in SPELLED:
                    await sent(exchange(thread, computed), exchange(thread, store), text)
            assert np.array_equal(await logits_after(store, DOCUMENTS), expected)
            await store.close()
        await computed.close()
    assert sources == ["memory"] * 3 + ["disk"] * 3
    assert engine.kv_bytes_in_use == 0


async def test_room_is_held_from_the_announcement_on() -> None:
    engine = pair("llama").engine
    size = len(DOCUMENTS[0]) * engine.kv_bytes_per_token
    async with engine_thread(engine) as thread:
        source, target = DocumentStore(thread, BUDGET), DocumentStore(thread, size)
        giving, taking = exchange(thread, source), exchange(thread, target)
        found = await giving.exported(DOCUMENT, await giving.model())
        async with taking.importing(DOCUMENT, found.kv):
            assert target.bytes_in_use == size
            with pytest.raises(ResourceExhausted, match="document kv budget"):
                await logits_after(target, [DOCUMENTS[1]])
        assert target.bytes_in_use == 0
        await logits_after(target, [DOCUMENTS[1]])
        await sent(giving, taking, "text 0")  # the other one goes
        assert target.bytes_in_use == size
        assert target.has(DOCUMENTS[0])
        assert not target.has(DOCUMENTS[1])
        await asyncio.gather(source.close(), target.close())
    assert engine.kv_bytes_in_use == 0


async def test_what_was_computed_meanwhile_or_deleted_is_not_kept_twice() -> None:
    engine = pair("llama").engine
    size = len(DOCUMENTS[0]) * engine.kv_bytes_per_token
    async with engine_thread(engine) as thread:
        source, target = DocumentStore(thread, BUDGET), DocumentStore(thread, BUDGET)
        giving, taking = exchange(thread, source), exchange(thread, target)
        found = await giving.exported(DOCUMENT, await giving.model())
        async with taking.importing(DOCUMENT, found.kv) as received:
            await logits_after(target, [DOCUMENTS[0]])
            await received(found.packed)
        assert target.bytes_in_use == size
        assert await target.forget([DOCUMENTS[0]]) == 1
        await sent(giving, taking, "text 0")
        assert target.bytes_in_use == 0
        assert not target.has(DOCUMENTS[0])
        await source.close()
    assert engine.kv_bytes_in_use == 0


async def test_other_weights_give_and_take_nothing() -> None:
    engine = pair("llama").engine
    async with engine_thread(engine) as thread:
        store = DocumentStore(thread, BUDGET)
        own = exchange(thread, store)
        other = replace(await own.model(), weights="another")
        with pytest.raises(KvModelMismatch, match="weights another"):
            await own.exported(DOCUMENT, other)
        found = await own.exported(DOCUMENT, await own.model())
        with pytest.raises(KvModelMismatch):
            async with own.importing(DOCUMENT, replace(found.kv, model=other)):
                pass
        with pytest.raises(InvalidArgument, match="another text"):
            async with own.importing(Document("text 2", 0.0), replace(found.kv, tokens=4)):
                pass
        await store.close()


@pytest.mark.parametrize("wrong", [float("nan"), float("inf")])
async def test_numbers_that_are_not_finite_are_refused(wrong: float) -> None:
    engine = pair("llama").engine
    kept, ids = engine.kv_files, DOCUMENTS[0]
    origin = document_origin("w", "v", ids)
    async with engine_thread(engine) as thread:
        store = DocumentStore(thread, BUDGET)
        async with store.held([ids]) as (held,):
            tensors = await thread.call(lambda: kept.export(held.session))
        found = kept.unpack(kept.pack(tensors, origin), origin)
        pairs = zip(found.values, tensors.values, strict=True)
        assert all(torch.equal(*pair_) for pair_ in pairs)
        found.values[1][0, 2, 3] = wrong
        with pytest.raises(KvFileRefused, match="not finite"):
            kept.unpack(kept.pack(KvTensors(found.keys, found.values), origin), origin)
        await store.close()
