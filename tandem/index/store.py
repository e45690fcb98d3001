"""The store of documents: the interface that a folder (SQLite) and a server (PostgreSQL) implement.

A store holds contents, each text of a collection once with its chunks, their words and vectors, and
the ids, each of one owner, that mean them; a content without an id is deleted. Chunks are numbered,
and no number is ever used for another chunk. Every text is stored with a checksum, and
`checked_content` compares it whenever one is read.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Protocol

import numpy as np

from tandem.index.owners import (
    OPERATOR,
    DocumentQuota,
    ListedDocument,
    OwnerUsage,
    collection_of,
)
from tandem.index.records import (
    Content,
    FolderDamaged,
    FolderMismatch,
    IndexStats,
    StoredChunk,
    Vectors,
)


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


@dataclass(frozen=True, slots=True)
class Found:
    """Chunks by number, those that a search may rank. `nearest`: those with the vectors nearest to
    the query's, the nearest first. `similarity`: the inner product of each chunk's vector with the
    query's. `coverage`: how much of the query's words those that have any cover, the best by BM25
    first."""

    nearest: list[int]
    similarity: dict[int, float]
    coverage: dict[int, float]


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

    def find(self, query: str, vector: Vectors | None, count: int, tenant: str = OPERATOR) -> Found:
        """Return at most `count` chunks by words, and as many by vectors where there is one, of
        those that `tenant` may find. Statistics of words are of these, and of no others. `query`
        empty: not by words. Raises RankingOutdated when a change overtook the search."""

    def chunks(self, numbers: Iterable[int]) -> dict[int, StoredChunk]:
        """Return the chunks of these numbers. Raises RankingOutdated for one that was removed
        meanwhile."""

    def documents(
        self, document_ids: Iterable[str] | None = None, owner: str | None = OPERATOR
    ) -> Iterator[tuple[str, Content]]:
        """Yield ids, of these or of all, with their contents without vectors, in the order in which
        they were put; `owner` None: everybody's."""

    def listed(self, owner: str, after: str, count: int) -> list[ListedDocument]:
        """Return at most `count` of the owner's documents by name, those that come after
        `after`."""

    def usage(self, owner: str) -> OwnerUsage:
        """Return what the owner has stored."""

    def stats(self) -> IndexStats:
        """Return how much is stored."""

    def compact(self) -> None:
        """Free the space of deleted documents. Raises ResourceExhausted."""

    def close(self) -> None:
        """Close the store; calling it again does nothing."""


TextRow = tuple[str, bytes, bytes, bytes, int]
"""Content hash, title, text, spans, and the checksum of these four."""


def text_row(content: Content) -> TextRow:
    """Return title, text and spans as they are stored."""
    title = content.title.encode()
    text = content.text.encode()
    spans = np.array(content.spans, "<u4").tobytes()
    checksum = _checksum(content.content_hash.encode(), title, text, spans)
    return content.content_hash, title, text, spans, checksum


def checked_content(row: Sequence[Any], dimension: int, place: str) -> Content:
    """Read a content, without its vectors, from a TextRow. Raises FolderDamaged."""
    content_hash, title, text, spans, checksum = row
    if _checksum(str(content_hash).encode(), title, text, spans) != checksum:
        raise FolderDamaged(f"{place}: the text {content_hash} is damaged; restore it from a copy")
    try:
        pairs = np.frombuffer(spans, "<u4").reshape(-1, 2).tolist()
        return Content(
            content_hash=content_hash,
            title=title.decode(),
            text=text.decode(),
            spans=[(start, end) for start, end in pairs],
            vectors=np.empty((0, dimension), np.float32),
        )
    except ValueError as error:
        raise FolderDamaged(f"{place}: the text {content_hash} is none: {error}") from error


def room_of(content: Content) -> int:
    """Return how many numbers a content takes up; one at least, as its first number is its key."""
    return max(1, len(content.spans))


def numbered_chunks(first: int, content: Content) -> list[tuple[int, str]]:
    """Return the number of each chunk of a content, with the text that is indexed."""
    return [(first + chunk, content.indexed_chunk(chunk)) for chunk in range(len(content.spans))]


def document_checksum(owner: str, document_id: str, first: int) -> int:
    """Return the checksum of a document's row."""
    return row_checksum(owner, document_id, first)


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
