"""Documents' keys and values: computed once, equal however they come, within a budget."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest

from tandem.backends.interface import ForwardRequest, Logits, never
from tandem.core.errors import InvalidArgument, ResourceExhausted
from tandem.testing.scripted import ScriptedEngine, scripted_probs
from tandem.two_sided.decoding.document_store import (
    FORGOTTEN_FOR_S,
    DocumentStore,
    ForgottenDocuments,
    Source,
    StoredText,
)
from tests.unit.backends.reference_models import pair
from tests.unit.two_sided.document_checks import (
    DOCUMENTS,
    PROMPT,
    engine_thread,
    files_in,
    logits_after,
)

BUDGET = 2**30
DEMO_TARGET = Path(__file__).resolve().parents[3] / "models" / "demo-target"


class Counted(ScriptedEngine):
    """A scripted engine that counts the texts it was fed, and may fail."""

    def __init__(self) -> None:
        super().__init__(64, scripted_probs(1, 64), context_length=64)
        self.fed: list[tuple[int, ...]] = []
        self.error: Exception | None = None

    def forward(
        self, batch: Sequence[ForwardRequest], cancelled: Callable[[], bool] = never
    ) -> list[Logits]:
        if self.error:
            raise self.error
        self.fed += [request.token_ids for request in batch]
        return super().forward(batch, cancelled)


@pytest.mark.parametrize("name", ["llama", "mistral", "gemma2", "gpt2"])
async def test_warm_equals_cold_and_what_one_sequence_gives(name: str, tmp_path: Path) -> None:
    models = pair(name)
    engine = models.engine
    async with engine_thread(engine) as thread:
        found = []
        sources: list[Source] = []
        for _ in range(2):
            store = DocumentStore(thread, BUDGET, files_in(tmp_path, engine), sources.append)
            found += [await logits_after(store, DOCUMENTS) for _ in range(2)]
            await store.close()
        assert sources == ["computed"] * 3 + ["memory"] * 3 + ["disk"] * 3 + ["memory"] * 3
        assert engine.kv_bytes_in_use == 0
    for warm in found[1:]:
        assert np.array_equal(warm, found[0])
    for row, document in zip(found[0], DOCUMENTS, strict=True):
        alone = models.logits(document + PROMPT)[-1]
        assert np.abs(row - alone).max() < 1e-5 * np.abs(alone).max()


async def test_one_document_is_computed_once_for_many(counted: Counted) -> None:
    async with engine_thread(counted) as thread:
        store = DocumentStore(thread, BUDGET)
        first, second = DOCUMENTS[:2]
        await asyncio.gather(*(logits_after(store, [first, second, first]) for _ in range(5)))
        assert counted.fed.count(first) == counted.fed.count(second) == 1
        await store.close()
        assert counted.kv_bytes_in_use == 0


async def test_the_least_recently_used_document_goes(counted: Counted) -> None:
    async with engine_thread(counted) as thread:
        store = DocumentStore(thread, budget_bytes=8)
        for document in (DOCUMENTS[0], DOCUMENTS[1], DOCUMENTS[0], DOCUMENTS[1], (1, 2)):
            await logits_after(store, [document])  # the last one needs room of the first
            assert store.bytes_in_use <= 8
        await logits_after(store, [DOCUMENTS[1]])
        assert counted.fed.count(DOCUMENTS[0]) == counted.fed.count(DOCUMENTS[1]) == 1
        await logits_after(store, [DOCUMENTS[0]])
        assert counted.fed.count(DOCUMENTS[0]) == 2
        assert counted.kv_bytes_in_use <= 8


async def test_what_is_held_stays(counted: Counted) -> None:
    async with engine_thread(counted) as thread:
        store = DocumentStore(thread, budget_bytes=7)
        async with store.held([StoredText(DOCUMENTS[0])]) as held:
            with pytest.raises(ResourceExhausted, match="document kv budget: 3 bytes wanted"):
                await logits_after(store, [(1, 2), DOCUMENTS[1]])
            assert store.bytes_in_use == 5
            assert held[0].length == 5
        await logits_after(store, [DOCUMENTS[1]])
        assert store.bytes_in_use == 3


async def test_who_leaves_early_leaves_a_document_behind(counted: Counted) -> None:
    async with engine_thread(counted) as thread:
        store = DocumentStore(thread, budget_bytes=8)
        leaving = asyncio.create_task(logits_after(store, [DOCUMENTS[0]]))
        await asyncio.sleep(0)
        leaving.cancel()
        await asyncio.gather(leaving, return_exceptions=True)
        await logits_after(store, [DOCUMENTS[0]])
        assert counted.fed.count(DOCUMENTS[0]) == 1
        await logits_after(store, [(*DOCUMENTS[1], 1, 2)])  # nothing is held any more
        assert store.bytes_in_use == 5


async def test_a_failed_computation_is_every_waiter_s_error_and_no_document(
    counted: Counted,
) -> None:
    async with engine_thread(counted) as thread:
        store = DocumentStore(thread, BUDGET)
        counted.error = InvalidArgument("token_ids", "the engine's word")
        waiting = (logits_after(store, DOCUMENTS[:1]) for _ in range(3))
        errors = await asyncio.gather(*waiting, return_exceptions=True)
        assert [str(error) for error in errors] == ["token_ids: the engine's word"] * 3
        assert store.bytes_in_use == 0
        counted.error = None
        await logits_after(store, DOCUMENTS[:1])
        await store.close()
        assert counted.kv_bytes_in_use == 0


def test_what_was_forgotten_is_remembered_so_long_and_in_bounded_room() -> None:
    forgotten = ForgottenDocuments(most=2)
    forgotten.add(["a", "b"], now=0)
    forgotten.add(["a"], now=100)
    assert forgotten.has("b", FORGOTTEN_FOR_S - 1)
    assert not forgotten.has("b", FORGOTTEN_FOR_S)
    assert forgotten.has("a", 99 + FORGOTTEN_FOR_S)
    forgotten.add(["c"], now=FORGOTTEN_FOR_S)
    assert not forgotten.has("d", FORGOTTEN_FOR_S), "b is over: there are two"
    forgotten.add(["e", "f"], now=950)
    for document in ("a", "c", "e", "d"):  # too many: nothing is kept for a while
        assert forgotten.has(document, 949 + FORGOTTEN_FOR_S)
        assert not forgotten.has(document, 950 + FORGOTTEN_FOR_S)


@pytest.fixture
def counted() -> Counted:
    return Counted()


async def test_a_tenant_s_keys_and_values_are_nobody_else_s(
    counted: Counted, tmp_path: Path
) -> None:
    """Whether another one has the same text shows neither in what is cached nor in a file, and to
    forget it takes nothing from others."""
    document = DOCUMENTS[0]
    async with engine_thread(counted) as thread:
        for files in (None, files_in(tmp_path, pair("llama").engine)):
            found = list[Source]()
            store = DocumentStore(thread, BUDGET, files, found.append)

            async def sources(
                *owners: str, store: DocumentStore = store, found: list[Source] = found
            ) -> list[Source]:
                found.clear()
                asked = [StoredText(document, owner=owner) for owner in owners]
                async with store.held(asked):
                    return list(found)

            assert await sources("ann") == ["computed"]
            assert store.has(StoredText(document, owner="ann"))
            assert not store.has(StoredText(document))
            assert not store.has(StoredText(document, owner="bob"))
            assert await sources("bob", "", "ann") == ["computed", "computed", "memory"]
            assert counted.fed.count(document) == 3
            assert await store.forget([document], "ann") == 1
            assert not store.has(StoredText(document, owner="ann"))
            assert store.has(StoredText(document))
            assert await sources("", "bob") == ["memory", "memory"]
            assert await store.forget([document], "eve") == 0
            await store.close()
            del counted.fed[:]


async def test_a_tenant_s_files_are_read_and_removed_for_that_tenant(tmp_path: Path) -> None:
    engine = pair("llama").engine
    async with engine_thread(engine) as thread:
        for found in (["computed"] * 2, ["disk"] * 2, ["disk", "computed"]):
            sources = list[Source]()
            store = DocumentStore(thread, BUDGET, files_in(tmp_path, engine), sources.append)
            texts = [StoredText(DOCUMENTS[0], owner=owner) for owner in ("ann", "bob")]
            async with store.held(texts):
                assert sources == found
            await store.close()
            if found == ["disk"] * 2:
                files = files_in(tmp_path, engine)
                assert len(files.remove([DOCUMENTS[0]], "bob")) == 1
                assert files.remove([DOCUMENTS[0]]) == set()
