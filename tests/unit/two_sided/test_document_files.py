"""Keys and values on disk: what is torn, damaged or another's is refused and made anew."""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path

import numpy as np
import pytest

from tandem.backends.torch.loading import load_engine
from tandem.core.errors import Unavailable
from tandem.two_sided.decoding.document_store import DocumentStore, Source, StoredText
from tests.unit.backends.reference_models import pair
from tests.unit.backends.tiny_folders import write_model
from tests.unit.two_sided.document_checks import DOCUMENTS, engine_thread, files_in, logits_after

ENGINE = pair("llama").engine
DOCUMENT = DOCUMENTS[0]


async def stored(folder: Path, model: str = "m", name: str = "llama") -> Source:
    """Ask a new store for DOCUMENT; return its source."""
    sources: list[Source] = []
    engine = pair(name).engine
    files = files_in(folder, engine, model)
    async with engine_thread(engine) as thread:
        store = DocumentStore(thread, 2**30, files, sources.append)
        await logits_after(store, [DOCUMENT])
        await store.close()
    return sources[0]


def only_file(folder: Path) -> Path:
    (path,) = folder.iterdir()
    return path


async def test_files_are_their_owner_s_alone(tmp_path: Path) -> None:
    await stored(tmp_path / "kv")
    assert (tmp_path / "kv").stat().st_mode & 0o777 == 0o700
    assert only_file(tmp_path / "kv").stat().st_mode & 0o777 == 0o600


async def test_other_weights_compute_anew(tmp_path: Path) -> None:
    assert await stored(tmp_path) == "computed"
    assert await stored(tmp_path, model="another revision") == "computed"
    assert await stored(tmp_path) == "disk"


@pytest.mark.parametrize(
    ("model", "document", "reason"),
    [
        ("an older revision", DOCUMENT, "model is an older revision, not m"),
        ("m", (*DOCUMENT[:-1], 10), "document is"),
        ("m", DOCUMENT[:-1], "document is"),
    ],
)
async def test_a_stale_file_is_refused_and_replaced(
    tmp_path: Path, model: str, document: tuple[int, ...], reason: str
) -> None:
    """Under the right name, so that only what it says of itself tells."""
    wanted = files_in(tmp_path, ENGINE)
    other = files_in(tmp_path / "other", ENGINE, model)
    async with engine_thread(ENGINE) as thread:
        store = DocumentStore(thread, 2**30, other)
        await logits_after(store, [document])
        await store.close()
    shutil.move(other.path(document), wanted.path(DOCUMENT))
    (tmp_path / "other").rmdir()
    with pytest.raises(Exception, match=reason):
        ENGINE.kv_files.read(wanted.path(DOCUMENT), wanted._origin(DOCUMENT))
    assert await stored(tmp_path) == "computed"
    assert await stored(tmp_path) == "disk"


async def test_another_architecture_s_tensors_are_refused(tmp_path: Path) -> None:
    assert await stored(tmp_path) == "computed"
    assert await stored(tmp_path, name="opt") == "computed"


@pytest.mark.parametrize("share", [0.0, 0.001, 0.1, 0.5, 0.9, 0.9999])
async def test_a_torn_file_is_refused_and_replaced(tmp_path: Path, share: float) -> None:
    await stored(tmp_path)
    path = only_file(tmp_path)
    os.truncate(path, int(path.stat().st_size * share))
    assert await stored(tmp_path) == "computed"
    assert await stored(tmp_path) == "disk"


@pytest.mark.parametrize("zeroed", [True, False])
async def test_a_damaged_file_is_refused(tmp_path: Path, zeroed: bool) -> None:
    await stored(tmp_path)
    path = only_file(tmp_path)
    raw = bytearray(path.read_bytes())
    middle = len(raw) * 3 // 4
    raw[middle : middle + 4] = b"\0\0\0\0" if zeroed else bytes([raw[middle] ^ 1]) + b"abc"
    path.write_bytes(raw)
    assert await stored(tmp_path) == "computed"


async def test_a_disk_that_takes_nothing_costs_no_answer(tmp_path: Path) -> None:
    folder = tmp_path / "gone"
    files = files_in(folder, ENGINE)
    folder.rmdir()
    async with engine_thread(ENGINE) as thread:
        store = DocumentStore(thread, 2**30, files)
        first = await logits_after(store, [DOCUMENT])
        assert np.array_equal(await logits_after(store, [DOCUMENT]), first)
        await store.close()
    assert not folder.exists()


async def test_the_folder_keeps_within_its_budget(tmp_path: Path) -> None:
    files = files_in(tmp_path, ENGINE)
    async with engine_thread(ENGINE) as thread:
        store = DocumentStore(thread, 2**30, files)
        await logits_after(store, DOCUMENTS)
        await store.close()
        sizes = [files.path(document).stat().st_size for document in DOCUMENTS]
        for age, document in zip((30, 10, 20), DOCUMENTS, strict=True):
            then = time.time() - age
            os.utime(files.path(document), (then, then))
        assert files.read(DOCUMENTS[0]) is not None  # read a moment ago: no longer the oldest
        small = files_in(tmp_path, ENGINE, budget=sizes[0] + sizes[1] + sizes[2])
        store = DocumentStore(thread, 2**30, small)
        await logits_after(store, [(*DOCUMENTS[1], 1)])
        await store.close()
    kept = [files.path(document).exists() for document in DOCUMENTS]
    assert kept == [True, True, False]
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) <= sum(sizes)


async def test_nothing_is_left_of_what_is_forgotten(tmp_path: Path) -> None:
    """Not of a file that another model wrote either, nor of one that was being written."""
    files, other = files_in(tmp_path, ENGINE), files_in(tmp_path, ENGINE, model="older")
    gone, stays = DOCUMENTS[:2]
    async with engine_thread(ENGINE) as thread:
        for each in (other, files):
            store = DocumentStore(thread, 2**30, each)
            await logits_after(store, [gone, stays])
            if each is other:
                await store.close()
        half = files.path(gone)
        half.with_name(f"{half.name}.1.tmp").touch()
        assert await store.forget([gone, (9, 9, 9)]) == 1
        assert {path.name for path in tmp_path.iterdir()} == {
            each.path(stays).name for each in (files, other)
        }
        assert store.bytes_in_use == len(stays) * ENGINE.kv_bytes_per_token
        await store.close()


async def test_what_is_forgotten_is_of_use_to_those_who_have_it_and_not_kept_again(
    tmp_path: Path,
) -> None:
    files, sources = files_in(tmp_path, ENGINE), list[Source]()
    async with engine_thread(ENGINE) as thread:
        store = DocumentStore(thread, 2**30, files, sources.append)
        first = await logits_after(store, [DOCUMENT])
        async with store.held([StoredText(DOCUMENT)]):
            await store.forget([DOCUMENT])
            assert np.array_equal(await logits_after(store, [DOCUMENT]), first)
        assert store.bytes_in_use == 0
        # A request that found it before it was deleted.
        assert np.array_equal(await logits_after(store, [DOCUMENT]), first)
        await store.close()
    assert sources == ["computed", "memory", "memory", "computed"]
    assert list(tmp_path.iterdir()) == []


async def test_a_file_that_cannot_be_removed_is_said_to_stay(tmp_path: Path) -> None:
    files = files_in(tmp_path, ENGINE)
    files.path(DOCUMENT).mkdir()
    async with engine_thread(ENGINE) as thread:
        store = DocumentStore(thread, 2**30, files)
        with pytest.raises(Unavailable, match="stay on disk"):
            await store.forget([DOCUMENT])
        await store.close()


async def test_what_a_dead_process_was_writing_is_cleared(tmp_path: Path) -> None:
    for age in (0, 3600):
        path = tmp_path / f"{age}.safetensors.7.tmp"
        path.write_bytes(b"half")
        os.utime(path, (time.time() - age, time.time() - age))
    files_in(tmp_path, ENGINE)
    assert [path.name for path in tmp_path.iterdir()] == ["0.safetensors.7.tmp"]


async def test_bfloat16_is_kept_as_it_is(tmp_path: Path) -> None:
    write_model(tmp_path / "model", "llama")
    engine = load_engine(tmp_path / "model", dtype="bfloat16")
    found = []
    sources: list[Source] = []
    async with engine_thread(engine) as thread:
        for _ in range(2):
            files = files_in(tmp_path / "kv", engine)
            store = DocumentStore(thread, 2**30, files, sources.append)
            found.append(await logits_after(store, [DOCUMENT]))
            await store.close()
    assert sources == ["computed", "disk"]
    assert np.array_equal(found[0], found[1])
