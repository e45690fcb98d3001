"""The store of documents: the interface that a folder (SQLite) and a server (PostgreSQL) implement.

A store holds contents, each text of a collection once with its chunks and vectors, and the ids,
each of one owner, that mean them; a content without an id is deleted. Chunks are numbered, and no
number is used for another chunk while the store is open. Vectors are searched in memory (`dense`):
`changes` says what to add and remove.
Every text and every vector is stored with a checksum, and `checked_text` and `checked_vectors`
compare it whenever one is read.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from tandem.index.chunking import Span
from tandem.index.owners import (
    OPERATOR,
    Collection,
    DocumentQuota,
    ListedDocument,
    OwnerUsage,
    collection_of,
)
from tandem.index.records import Content, FolderDamaged, FolderMismatch, Vectors

Numbers = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Manifest:
    """Settings that a store was created with; two settings never mix in one. `embedding` names the
    model and its content, or is "lexical" with dimension 0."""

    embedding: str
    dimension: int
    max_tokens: int
    overlap_tokens: int

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    def check_wanted(self, wanted: Manifest, place: str) -> None:
        """Raise FolderMismatch if this manifest, which is stored at `place`, is not the one that is
        wanted."""
        if (self.embedding, self.dimension) != (wanted.embedding, wanted.dimension):
            wanted_settings = f"not of {wanted.embedding} (dimension {wanted.dimension})"
            stored_settings = f"vectors of {self.embedding} (dimension {self.dimension})"
            advice = "use the same embedding or another folder"
            raise FolderMismatch(f"{place}: has {stored_settings}, {wanted_settings}; {advice}")
        if self != wanted:
            wanted_settings = f"not of {wanted.max_tokens} with {wanted.overlap_tokens}"
            stored_settings = (
                f"chunks of {self.max_tokens} tokens with {self.overlap_tokens} shared"
            )
            raise FolderMismatch(
                f"{place}: has {stored_settings}, {wanted_settings}; use the same or another folder"
            )


@dataclass(frozen=True, slots=True, eq=False)
class Change:
    """Chunks of one collection to search from now on, `vectors` (chunks, dimension), and chunks of
    it to forget."""

    collection: Collection
    numbers: Numbers
    vectors: Vectors
    gone: Numbers


@dataclass(frozen=True, slots=True)
class StoredChunk:
    """One chunk of a StoredText. `start` is an offset in characters."""

    document_id: str
    title: str
    chunk: int
    start: int
    text: str
    owner: str


@dataclass(frozen=True, slots=True)
class StoredText:
    """A content under the oldest id that means it; all of them are of one owner."""

    owner: str
    document_id: str
    title: str
    text: str
    spans: Sequence[Span]

    def chunk(self, number: int) -> StoredChunk:
        start, end = self.spans[number]
        text = self.text[start:end]
        return StoredChunk(
            document_id=self.document_id,
            title=self.title,
            chunk=number,
            start=start,
            text=text,
            owner=self.owner,
        )


@dataclass(frozen=True, slots=True)
class StoreSize:
    """`pending_bytes` are durable, but not yet in the database's main file; `generation` is the
    number of changes so far."""

    documents: int
    texts: int
    bytes: int
    pending_bytes: int
    generation: int


class IndexStore(Protocol):
    """Thread-safe. What cannot be read back in full is FolderDamaged, in every method."""

    @property
    def manifest(self) -> Manifest:
        """The settings that it was created with."""

    def hashes(self, document_ids: Iterable[str], owner: str = OPERATOR) -> dict[str, str]:
        """Return the content hashes of those of these ids that `owner` has."""

    def sizes(self, document_ids: Iterable[str], owner: str = OPERATOR) -> dict[str, int]:
        """Return the sizes in bytes, as quotas count them, of those of these ids that `owner`
        has."""

    def holds(self, content_hashes: Iterable[str]) -> set[str]:
        """Return those of these contents that are stored."""

    def commit(
        self,
        puts: Mapping[str, str],
        contents: Sequence[Content],
        removed: Iterable[str],
        owner: str = OPERATOR,
        quota: DocumentQuota | None = None,
    ) -> bool:
        """Remove ids and put others, durably and together.

        Args:
            puts: for each id of `owner`, the hash of its content, which is one of `contents` or
                stored already.
            removed: ids of `owner`, removed first.
            quota: the most that the owner may have, whatever others commit at the same time.

        Returns:
            False, with nothing changed, when a content is neither in `contents` nor stored, as
            another writer removed it.

        Raises:
            ResourceExhausted: the disk is full; nothing is changed.
            DocumentQuotaExceeded: the owner would have more than `quota`; nothing is changed.
        """

    def changes(self) -> Iterator[Change]:
        """Yield what changed since the last call; everything at the first. What is new comes before
        what is gone from another collection. One caller at a time."""

    def rank(self, query: str, count: int, tenant: str = OPERATOR) -> list[tuple[int, float]]:
        """Return at most `count` chunks that `tenant` may find and that share a word with `query`,
        best first: their numbers, and how much of it they cover (`lexical.coverage`). Statistics of
        words are of the chunks that the tenant may find, and of no others."""

    def chunks(self, numbers: Iterable[int]) -> dict[int, StoredChunk]:
        """Return the chunks of these numbers; one that was removed meanwhile is left out."""

    def documents(
        self, document_ids: Iterable[str] | None = None, owner: str | None = OPERATOR
    ) -> Iterator[tuple[str, Content]]:
        """Yield ids, of these or of all, with their contents, in the order in which they were put;
        `owner` None: everybody's."""

    def listed(self, owner: str, after: str, count: int) -> list[ListedDocument]:
        """Return at most `count` of the owner's documents by name, those that come after
        `after`."""

    def usage(self, owner: str) -> OwnerUsage:
        """Return what the owner has stored."""

    def size(self) -> StoreSize:
        """Return the size of the store; never waits for the disk."""

    def compact(self) -> None:
        """Free the space of deleted documents. Raises ResourceExhausted."""

    def watch(self, changed: Callable[[], None]) -> None:
        """Call `changed`, until `close` and in a thread of its own, when another process may have
        changed something. A store that one process owns never does."""

    def close(self) -> None:
        """Close the store; calling it again does nothing."""


Numbered = tuple[int, Content]
"""The number of its first chunk, and a content."""

TextRow = tuple[str, bytes, bytes, bytes, int]
"""Content hash, title, text, spans, and the checksum of these four."""
VectorRow = tuple[bytes, int]
"""Vectors, and the checksum of them and the content hash."""


def text_row(content: Content) -> TextRow:
    """Return title, text and spans as they are stored."""
    title = content.title.encode()
    text = content.text.encode()
    spans = np.array(content.spans, "<u4").tobytes()
    checksum = _checksum(content.content_hash.encode(), title, text, spans)
    return content.content_hash, title, text, spans, checksum


def vector_row(content: Content, dimension: int) -> VectorRow:
    """Return the vectors as they are stored: float32, little endian, row by row."""
    assert content.vectors.shape == (len(content.spans), dimension)
    vectors = content.vectors.astype("<f4", copy=False).tobytes()
    return vectors, _checksum(content.content_hash.encode(), vectors)


def checked_text(row: Sequence[Any], place: str) -> tuple[str, str, list[Span]]:
    """Return (title, text, spans) of a TextRow. Raises FolderDamaged."""
    content_hash, title, text, spans, checksum = row
    if _checksum(str(content_hash).encode(), title, text, spans) != checksum:
        raise FolderDamaged(f"{place}: the text {content_hash} is damaged; restore it from a copy")
    try:
        pairs = np.frombuffer(spans, "<u4").reshape(-1, 2).tolist()
        return title.decode(), text.decode(), [(start, end) for start, end in pairs]
    except ValueError as error:
        raise FolderDamaged(f"{place}: the text {content_hash} is none: {error}") from error


def checked_vectors(row: Sequence[Any], content_hash: str, dimension: int, place: str) -> Vectors:
    """Return (chunks, dimension) of a VectorRow. Raises FolderDamaged."""
    vectors, checksum = row
    if _checksum(content_hash.encode(), vectors) != checksum:
        why = f"the vectors of {content_hash} are damaged; restore them from a copy"
        raise FolderDamaged(f"{place}: {why}")
    if len(vectors) % (4 * max(1, dimension)):
        raise FolderDamaged(f"{place}: the vectors of {content_hash} have another dimension")
    return np.frombuffer(vectors, "<f4").reshape(-1, max(1, dimension)).astype(np.float32)


def checked_content(row: Sequence[Any], dimension: int, place: str) -> Content:
    """Read a content from a TextRow and a VectorRow behind it. Raises FolderDamaged."""
    title, text, spans = checked_text(row[:5], place)
    vectors = checked_vectors(row[5:], row[0], dimension, place)
    if dimension and len(vectors) != len(spans):
        raise FolderDamaged(f"{place}: {row[0]} has {len(vectors)} vectors for {len(spans)} chunks")
    return Content(
        content_hash=row[0],
        title=title,
        text=text,
        spans=spans,
        vectors=vectors.reshape(len(spans), dimension),
    )


def room_of(content: Content) -> int:
    """Return how many numbers a content takes up; one at least, as its first number is its key."""
    return max(1, len(content.spans))


def changes_of(
    new: Sequence[Numbered], gone: Mapping[int, tuple[Collection, int]], dimension: int
) -> Iterator[Change]:
    """Yield the changes of each collection's chunks. All that is new comes first, so a document
    that moves to another collection is always in one of them.

    Args:
        new: the contents that were added, each with the number of its first chunk.
        gone: the number of the first chunk of each content that was removed, with its collection
            and its count of chunks.
        dimension: the length of a vector."""
    nothing = np.empty(0, np.int64)
    no_vectors = np.empty((0, dimension), np.float32)
    added: dict[Collection, list[Numbered]] = {}
    left: dict[Collection, dict[int, int]] = {}
    for first, content in new:
        added.setdefault(content.collection, []).append((first, content))
    for first, (collection, count) in gone.items():
        left.setdefault(collection, {})[first] = count
    for collection, contents in added.items():
        numbers = _ranges((first, len(content.spans)) for first, content in contents)
        vectors = np.concatenate([content.vectors for _, content in contents])
        yield Change(collection, numbers, vectors, nothing)
    for collection, counts in left.items():
        yield Change(collection, nothing, no_vectors, _ranges(counts.items()))


def _ranges(ranges: Iterable[tuple[int, int]]) -> Numbers:
    """Return the numbers of (first, count) ranges."""
    numbers = [np.arange(first, first + count) for first, count in ranges]
    return np.concatenate([*numbers, np.empty(0, np.int64)])


def document_checksum(owner: str, document_id: str, first: int) -> int:
    """Return the checksum of a document's row. The operator's have no owner in it, as before there
    were owners."""
    return row_checksum(*([owner] if owner else []), document_id, first)


def check_owned(owner: str, content_hash: str, place: str) -> None:
    """Raise FolderDamaged if a document refers to a text that is not its owner's. This program
    never writes one like that."""
    if collection_of(content_hash).owner != owner:
        why = f"a document of '{owner}' means {content_hash}, which is not its owner's"
        raise FolderDamaged(f"{place}: {why}; restore it from a copy")


def row_checksum(*fields: object) -> int:
    return _checksum(*(str(field).encode() for field in fields))


def _checksum(*parts: object) -> int:
    """Return a CRC-32 of the parts, which notices any flipped bit; their lengths are included, to
    keep neighbours apart. Damage can turn bytes into a value of another type: then the result is
    -1, which no stored checksum equals."""
    checksum = 0
    for part in parts:
        if not isinstance(part, bytes):
            return -1
        checksum = zlib.crc32(part, zlib.crc32(len(part).to_bytes(8, "little"), checksum))
    return checksum
