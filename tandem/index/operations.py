"""The changes of a corpus as bytes: what the log and the snapshots hold.

A payload is the length of a JSON header, the header, and the vectors of all its contents, float32,
little endian. Invariant: decode(encode(changes)) equals them bit for bit. Must not import grpc.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from tandem.index.documents import Content
from tandem.index.errors import FolderDamaged

_LENGTH = struct.Struct("<I")


@dataclass(frozen=True, slots=True)
class Put:
    """`document_id` now means this content. `content` is None when the corpus has it already."""

    document_id: str
    content_hash: str
    content: Content | None = None


@dataclass(frozen=True, slots=True)
class Remove:
    """The document is gone."""

    document_id: str


Operation = Put | Remove


def encode(operations: Iterable[Operation], dimension: int) -> bytes:
    """A payload. Every vector must have `dimension` entries."""
    header: list[Any] = []
    vectors: list[bytes] = []
    for operation in operations:
        if isinstance(operation, Remove):
            header.append({"remove": operation.document_id})
            continue
        entry: dict[str, Any] = {"put": operation.document_id, "hash": operation.content_hash}
        if (content := operation.content) is not None:
            assert content.vectors.shape == (len(content.spans), dimension)
            entry |= {"title": content.title, "text": content.text, "spans": list(content.spans)}
            vectors.append(content.vectors.astype("<f4", copy=False).tobytes())
        header.append(entry)
    text = json.dumps(header, separators=(",", ":")).encode()
    return b"".join([_LENGTH.pack(len(text)), text, *vectors])


def decode(payload: bytes, dimension: int) -> list[Operation]:
    """The operations. FolderDamaged when the payload is none of this dimension."""
    try:
        (length,) = _LENGTH.unpack_from(payload)
        header = json.loads(payload[_LENGTH.size : _LENGTH.size + length])
        rows = np.frombuffer(payload, "<f4", offset=_LENGTH.size + length)
        vectors = rows.reshape(-1, dimension) if dimension else rows
        return _operations(header, vectors, dimension)
    except (KeyError, TypeError, ValueError, struct.error) as error:
        raise FolderDamaged(f"a record of another version or dimension: {error}") from error


def _operations(header: list[dict[str, Any]], vectors: Any, dimension: int) -> list[Operation]:
    operations: list[Operation] = []
    used = 0
    for entry in header:
        if "remove" in entry:
            operations.append(Remove(entry["remove"]))
            continue
        content = None
        if "text" in entry:
            spans = [(start, end) for start, end in entry["spans"]]
            end = used + len(spans) if dimension else 0
            if end > len(vectors):
                raise ValueError("vectors are missing")
            own = vectors[used:end] if dimension else np.empty((len(spans), 0), np.float32)
            used = end
            content = Content(
                entry["hash"], entry["title"], entry["text"], spans, own.astype(np.float32)
            )
        operations.append(Put(entry["put"], entry["hash"], content))
    if used != len(vectors):
        raise ValueError("vectors are left over")
    return operations
