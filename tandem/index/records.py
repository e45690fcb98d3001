"""The values that a store keeps and returns, and its faults: documents, chunks, outcomes, hits."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from tandem.core.errors import InvalidArgument, TandemError
from tandem.index.chunking import Span
from tandem.index.owners import OPERATOR, Collection, collection_of

Vectors = NDArray[np.float32]

MAX_ID_LENGTH = 1024
MAX_TITLE_LENGTH = 1024


@dataclass(frozen=True, slots=True)
class Document:
    """A text under an id of its source's choosing: a path, a URL, a number in a file. Owner and id
    together say which document it is."""

    id: str
    text: str
    title: str = ""
    owner: str = OPERATOR
    shared: bool = False
    """Whether every tenant finds it."""

    @property
    def collection(self) -> Collection:
        """The collection it belongs to."""
        return Collection.of(self.owner, self.shared)

    def validate(self) -> None:
        """Check the fields. Raises InvalidArgument naming a bad one."""
        if not self.id or len(self.id) > MAX_ID_LENGTH:
            raise InvalidArgument(
                "id", f"must have 1…{MAX_ID_LENGTH} characters, has {len(self.id)}"
            )
        if len(self.title) > MAX_TITLE_LENGTH:
            why = f"must have at most {MAX_TITLE_LENGTH} characters, has {len(self.title)}"
            raise InvalidArgument("title", why)
        for field in ("id", "title", "text"):
            try:
                getattr(self, field).encode()
            except UnicodeEncodeError as error:
                raise InvalidArgument(field, "contains an unpaired surrogate") from error

    @property
    def content_hash(self) -> str:
        """Hash of title, text and collection: documents with the same hash are stored and embedded
        once."""
        title = self.title.encode()
        if b"\0" in title:  # which ends it
            title = hashlib.sha256(title).digest()
        digest = hashlib.sha256(title + b"\0" + self.text.encode()).hexdigest()
        return self.collection.content_key(digest)

    @property
    def size(self) -> int:
        """Bytes of title and text, as quotas count them."""
        return len(self.title.encode()) + len(self.text.encode())


@dataclass(frozen=True, slots=True)
class StoredChunk:
    """A chunk under the oldest id that means its text; all of these are of one owner. `start` is
    an offset in characters."""

    document_id: str
    title: str
    chunk: int
    start: int
    text: str
    owner: str


@dataclass(frozen=True, slots=True, eq=False)
class Content:
    """A text as it is indexed: `spans` are its chunks, `vectors` (chunks, dimension) theirs; the
    dimension is 0 without an embedding model. Of a stored content there are no vectors."""

    content_hash: str
    title: str
    text: str
    spans: Sequence[Span]
    vectors: Vectors

    @property
    def collection(self) -> Collection:
        return collection_of(self.content_hash)

    def chunk(self, number: int) -> str:
        """Return the text of one chunk."""
        start, end = self.spans[number]
        return self.text[start:end]

    def indexed_chunk(self, number: int) -> str:
        """Return the text that is embedded and indexed: with the title, since a chunk seldom names
        its subject."""
        return f"{self.title}\n{self.chunk(number)}" if self.title else self.chunk(number)

    def stored_chunk(self, number: int, owner: str, document_id: str) -> StoredChunk:
        """Return one chunk, under this id."""
        return StoredChunk(
            document_id=document_id,
            title=self.title,
            chunk=number,
            start=self.spans[number][0],
            text=self.chunk(number),
            owner=owner,
        )


class Outcome(StrEnum):
    """Outcome of an ingested document. All but REFUSED are durable."""

    ADDED = "added"
    UPDATED = "updated"  # the id had another text, which it lost
    UNCHANGED = "unchanged"  # the id has this very text already
    REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class Hit(StoredChunk):
    """A chunk that was found. `score` orders hits of one search only; `similarity` is the inner
    product with the query, None where it was not embedded; ranks start at 1, None if unranked;
    `coverage`: the share of the query's words that it has, the rare ones weighing more, None where
    it was not found by them. Similarity and coverage mean the same in every collection."""

    score: float
    similarity: float | None
    dense_rank: int | None
    lexical_rank: int | None
    coverage: float | None


@dataclass(frozen=True, slots=True)
class IndexStats:
    """Size of an index. `generation` is the number of changes so far."""

    documents: int
    texts: int
    chunks: int
    log_bytes: int
    """Durable, but not yet in the database's main file."""
    snapshot_bytes: int
    """Of the database's main file, or of a server's tables."""
    generation: int
    dense: str
    """How vectors are found: `flat`, on a server `hnsw`; `none` without an embedding model."""


class FolderInUse(TandemError):
    """Another process has the folder open."""


class FolderMismatch(TandemError):
    """The folder was made with other settings than it is opened with."""


class RankingOutdated(TandemError):
    """A change overtook a search."""


class FolderDamaged(TandemError):
    """Stored documents cannot be read back in full, so none of them is served."""
