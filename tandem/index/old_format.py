"""Reads folders of the format before SQLite (manifest version 1), to import them.

A folder has a manifest, snapshots of the whole corpus, and logs of what changed since. Each file is
a sequence of frames: a mark, the payload's length, CRC-32 of payload and head, the payload. That is
a JSON header behind its length, then vectors; the last of a snapshot is JSON alone and counts the
operations. Nothing here writes to such a folder.
"""

import json
import re
import struct
import zlib
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np

from tandem.core.errors import InvalidArgument
from tandem.index.folder import FolderLock
from tandem.index.records import Content, FolderDamaged
from tandem.index.sqlite_store import SqliteStore, read_manifest
from tandem.index.store import Manifest, StoreSize

_MARK = b"\xf6TdmF\r\n\x1a"
_HEAD = struct.Struct("<8sIII")
_FILE = re.compile(r"(snapshot|log)-(\d{8})")
_MOST_DIMENSIONS = 2**16
_DAMAGE = (KeyError, TypeError, ValueError, struct.error)

Corpus = dict[str, Content]
"""Contents by document id, in the order in which the ids were put."""


def import_folder(old: Path, new: Path) -> StoreSize:
    """A new folder with what the folder `old` has, which stays. Raises InvalidArgument, FolderInUse
    or FolderDamaged."""
    if not (old / "manifest.json").is_file():
        raise InvalidArgument("import_folder", f"{old} is no folder of the old format")
    if read_manifest(new) is not None:
        raise InvalidArgument("folder", f"{new} is an index already; name a new folder")
    with closing(FolderLock(old)):
        manifest = _read_manifest(old / "manifest.json")
        corpus = _read_corpus(old, manifest.dimension)
    contents = {content.content_hash: content for content in corpus.values()}
    puts = {document_id: content.content_hash for document_id, content in corpus.items()}
    with closing(SqliteStore(new, manifest)) as store:
        store.commit(puts, list(contents.values()), ())
        return store.size()


def _read_manifest(path: Path) -> Manifest:
    try:
        fields = json.loads(path.read_bytes())
        fields.pop("version", None)
        manifest = Manifest(**fields)
        numbers = (manifest.dimension, manifest.max_tokens, manifest.overlap_tokens)
        if not isinstance(manifest.embedding, str) or not all(type(n) is int for n in numbers):
            raise ValueError("its fields have other types")
        if not (0 <= manifest.dimension <= _MOST_DIMENSIONS):
            raise ValueError(f"dimension {manifest.dimension}")
    except (AttributeError, RecursionError, *_DAMAGE) as error:
        raise FolderDamaged(f"{path}: cannot be read: {error}") from error
    return manifest


def _read_corpus(folder: Path, dimension: int) -> Corpus:
    """From the oldest snapshot that is whole, and every log since: the old writer could go on in
    the log before a snapshot, so what the newest snapshot has is not enough."""
    snapshots, logs = (_generations(folder, kind) for kind in ("snapshot", "log"))
    damaged: list[FolderDamaged] = []
    for base in [0, *snapshots] if 0 in logs or not snapshots else snapshots:
        try:
            corpus = _read_snapshot(folder, base, dimension) if base else {}
            newest = max([base, *logs])
            for number in range(base, newest + 1):
                if number in logs:
                    path = _path(folder, "log", number)
                    for payload in _payloads(path, may_be_torn=number == newest):
                        _apply(payload, corpus, dimension, path)
                elif base or number < newest:
                    raise FolderDamaged(f"{_path(folder, 'log', number)}: is missing")
            return corpus
        except FolderDamaged as error:
            damaged.append(error)
    raise damaged[0]


def _read_snapshot(folder: Path, number: int, dimension: int) -> Corpus:
    path = _path(folder, "snapshot", number)
    corpus: Corpus = {}
    payloads = list(_payloads(path, may_be_torn=False))
    operations = sum(_apply(payload, corpus, dimension, path) for payload in payloads[:-1])
    try:
        expected = json.loads(payloads[-1])["operations"] if payloads else None
    except _DAMAGE:
        expected = None
    if operations != expected:
        raise FolderDamaged(f"{path}: is damaged after {operations} documents")
    return corpus


def _payloads(path: Path, *, may_be_torn: bool) -> Iterator[bytes]:
    """Of every frame. A last record that ends too early was never acknowledged and is left out;
    one that is there in its full length and does not fit its checksum is damaged."""
    content, offset = path.read_bytes(), 0
    while offset < len(content):
        head = content[offset : offset + _HEAD.size]
        if len(head) < _HEAD.size and may_be_torn:
            return
        whole_head = len(head) == _HEAD.size and zlib.crc32(head[:-4]) == _HEAD.unpack(head)[3]
        if not whole_head or not head.startswith(_MARK):
            raise _damaged(path, offset)
        length, checksum = _HEAD.unpack(head)[1:3]
        payload = content[offset + _HEAD.size : offset + _HEAD.size + length]
        if len(payload) < length and may_be_torn:
            return
        if len(payload) < length or zlib.crc32(payload) != checksum:
            raise _damaged(path, offset)
        yield payload
        offset += _HEAD.size + length


def _damaged(path: Path, offset: int) -> FolderDamaged:
    why = f"the record at byte {offset} is damaged; restore the file from a copy"
    return FolderDamaged(f"{path}: {why}, or cut it there and lose what follows")


def _apply(payload: bytes, corpus: Corpus, dimension: int, path: Path) -> int:
    try:
        (length,) = struct.unpack_from("<I", payload)
        header = json.loads(payload[4 : 4 + length])
        rows = np.frombuffer(payload, "<f4", offset=4 + length).reshape(-1, max(1, dimension))
        known = {content.content_hash: content for content in corpus.values()}
        for entry in header:
            rows = _apply_one(entry, corpus, known, rows, dimension)
    except _DAMAGE as error:
        raise FolderDamaged(f"{path}: a record cannot be read: {error!r}") from error
    return len(header)


def _apply_one(
    entry: dict[str, Any], corpus: Corpus, known: dict[str, Content], rows: Any, dimension: int
) -> Any:
    """The vectors that are left."""
    if "remove" in entry:
        corpus.pop(entry["remove"], None)
        return rows
    used = 0
    if "text" in entry:
        spans = [(start, end) for start, end in entry["spans"]]
        used = len(spans) if dimension else 0
        vectors = rows[:used].astype(np.float32).reshape(len(spans), dimension)
        known[entry["hash"]] = Content(entry["hash"], entry["title"], entry["text"], spans, vectors)
    corpus.pop(entry["put"], None)
    corpus[entry["put"]] = known[entry["hash"]]
    return rows[used:]


def _generations(folder: Path, kind: str) -> list[int]:
    matches = [_FILE.fullmatch(path.name) for path in folder.iterdir()]
    return sorted(int(m.group(2)) for m in matches if m is not None and m.group(1) == kind)


def _path(folder: Path, kind: str, number: int) -> Path:
    return folder / f"{kind}-{number:08d}"
