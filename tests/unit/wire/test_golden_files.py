"""The stored formats as they are kept: a golden file of every version opens and holds what it held.

`golden/stored` has a SQLite folder's database, a file of keys and values, and a file of keys. A
changed format must read the old files as before (for the database: by a migration). Then keep a
file of the new version beside them: `python -m tests.unit.wire.test_golden_files` writes those that
are missing.
"""

from __future__ import annotations

import json
import shutil
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from tandem.backends.interface import KvOrigin
from tandem.backends.torch.kv_files import KvTensors, TorchKvFiles
from tandem.index.chunking import Chunking
from tandem.index.document_index import DocumentIndex
from tandem.index.records import Document
from tandem.index.sqlite_database import MIGRATIONS
from tandem.index.sqlite_store import DATABASE, verify_folder
from tandem.net.access_keys import key_line, new_key, parse_keys
from tandem.net.scopes import Caller, Scope
from tests.unit.backends.reference_models import pair
from tests.unit.index.word_vectors import WordVectors

STORED = Path(__file__).parent / "golden" / "stored"
CHUNKING = Chunking(16, 4)
DOCUMENTS = (
    Document("a", "ten", "a title"),
    Document("b", "four five"),
    Document("copy of b", "four five"),
    Document("long", "six seven eight nine " * 8),
)
OWNED = (
    (Document("b", "one of ann's", owner="ann"),),
    (Document("b", "two that bob shares", owner="bob", shared=True),),
)
"""Since version 2."""
ORIGIN = KvOrigin("weights", "vocabulary", "document", 3)
KEYS = {"edge-1": new_key(bytes(range(32))), "edge.2": new_key(bytes(32))}
SCOPES = frozenset({Scope.VERIFY, Scope.GENERATE})
ADVICE = "a stored format has changed: read the kept file as before, and keep a new one beside it"


def test_a_database_of_every_schema_version_opens_with_what_it_holds(tmp_path: Path) -> None:
    kept = sorted(STORED.glob("documents.v*.db"))
    assert len(kept) == len(MIGRATIONS), "keep a golden file of each version of the schema"
    for path in kept:
        folder = tmp_path / path.stem
        folder.mkdir()
        shutil.copy(path, folder / DATABASE)
        owned = 0 if path.name == "documents.v1.db" else len(OWNED)
        assert contents(folder) == json.loads(path.with_suffix(".json").read_text()), ADVICE
        assert verify_folder(folder).documents == len(DOCUMENTS) + owned


def test_a_file_of_keys_and_values_is_read() -> None:
    for path in STORED.glob("kv.v*.safetensors"):
        found = kv_files().unpack(path.read_bytes(), ORIGIN)
        for tensor, expected in zip(
            (*found.keys, *found.values), (*TENSORS.keys, *TENSORS.values), strict=True
        ):
            assert torch.equal(tensor, expected), ADVICE


def test_a_file_of_keys_lets_its_holders_in() -> None:
    ring = parse_keys((STORED / "keys.v2.txt").read_text())
    for holder, key in KEYS.items():
        assert ring.caller(key) == Caller(holder, SCOPES), ADVICE
    assert ring.caller(new_key(b"x" * 32)) is None


def test_each_format_is_kept() -> None:
    assert {path.name.split(".")[0] for path in STORED.iterdir()} == {"documents", "keys", "kv"}


def contents(folder: Path) -> Any:
    """Everything that a search can find, in JSON's types."""
    with closing(DocumentIndex(folder, WordVectors(8), CHUNKING)) as index:
        texts = [
            {
                "title": content.title,
                "text": content.text,
                "hash": content.content_hash,
                "spans": [list(span) for span in content.spans],
                "vectors": content.vectors.astype("<f4").tobytes().hex(),
            }
            for content in index.contents()
        ]
        hits = [asdict(hit) for hit in index.search("nine", 2)]
        found = {"texts": texts, "ids": index.texts(), "found": [hit["text"] for hit in hits]}
        for owner in ("ann", "bob"):
            if texts_of := index.texts(owner):
                found[owner] = texts_of
        return found


def kv_files() -> TorchKvFiles:
    files = pair("llama").engine.kv_files
    assert isinstance(files, TorchKvFiles)
    return files


def tensors() -> KvTensors:
    """Of three tokens in a small model: numbers that say where they belong."""
    layers = range(3)
    shape = (2, ORIGIN.tokens, 16)
    count = 2 * ORIGIN.tokens * 16
    made = [torch.arange(count).reshape(shape) + 1000.0 * layer for layer in range(6)]
    return KvTensors([made[layer] for layer in layers], [made[3 + layer] for layer in layers])


TENSORS = tensors()


def keep_missing() -> None:
    """Write the files of the newest versions, where there are none."""
    STORED.mkdir(parents=True, exist_ok=True)
    database = STORED / f"documents.v{len(MIGRATIONS)}.db"
    if not database.exists():
        folder = STORED / "new"
        with closing(DocumentIndex(folder, WordVectors(8), CHUNKING)) as index:
            index.add(DOCUMENTS)
            for documents in OWNED:
                index.add(documents)
        found = contents(folder)
        shutil.move(folder / DATABASE, database)
        shutil.rmtree(folder)
        database.with_suffix(".json").write_text(json.dumps(found, indent=1) + "\n")
    if not (kv := STORED / "kv.v1.safetensors").exists():
        kv.write_bytes(kv_files().pack(TENSORS, ORIGIN))
    if not (keys := STORED / "keys.v2.txt").exists():
        lines = [key_line(holder, key, SCOPES) for holder, key in KEYS.items()]
        keys.write_text("\n".join(["# holder, hash", *lines]) + "\n")


if __name__ == "__main__":
    keep_missing()
