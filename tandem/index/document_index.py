"""A folder of documents that can be searched: the one thing that callers of this package use.

Invariants: what `add` and `remove` returned from is durable; a search sees only what is durable;
readers never wait for a disk or for embedding. Thread-safe. Must not import grpc.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from tandem.core.errors import InvalidArgument, ResourceExhausted
from tandem.index.chunking import Chunking, chunk_spans, count_pieces
from tandem.index.documents import Content, Document, Hit, IndexStats, Outcome
from tandem.index.embedding import AUTO, LEXICAL, Embedder, load_embedder
from tandem.index.manifest import Manifest, read_manifest, refuse_strangers
from tandem.index.operations import Operation, Put, Remove
from tandem.index.reranking import Reranker
from tandem.index.searcher import Found, Searcher, SearchMode
from tandem.index.storage import Storage
from tandem.telemetry.logging import get_logger

log = get_logger(__name__)

MAX_QUERY_LENGTH = 8192
MAX_HITS = 200
RERANKED = 30
"""Hits that a re-ranker judges, unless more are asked for."""
SNAPSHOT_AFTER_BYTES = 64 * 2**20
"""A log longer than this, and than half the snapshot, is folded into a new snapshot."""


def open_index(
    folder: Path,
    embedding: str = AUTO,
    chunking: Chunking | None = None,
    reranker: Reranker | None = None,
    device: str = "cpu",
    threads: int = 1,
) -> DocumentIndex:
    """The index in `folder`, which is made if need be; `embedding` as of `load_embedder`.

    What is left to chance ("auto", no chunking) is taken from a folder that exists.
    """
    stored = read_manifest(folder)
    if stored is None:
        refuse_strangers(folder)  # before a model is loaded
    if embedding == AUTO and stored is not None and stored.embedding == LEXICAL:
        embedding = LEXICAL
    if chunking is None:
        chunking = Chunking(stored.max_tokens, stored.overlap_tokens) if stored else Chunking()
    chunking.validate()
    return DocumentIndex(folder, load_embedder(embedding, device, threads), chunking, reranker)


class DocumentIndex:
    """Opens on construction; `close` it."""

    def __init__(
        self,
        folder: Path,
        embedder: Embedder | None,
        chunking: Chunking,
        reranker: Reranker | None = None,
        snapshot_after_bytes: int = SNAPSHOT_AFTER_BYTES,
    ) -> None:
        """Raises FolderInUse, FolderMismatch, FolderDamaged or OSError."""
        self._embedder, self._reranker, self._chunking = embedder, reranker, chunking
        self._snapshot_after_bytes = snapshot_after_bytes
        self._writing = threading.Lock()  # one change at a time, from plan to disk
        self._state = threading.Lock()  # corpus and searcher agree
        name = LEXICAL if embedder is None else embedder.name
        self.manifest = Manifest(
            name,
            0 if embedder is None else embedder.dimension,
            chunking.max_tokens,
            chunking.overlap_tokens,
        )
        self._storage = Storage(folder, self.manifest)
        self._searcher = Searcher(self.manifest.dimension)
        self._searcher.change(list(self._storage.corpus.contents.values()), ())

    @property
    def reranker_name(self) -> str:
        """Empty without one."""
        return "" if self._reranker is None else self._reranker.name

    def add(self, documents: Sequence[Document]) -> list[Outcome]:
        """Add or update them, durably and together; what is known already costs nothing.

        Raises InvalidArgument for a bad document and ResourceExhausted for a full disk, with
        nothing changed.
        """
        for document in documents:
            document.validate()
        with self._writing:
            outcomes, operations = self._plan(documents)
            self._commit(operations)
        return outcomes

    def remove(self, document_ids: Sequence[str]) -> list[bool]:
        """Forget them, durably and together; which of them were there."""
        with self._writing:
            known = self._storage.corpus.hash_of
            distinct = dict.fromkeys(name for name in document_ids if name in known)
            there = [name in distinct for name in document_ids]
            self._commit([Remove(name) for name in distinct])
        return there

    def search(
        self,
        query: str,
        count: int = 5,
        mode: SearchMode = SearchMode.HYBRID,
        *,
        rerank: bool = False,
    ) -> list[Hit]:
        """At most `count` chunks, best first; none from an empty index. InvalidArgument names the
        argument."""
        self._check_search(query, count, mode, rerank)
        vector = None
        if self._embedder and mode is not SearchMode.LEXICAL and len(self._searcher):
            vector = self._embedder.embed([query])[0]
        wanted = max(count, RERANKED) if rerank else count
        with self._state:
            found = self._searcher.search(query, vector, wanted, mode)
            hits = [self._hit(one) for one in found]
        return self._reranked(query, hits)[:count] if rerank and hits else hits

    def stats(self) -> IndexStats:
        """How much there is now."""
        corpus = self._storage.corpus
        return IndexStats(
            documents=len(corpus.hash_of),
            texts=len(corpus.contents),
            chunks=len(self._searcher),
            log_bytes=self._storage.log_bytes,
            snapshot_bytes=self._storage.snapshot_bytes,
            generation=self._storage.generation,
            dense=self._searcher.dense_kind,
        )

    def texts(self) -> dict[str, str]:
        """Every document's text by its id."""
        with self._state:
            corpus = self._storage.corpus
            return {name: corpus.contents[h].text for name, h in corpus.hash_of.items()}

    def contents(self) -> list[Content]:
        """Every text that is stored, once."""
        with self._state:
            return list(self._storage.corpus.contents.values())

    def chunk_counts(self) -> dict[str, int]:
        """Number of chunks of every document."""
        with self._state:
            corpus = self._storage.corpus
            return {name: len(corpus.contents[h].spans) for name, h in corpus.hash_of.items()}

    def outdated(self, documents: Iterable[Document]) -> list[str]:
        """The ids that now have another text than the one they are given here."""
        with self._state:
            hash_of = self._storage.corpus.hash_of
            return [
                document.id
                for document in documents
                if hash_of.get(document.id, document.content_hash) != document.content_hash
            ]

    def chunks_of(self, document_ids: Iterable[str]) -> list[str]:
        """Every chunk of these documents, as searches give them."""
        with self._state:
            corpus = self._storage.corpus
            known = {corpus.hash_of[name] for name in document_ids if name in corpus.hash_of}
            contents = [corpus.contents[content_hash] for content_hash in known]
        return [
            content.chunk(number) for content in contents for number in range(len(content.spans))
        ]

    def snapshot(self) -> None:
        """Fold the log into a new snapshot. ResourceExhausted leaves all as it was."""
        with self._writing:
            self._storage.snapshot()

    def wait_until_built(self) -> None:
        """Until no dense index is being built in the background."""
        self._searcher.wait_until_built()

    def close(self) -> None:
        with self._writing:
            self._searcher.close()
            self._storage.close()

    def _plan(self, documents: Sequence[Document]) -> tuple[list[Outcome], list[Operation]]:
        """What became of each document, as if they came one by one, and what there is to do for
        all of them together."""
        corpus = self._storage.corpus
        latest: dict[str, Document] = {}
        hash_of: dict[str, str] = {}
        outcomes: list[Outcome] = []
        for document in documents:
            content_hash = document.content_hash
            before = hash_of.get(document.id, corpus.hash_of.get(document.id))
            if before == content_hash:
                outcomes.append(Outcome.UNCHANGED)
                continue
            outcomes.append(Outcome.ADDED if before is None else Outcome.UPDATED)
            hash_of[document.id], latest[content_hash] = content_hash, document
        wanted = dict.fromkeys(hash_of.values())
        contents = self._contents([latest[h] for h in wanted if h not in corpus.contents])
        operations: list[Operation] = []
        for document_id, content_hash in hash_of.items():
            operations.append(Put(document_id, content_hash, contents.pop(content_hash, None)))
        return outcomes, operations

    def _contents(self, documents: Sequence[Document]) -> dict[str, Content]:
        """Chunked, and embedded all at once."""
        embedder = self._embedder
        count_tokens = count_pieces if embedder is None else embedder.count_tokens
        bare = [
            Content(
                document.content_hash,
                document.title,
                document.text,
                chunk_spans(document.text, self._chunking, count_tokens),
                _NO_VECTORS,
            )
            for document in documents
        ]
        texts = [c.indexed_chunk(number) for c in bare for number in range(len(c.spans))]
        if embedder is None:
            vectors = np.empty((len(texts), 0), np.float32)
        else:
            vectors = embedder.embed(texts)
        ends = np.cumsum([len(content.spans) for content in bare])[:-1]
        parts = np.split(vectors, ends) if bare else []
        return {
            content.content_hash: replace(content, vectors=own)
            for content, own in zip(bare, parts, strict=True)
        }

    def _commit(self, operations: list[Operation]) -> None:
        """To the disk first, then to whoever searches, then perhaps a snapshot."""
        if not operations:
            return
        self._storage.append(operations)
        with self._state:
            new, gone = self._storage.corpus.apply(operations)
            self._searcher.change(new, gone)
        storage = self._storage
        if storage.log_bytes > max(self._snapshot_after_bytes, storage.snapshot_bytes // 2):
            try:
                storage.snapshot()
            except (OSError, ResourceExhausted) as error:  # the log has it all
                log.warning("no snapshot", reason=str(error))

    def _check_search(self, query: str, count: int, mode: SearchMode, rerank: bool) -> None:
        if not query.strip() or len(query) > MAX_QUERY_LENGTH:
            why = f"must have 1…{MAX_QUERY_LENGTH} letters, has {len(query.strip())}"
            raise InvalidArgument("query", why)
        if not 1 <= count <= MAX_HITS:
            raise InvalidArgument("count", f"must be 1…{MAX_HITS}, is {count}")
        if mode is SearchMode.DENSE and self._embedder is None:
            raise InvalidArgument("mode", "dense needs an embedding model; this index is lexical")
        if rerank and self._reranker is None:
            raise InvalidArgument("rerank", "no re-ranking model is loaded")

    def _reranked(self, query: str, hits: list[Hit]) -> list[Hit]:
        """By the cross-encoder's score, which becomes theirs."""
        assert self._reranker is not None
        scores = self._reranker.score(query, [hit.text for hit in hits])
        judged = [replace(hit, score=score) for hit, score in zip(hits, scores, strict=True)]
        return sorted(judged, key=lambda hit: -hit.score)

    def _hit(self, found: Found) -> Hit:
        content = found.content
        return Hit(
            document_id=self._storage.corpus.document_id(content.content_hash),
            title=content.title,
            chunk=found.chunk,
            start=content.spans[found.chunk][0],
            text=content.chunk(found.chunk),
            score=found.score,
            similarity=found.similarity,
            dense_rank=found.dense_rank,
            lexical_rank=found.lexical_rank,
        )


_NO_VECTORS = np.empty((0, 0), np.float32)
