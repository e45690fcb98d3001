"""Documents from one decoder to another: bit for bit what it would have computed, within budget."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from tandem.backends.interface import KvFileRefused
from tandem.backends.torch.kv_files import KvTensors
from tandem.core.errors import FailedPrecondition, ResourceExhausted
from tandem.net.tenant import Tenant
from tandem.runtime.engine_thread import EngineThread
from tandem.two_sided.decoding.document_files import document_origin
from tandem.two_sided.decoding.document_store import DocumentStore, Source, StoredText
from tandem.two_sided.decoding.kv_transfer import KvTransfer
from tandem.two_sided.protocol.messages import (
    KV_PART_BYTES,
    ContextDocument,
    KvModel,
)
from tests.unit.backends.reference_models import pair
from tests.unit.two_sided.document_checks import (
    DOCUMENTS,
    engine_thread,
    files_in,
    logits_after,
    logits_after_joined,
)

BUDGET = 2**30
SPELLED = {f"text {number}": ids for number, ids in enumerate(DOCUMENTS)}
DOCUMENT = ContextDocument("text 0", 0.0)
ME = Tenant("me")
EDGE = Tenant("edge")
MALLORY = Tenant("mallory")


async def spelled(sequence: Sequence[ContextDocument]) -> list[tuple[int, ...]]:
    return [SPELLED[document.text] for document in sequence]


def exchange(
    thread: EngineThread, store: DocumentStore, weights: Callable[[], str] = lambda: "w"
) -> KvTransfer:
    return KvTransfer(thread, store, spelled, weights)


async def sent(source: KvTransfer, target: KvTransfer, text: str, to: str = "me") -> None:
    document = ContextDocument(text, 0.0)
    packed = await source.exported([document])
    assert len(packed) <= await source.size_bytes([document])
    async with target.importing([document], len(packed), to) as received:
        await received(packed)


@pytest.mark.parametrize("name", ["llama", "gemma2", "gpt2"])
async def test_what_was_sent_is_what_would_have_been_computed(name: str, tmp_path: Path) -> None:
    """In memory: an import is gone after a restart, and nothing of it was ever on disk."""
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
            assert np.array_equal(await logits_after(store, DOCUMENTS, ME), expected)
            if sources == ["imported"] * 3:
                await store.close()
                assert not list(tmp_path.iterdir())
        await store.close()
        await computed.close()
    assert sources == ["imported"] * 3 + ["computed"] * 3
    assert engine.kv_bytes_in_use == 0


async def test_an_import_serves_its_importer_alone_and_only_where_it_may(tmp_path: Path) -> None:
    """Keys and values of another text, sent as those of a text that everybody knows: before, they
    were served warm to all, and from the disk after a restart."""
    engine = pair("llama").engine
    known, other = DOCUMENTS[0], (30, 31, 32, 33, 34)
    async with engine_thread(engine) as thread:
        clean = DocumentStore(thread, BUDGET)
        truth, lie = [await logits_after(clean, [ids]) for ids in (known, other)]
        attacked = DocumentStore(thread, BUDGET, files_in(tmp_path, engine))
        target = exchange(thread, attacked)
        await forged(thread, clean, target, known, other)
        assert [attacked.has(StoredText(known, who)) for who in (None, EDGE, MALLORY)] == [
            False,
            False,
            True,
        ]
        asked = [[DOCUMENT], [replace(DOCUMENT, imported=True)]]
        assert await target.cached(asked, "mallory") == [False, True]
        assert await target.cached(asked, "edge") == [False, False]
        assert np.array_equal(await logits_after(attacked, [known], MALLORY), lie)
        for who in (None, EDGE):
            assert np.array_equal(await logits_after(attacked, [known], who), truth)
        # What was computed since then comes first, for the importer too, here and from the disk.
        assert np.array_equal(await logits_after(attacked, [known], MALLORY), truth)
        await attacked.close()
        opened_again = DocumentStore(thread, BUDGET, files_in(tmp_path, engine))
        for who in (MALLORY, None):
            assert np.array_equal(await logits_after(opened_again, [known], who), truth)
        third = DocumentStore(thread, BUDGET)
        await sent(exchange(thread, opened_again), exchange(thread, third), "text 0")
        assert np.array_equal(await logits_after(third, [known], ME), truth)
        await asyncio.gather(*(store.close() for store in (clean, opened_again, third)))
    assert engine.kv_bytes_in_use == 0


async def test_an_import_of_one_tenant_is_nothing_to_another_of_the_same_caller(
    tmp_path: Path,
) -> None:
    """What one had fetched tells what it asked."""
    engine = pair("llama").engine
    async with engine_thread(engine) as thread:
        store, computed = DocumentStore(thread, BUDGET), DocumentStore(thread, BUDGET)
        target = exchange(thread, store)
        for_alice, for_bob = (
            replace(DOCUMENT, imported=True, imported_for=tenant) for tenant in (b"alice", b"bob")
        )
        packed = await exchange(thread, computed).exported([DOCUMENT])
        async with target.importing([for_alice], len(packed), "edge") as received:
            await received(packed)
        asked = [[for_alice], [for_bob], [replace(DOCUMENT, imported=True)]]
        assert await target.cached(asked, "edge") == [True, False, False]
        assert await target.cached(asked, "another edge") == [False, False, False]
        await asyncio.gather(store.close(), computed.close())


async def forged(
    thread: EngineThread,
    clean: DocumentStore,
    target: KvTransfer,
    known: tuple[int, ...],
    other: tuple[int, ...],
) -> None:
    """Mallory sends the keys and values of `other` as those of `known`, which passes all checks."""
    kept, model = thread.engine.kv_files, await target.model()
    assert kept is not None
    async with clean.held([StoredText(other)]) as (held,):
        tensors = await thread.call(lambda: kept.export(held))
    packed = kept.pack(tensors, document_origin(model.weights, model.vocabulary_hash, known))
    async with target.importing([DOCUMENT], len(packed), "mallory") as received:
        await received(packed)


async def test_deleting_a_document_takes_its_imports_too() -> None:
    engine = pair("llama").engine
    async with engine_thread(engine) as thread:
        source, target = DocumentStore(thread, BUDGET), DocumentStore(thread, BUDGET)
        for holder in ("one", "two"):
            await sent(exchange(thread, source), exchange(thread, target), "text 0", holder)
        assert await target.forget([DOCUMENTS[0]]) == 1
        for who in ("one", "two"):
            assert not target.has(StoredText(DOCUMENTS[0], Tenant(who)))
        assert target.bytes_in_use == 0
        await source.close()


async def test_several_documents_travel_as_one_sequence_and_are_forgotten_with_each(
    tmp_path: Path,
) -> None:
    """Before, only single documents could be sent, whose keys and values know nothing of what
    stands before them. What is joined is on no disk: a deletion would not find it there."""
    engine = pair("llama").engine
    joined = (*DOCUMENTS[0], *DOCUMENTS[1])
    sequence = [ContextDocument(f"text {number}", 0.0, imported=True) for number in range(2)]
    async with engine_thread(engine) as thread:
        alone = DocumentStore(thread, BUDGET)
        source = DocumentStore(thread, BUDGET, files_in(tmp_path, engine))
        target = DocumentStore(thread, BUDGET)
        giving, taking = exchange(thread, source), exchange(thread, target)
        packed = await giving.exported(sequence)
        async with taking.importing(sequence, len(packed), "me") as received:
            await received(packed)
        assert await taking.cached([sequence, sequence[:1]], "me") == [True, False]
        expected = await logits_after_joined(alone, DOCUMENTS[:2])
        found = await logits_after(target, [joined], ME)
        # In one piece there, in two here, between which an engine rounds.
        assert np.abs(found - expected).max() < 1e-5 * np.abs(expected).max()
        first = len(DOCUMENTS[0]) * engine.kv_bytes_per_token
        assert source.bytes_in_use == first, "what was asked together is for one request"
        assert await target.forget([DOCUMENTS[1]]) == 1
        assert target.bytes_in_use == 0
        await asyncio.gather(*(store.close() for store in (alone, source, target)))
        assert len(list(tmp_path.iterdir())) == 1, "the first, as it is alone"
    assert engine.kv_bytes_in_use == 0


async def test_room_is_held_from_the_announcement_on() -> None:
    engine = pair("llama").engine
    size = len(DOCUMENTS[0]) * engine.kv_bytes_per_token
    async with engine_thread(engine) as thread:
        source, target = DocumentStore(thread, BUDGET), DocumentStore(thread, size)
        giving, taking = exchange(thread, source), exchange(thread, target)
        packed = await giving.exported([DOCUMENT])
        async with taking.importing([DOCUMENT], len(packed), "me"):
            assert target.bytes_in_use == size
            with pytest.raises(ResourceExhausted, match="document kv budget"):
                await logits_after(target, [DOCUMENTS[1]])
        assert target.bytes_in_use == 0
        await logits_after(target, [DOCUMENTS[1]])
        await sent(giving, taking, "text 0")  # the other one goes
        assert target.bytes_in_use == size
        assert target.has(StoredText(DOCUMENTS[0], ME))
        assert not target.has(StoredText(DOCUMENTS[1], ME))
        await asyncio.gather(source.close(), target.close())
    assert engine.kv_bytes_in_use == 0


async def test_what_was_computed_meanwhile_or_deleted_is_not_kept_twice() -> None:
    engine = pair("llama").engine
    size = len(DOCUMENTS[0]) * engine.kv_bytes_per_token
    async with engine_thread(engine) as thread:
        source, target = DocumentStore(thread, BUDGET), DocumentStore(thread, BUDGET)
        giving, taking = exchange(thread, source), exchange(thread, target)
        packed = await giving.exported([DOCUMENT])
        async with taking.importing([DOCUMENT], len(packed), "me") as received:
            await logits_after(target, [DOCUMENTS[0]])
            await received(packed)
        assert target.bytes_in_use == size
        assert await target.forget([DOCUMENTS[0]]) == 1
        await sent(giving, taking, "text 0")
        assert target.bytes_in_use == 0
        assert not target.has(StoredText(DOCUMENTS[0], ME))
        await source.close()
    assert engine.kv_bytes_in_use == 0


@pytest.mark.parametrize("wrong", [float("nan"), float("inf")])
async def test_numbers_that_are_not_finite_are_refused(wrong: float) -> None:
    engine = pair("llama").engine
    kept, ids = engine.kv_files, DOCUMENTS[0]
    origin = document_origin("w", "v", ids)
    async with engine_thread(engine) as thread:
        store = DocumentStore(thread, BUDGET)
        async with store.held([StoredText(ids)]) as (held,):
            tensors = await thread.call(lambda: kept.export(held))
        found = kept.unpack(kept.pack(tensors, origin), origin)
        pairs = zip(found.values, tensors.values, strict=True)
        assert all(torch.equal(*pair_) for pair_ in pairs)
        found.values[1][0, 2, 3] = wrong
        with pytest.raises(KvFileRefused, match="not finite"):
            kept.unpack(kept.pack(KvTensors(found.keys, found.values), origin), origin)
        await store.close()


def test_keys_and_values_are_of_one_model_whatever_it_is_called() -> None:
    model = KvModel("weights of the first", "vocabulary", "first")
    model.check_used_by(KvModel("weights of the first", "vocabulary", "another name"))
    for other in (
        KvModel("weights of another", "vocabulary", "first"),
        KvModel("weights of the first", "another vocabulary", "first"),
    ):
        with pytest.raises(FailedPrecondition) as refused:
            model.check_used_by(other)
        words = str(refused.value)
        assert words.startswith("document_kv: of another model; fetch the documents' text instead")
        assert "here are of first (weights weights of t, vocabulary vocabulary)" in words
        assert f"(weights {other.weights[:12]}, vocabulary {other.vocabulary_hash[:12]})" in words
    with pytest.raises(FailedPrecondition, match=r"of a model \(weights not named, vocabulary v\)"):
        KvModel("", "v").check_used_by(KvModel("w", "v"))


def test_a_chunk_of_keys_and_values_fits_the_smallest_message_that_a_service_takes() -> None:
    """64 KiB with what surrounds the chunk. Other releases send and expect chunks of this size."""
    assert KV_PART_BYTES == 61_440
