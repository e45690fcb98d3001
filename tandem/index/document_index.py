"""Documents that can be searched: the one thing that callers of this package use.

Invariants: what `add` and `remove` returned from is durable; a search sees only what is durable;
searches wait neither for a commit nor for embedding of documents; a search for a tenant sees the
operator's documents, the tenant's own and what is shared, and depends on no others. Thread-safe.
"""

from __future__ import annotations

import threading
import time
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import accumulate, islice
from pathlib import Path
from typing import cast

import numpy as np

from tandem.core.errors import FailedPrecondition, InvalidArgument, Unavailable
from tandem.core.extras import install_command
from tandem.index.chunking import Chunking, chunk_spans, count_pieces
from tandem.index.embedding import AUTO, LEXICAL, Embedder, load_embedder
from tandem.index.names import clean_name
from tandem.index.owners import (
    OPERATOR,
    DocumentQuota,
    ListedDocument,
    OwnerUsage,
    check_owner,
    check_quota,
)
from tandem.index.records import (
    Content,
    Document,
    Hit,
    IndexStats,
    Outcome,
    RankingOutdated,
    Vectors,
)
from tandem.index.reranking import Reranker
from tandem.index.searcher import SearchMode, candidates, ranked
from tandem.index.store import IndexStore, Manifest

MAX_QUERY_LENGTH = 8192
MAX_HITS = 200
MAX_LISTED = 1000
RERANKED = 30
"""Hits that a re-ranker judges, unless more are asked for."""
UNKNOWN_SHARE = 1 / 3
"""Of a query's tokens that the embedding model may not know; with more, words alone count."""
MOST_OUTDATED = 50
"""Searches whose ranking a change overtook, before one is given up."""
OUTDATED_PAUSE_S = 0.001
EMBEDDED_AT_ONCE = 8
"""Chunks or texts of one step at most."""
TOKENS_AT_ONCE = 256
"""Of one step, which whoever comes next waits for: some hundred milliseconds with MiniLM on one
core, where larger steps are no faster for each token."""

Place = Path | str
"""Where documents are kept: a folder of this machine, or a PostgreSQL server's connection string as
libpq takes it. What either needs is imported when it is used."""


def open_index(
    place: Place,
    embedding: str = AUTO,
    chunking: Chunking | None = None,
    reranker: Reranker | None = None,
    device: str = "cpu",
    threads: int = 1,
) -> DocumentIndex:
    """Open the index at `place`; make it if there is none. `embedding` is as in
    `load_embedder`. An index that exists decides what is left open ("auto", no chunking)."""
    stored = stored_manifest(place)  # raises before a model is loaded
    if embedding == AUTO and stored is not None and stored.embedding == LEXICAL:
        embedding = LEXICAL
    if chunking is None:
        chunking = Chunking(stored.max_tokens, stored.overlap_tokens) if stored else Chunking()
    chunking.validate()
    embedder = load_embedder(embedding, device, threads)
    return DocumentIndex(place, embedder, chunking, reranker)


def _open_store(place: Place, manifest: Manifest) -> IndexStore:
    """Open the store at `place`; make it if there is none."""
    if isinstance(place, Path):
        from tandem.index.sqlite_store import SqliteStore

        return SqliteStore(place, manifest)
    from tandem.index.postgres_store import PostgresStore

    return PostgresStore(place, manifest)


def stored_manifest(place: Place) -> Manifest | None:
    """Return what the store at `place` was made with, None where there is none. Raises what opening
    it would."""
    if isinstance(place, Path):
        from tandem.index import sqlite_store

        return sqlite_store.read_manifest(place)
    try:
        from tandem.index import postgres_database
    except ImportError as error:
        why = f"needs psycopg ({error}): {install_command('postgres')}"
        raise InvalidArgument("dsn", why) from error
    return postgres_database.read_manifest(place)


class Preparation:
    """Contents of documents, made step by step on any thread, one step at a time. Nothing is stored
    and nothing is locked meanwhile."""

    def __init__(
        self, documents: Sequence[Document], chunking: Chunking, embedder: Embedder | None
    ) -> None:
        self.contents: dict[str, Content] = {}
        """By hash, of the documents that are done."""
        self._left = deque(documents)
        self._chunking = chunking
        self._embedder = embedder
        self._chunks: deque[tuple[Content, int]] = deque()
        """Chunks that are to be embedded, in order, by their numbers."""
        self._vectors: list[Vectors] = []
        """Of the chunks so far of the content whose turn it is."""

    def step(self) -> bool:
        """Embed some chunks, of as many documents as they are of; False once all is done. Short
        documents share a batch: one by one they would take several times as long."""
        while self._left and len(self._chunks) < EMBEDDED_AT_ONCE:
            self._chunk(self._left.popleft())
            if self._embedder is None:
                return bool(self._left)
        if self._chunks:
            assert self._embedder is not None, "nothing is embedded for words alone"
            first = islice(self._chunks, EMBEDDED_AT_ONCE)
            texts = [content.indexed_chunk(number) for content, number in first]
            texts = texts[: _of_one_step(self._embedder.count_tokens(texts))]
            for vector in self._embedder.embed(texts):
                content, number = self._chunks.popleft()
                self._vectors.append(vector)
                if number + 1 == len(content.spans):
                    self.contents[content.content_hash] = replace(
                        content, vectors=np.stack(self._vectors)
                    )
                    self._vectors = []
        return bool(self._left or self._chunks)

    def _chunk(self, document: Document) -> None:
        embedder = self._embedder
        count_tokens = count_pieces if embedder is None else embedder.count_tokens
        spans = chunk_spans(document.text, self._chunking, count_tokens)
        dimension = 0 if embedder is None else embedder.dimension
        content = Content(
            content_hash=document.content_hash,
            title=document.title,
            text=document.text,
            spans=spans,
            vectors=np.empty((len(spans) if embedder is None else 0, dimension), np.float32),
        )
        if embedder is None or not spans:
            self.contents[content.content_hash] = content
        else:
            self._chunks.extend((content, number) for number in range(len(spans)))


def _of_one_step(sizes: Iterable[int]) -> int:
    """Return how many of the first texts of so many tokens one step has; one is never too long."""
    ends = accumulate(islice(sizes, EMBEDDED_AT_ONCE))
    return max(1, sum(end <= TOKENS_AT_ONCE for end in ends))


@dataclass(frozen=True, slots=True)
class _Window:
    """Tokens of the text at this place, as many as the model reads at most."""

    place: int
    token_ids: Sequence[int]


class TextEmbedding:
    """Vectors of texts that are not kept, made step by step on any thread, one step at a time.

    A text of more tokens than the model reads is embedded in windows: its vector is their mean,
    weighted by their tokens, at length 1."""

    def __init__(
        self,
        texts: Sequence[str | Sequence[int]],
        embedder: Embedder,
        most_tokens: int = 0,
    ) -> None:
        """Begin with texts, or with their token ids as `plain_token_ids` takes them.

        Args:
            texts: or token ids, each.
            embedder: makes the vectors.
            most_tokens: read so many of the first tokens of each text, and no more than the model
                reads at once; 0: all.

        Raises InvalidArgument for token ids of another tokenizer."""
        self._embedder = embedder
        ids: list[Sequence[int]] = [
            () if isinstance(each, str) else plain_token_ids(each, embedder) for each in texts
        ]
        places = [place for place, each in enumerate(texts) if isinstance(each, str)]
        tokenized = embedder.token_ids([cast("str", texts[place]) for place in places])
        for place, token_ids in zip(places, tokenized, strict=True):
            ids[place] = token_ids
        most = embedder.max_tokens
        if most_tokens:
            ids = [each[: min(most, most_tokens)] for each in ids]
        self.tokens = [len(each) for each in ids]
        """Of each text; those that are read."""
        self._windows = [
            _Window(place, each[begin : begin + most])
            for place, each in enumerate(ids)
            for begin in range(0, max(1, len(each)), most)
        ]
        counts = Counter(window.place for window in self._windows)
        self.windows = [counts[place] for place in range(len(ids))]
        """How many each text has."""
        self.vectors: Vectors = np.zeros((len(ids), embedder.dimension), np.float32)
        """Shape (texts, dimension); undefined until all steps are done."""
        # Like lengths together: padding costs as much as text.
        self._windows.sort(key=lambda window: len(window.token_ids))

    def step(self) -> bool:
        """Embed some windows; False once all is done."""
        count = _of_one_step(len(window.token_ids) for window in self._windows)
        batch = self._windows[:count]
        self._windows = self._windows[count:]
        if not batch:
            return False
        vectors = self._embedder.embed_tokens([window.token_ids for window in batch])
        for window, vector in zip(batch, vectors, strict=True):
            if self.windows[window.place] == 1:
                self.vectors[window.place] = vector
            else:
                self.vectors[window.place] += len(window.token_ids) * vector
        if not self._windows:
            for place, windows in enumerate(self.windows):
                if windows > 1:
                    self.vectors[place] /= np.linalg.norm(self.vectors[place]) or 1.0
        return bool(self._windows)


def is_marked(token_ids: Sequence[int], embedder: Embedder) -> bool:
    """Return whether token ids are in the embedder's marks, at both ends: a mark at one end may be
    a letter of another tokenizer."""
    before, after = embedder.marks
    ends = tuple(token_ids[: len(before)]), tuple(token_ids[len(token_ids) - len(after) :])
    long_enough = len(token_ids) >= len(before) + len(after)
    return bool(before and after) and long_enough and ends == (before, after)


def plain_token_ids(token_ids: Sequence[int], embedder: Embedder) -> Sequence[int]:
    """Return token ids of the embedder's tokenizer without the marks around them.

    Raises InvalidArgument("input") for ids without the marks, which may come from any tokenizer:
    their vector would be that of another text. Ids of tiktoken, which some clients send, have no
    marks."""
    if not is_marked(token_ids, embedder):
        raise InvalidArgument("input", _foreign_ids(embedder))
    before, after = embedder.marks
    inner = token_ids[len(before) : len(token_ids) - len(after)]
    if (largest := max(token_ids)) >= embedder.vocabulary_size:
        why = f"token id {largest} is outside the vocabulary of {embedder.vocabulary_size}"
        raise InvalidArgument("input", f"{why}; {_foreign_ids(embedder)}")
    return inner


def _foreign_ids(embedder: Embedder) -> str:
    before, after = embedder.marks
    why = "this model cannot tell its own token ids from those of another tokenizer"
    if before and after:
        why = (
            "token ids must be those of the embedding model's own tokenizer, with its special"
            f" tokens: {list(before)} before the text and {list(after)} after it"
        )
    advice = "send texts instead (LangChain's OpenAIEmbeddings: check_embedding_ctx_length=False)"
    cure = (
        "give the retriever tiktoken and the folder with its vocabulary cl100k_base"
        " (TIKTOKEN_CACHE_DIR)"
    )
    return f"{why}; {advice}, or {cure}"


class DocumentIndex:
    """Opens on construction; `close` it."""

    def __init__(
        self,
        place: Place,
        embedder: Embedder | None,
        chunking: Chunking,
        reranker: Reranker | None = None,
    ) -> None:
        """Open the index at `place`. Raises the errors of `tandem.index.records`,
        ResourceExhausted, Unavailable, OSError."""
        self._embedder = embedder
        self._reranker = reranker
        self._chunking = chunking
        self._writing = threading.Lock()  # one change at a time, from plan to disk
        self.manifest = Manifest(
            LEXICAL if embedder is None else embedder.name,
            0 if embedder is None else embedder.dimension,
            chunking.max_tokens,
            chunking.overlap_tokens,
        )
        self._store = _open_store(place, self.manifest)

    @property
    def reranker_name(self) -> str:
        """Empty without one."""
        return "" if self._reranker is None else self._reranker.name

    def add(
        self,
        documents: Sequence[Document],
        quota: DocumentQuota | None = None,
        prepared: Mapping[str, Content] | None = None,
    ) -> list[Outcome]:
        """Add or update documents of one owner, durably and together; what is known already costs
        nothing. `quota`: the most that a tenant may have. `prepared`: contents by their hashes, of
        a `preparation`; others are chunked and embedded here, and hold up whoever else writes. With
        nothing changed, raises InvalidArgument for a bad document, DocumentQuotaExceeded, and
        ResourceExhausted for a full disk."""
        owner = documents[0].owner if documents else OPERATOR
        for document in documents:
            document.validate()
            if document.owner != owner:
                raise InvalidArgument("owner", "all documents of a change must have the same owner")
        check_owner(owner)
        if owner != OPERATOR:
            documents = [replace(document, id=clean_name(document.id)) for document in documents]
        else:
            quota = None
        with self._writing:
            while True:
                outcomes, puts, wanted = self._plan(documents, owner)
                if not puts:
                    break
                if quota is not None:  # before the cost of embedding; `commit` looks again
                    self._check_quota(puts, wanted, owner, quota)
                contents = self._contents(self._unheld(wanted), prepared or {})
                if self._store.commit(
                    puts=puts, contents=contents, removed=(), owner=owner, quota=quota
                ):
                    break
        return outcomes

    def preparation(self, documents: Sequence[Document]) -> Preparation:
        """Return a preparation that chunks and embeds documents of one owner before they are added,
        in steps between which others may come: embedding a long document takes seconds, storing it
        milliseconds."""
        wanted = {document.content_hash: document for document in documents}
        return Preparation(self._unheld(wanted), self._chunking, self._embedder)

    def check_room(self, documents: Sequence[Document], quota: DocumentQuota) -> None:
        """Check that the documents fit the owner's quota. Raises DocumentQuotaExceeded as `add`
        would now."""
        owner = documents[0].owner if documents else OPERATOR
        if owner != OPERATOR:
            _, puts, wanted = self._plan(documents, owner)
            self._check_quota(puts, wanted, owner, quota)

    def remove(self, document_ids: Sequence[str], owner: str = OPERATOR) -> list[bool]:
        """Delete documents, durably and together. Return which of them the owner had."""
        check_owner(owner)
        with self._writing:
            hashes = self._store.hashes(document_ids, owner)
            if hashes:
                self._store.commit(puts={}, contents=(), removed=hashes, owner=owner)
        return [document_id in hashes for document_id in document_ids]

    def listed(self, owner: str, after: str = "", count: int = MAX_LISTED) -> list[ListedDocument]:
        """Return at most `count` of the owner's documents by name, those that come after
        `after`."""
        check_owner(owner)
        if not 1 <= count <= MAX_LISTED:
            raise InvalidArgument("count", f"must be 1…{MAX_LISTED}, is {count}")
        return self._store.listed(owner, after, count)

    def names(self, owner: str = OPERATOR) -> Iterator[str]:
        """Yield the names of all the owner's documents, in the order of their bytes in UTF-8."""
        after = ""
        while part := self.listed(owner, after):
            yield from (document.name for document in part)
            after = part[-1].name

    def usage(self, owner: str) -> OwnerUsage:
        """Return what the owner has stored, as quotas count it."""
        check_owner(owner)
        return self._store.usage(owner)

    def search(
        self,
        query: str,
        count: int = 5,
        mode: SearchMode = SearchMode.HYBRID,
        *,
        rerank: bool = False,
        tenant: str = OPERATOR,
    ) -> list[Hit]:
        """Return at most `count` chunks that `tenant` may find, best first. Raises InvalidArgument
        naming the argument."""
        self._check_search(query, count, mode, rerank)
        check_owner(tenant)
        vector = None
        if self._embedder and (mode is SearchMode.DENSE or self._reads(query, mode)):
            vector = self._embedder.embed_questions([query])[0]
        most = max(count, RERANKED) if rerank else count
        hits = self._searched(query, vector, count=most, mode=mode, tenant=tenant)
        return self._reranked(query, hits)[:count] if rerank and hits else hits

    def _reads(self, query: str, mode: SearchMode) -> bool:
        """Return whether the query's vector says what it asks. One of a script that the model does
        not know is near to all that it does not know either."""
        if self._embedder is None or mode is SearchMode.LEXICAL:
            return False
        (ids,) = self._embedder.token_ids([query])
        unknown = sum(each == self._embedder.unknown_id for each in ids)
        return unknown <= UNKNOWN_SHARE * len(ids)

    def foreign_token_ids(self, inputs: Sequence[Sequence[int]]) -> list[int]:
        """Return the places of those token ids that are not in the marks of the embedding model's
        own tokenizer. FailedPrecondition without an embedding model."""
        embedder = self._embedding_model()
        return [place for place, ids in enumerate(inputs) if not is_marked(ids, embedder)]

    def text_embedding(
        self, texts: Sequence[str | Sequence[int]], most_tokens: int = 0
    ) -> TextEmbedding:
        """Embed texts that are not kept, in steps between which others may come.
        FailedPrecondition without an embedding model; arguments and InvalidArgument as
        `TextEmbedding`."""
        return TextEmbedding(texts, self._embedding_model(), most_tokens)

    def _embedding_model(self) -> Embedder:
        if self._embedder is None:
            raise FailedPrecondition("embedding: this index is lexical")
        return self._embedder

    def stats(self) -> IndexStats:
        """Return how much is stored now."""
        return self._store.stats()

    def texts(self, owner: str = OPERATOR) -> dict[str, str]:
        documents = self._store.documents(owner=owner)
        return {name: content.text for name, content in documents}

    def outdated(self, documents: Iterable[Document], owner: str = OPERATOR) -> list[str]:
        """Return the ids, of these documents of one owner, that now have another text than the one
        they are given here."""
        wanted = [(document.id, document.content_hash) for document in documents]
        hash_of = self._store.hashes((document_id for document_id, _ in wanted), owner)
        return [name for name, given in wanted if hash_of.get(name, given) != given]

    def chunks_of(self, document_ids: Iterable[str], owner: str = OPERATOR) -> list[str]:
        """Return every chunk of these documents, as searches give them."""
        documents = self._store.documents(document_ids, owner)
        contents = {content.content_hash: content for _, content in documents}.values()
        return [
            content.chunk(number) for content in contents for number in range(len(content.spans))
        ]

    def compact(self) -> None:
        """Free the space of deleted documents. ResourceExhausted leaves everything as it was."""
        with self._writing:
            self._store.compact()

    def close(self) -> None:
        with self._writing:
            self._store.close()

    def _searched(
        self, query: str, vector: Vectors | None, count: int, mode: SearchMode, tenant: str
    ) -> list[Hit]:
        """Return hits of one state of the store: where a change overtook the search, an updated
        document would have neither its old text nor its new one."""
        words = "" if mode is SearchMode.DENSE else query
        for tries in range(MOST_OUTDATED):
            try:
                found = self._store.find(words, vector, candidates(count), tenant)
                ranking = ranked(found)[:count]
                chunks = self._store.chunks([number for number, _ in ranking])
            except RankingOutdated:
                # Longer each time: whoever commits may wait for this very thread.
                time.sleep(tries * OUTDATED_PAUSE_S)
                continue
            dense_rank = {number: rank for rank, number in enumerate(found.nearest, 1)}
            lexical_rank = {number: rank for rank, number in enumerate(found.coverage, 1)}
            return [
                Hit(
                    **asdict(chunks[number]),
                    score=score,
                    similarity=found.similarity.get(number),
                    dense_rank=dense_rank.get(number),
                    lexical_rank=lexical_rank.get(number),
                    coverage=found.coverage.get(number),
                )
                for number, score in ranking
            ]
        raise Unavailable("the documents change faster than they can be searched; try again")

    def _plan(
        self, documents: Sequence[Document], owner: str
    ) -> tuple[list[Outcome], dict[str, str], dict[str, Document]]:
        """Decide the outcome of each document, as if they were added one by one; which content each
        id will mean; and a document of each of these contents."""
        stored = self._store.hashes((document.id for document in documents), owner)
        latest: dict[str, Document] = {}
        puts: dict[str, str] = {}
        outcomes: list[Outcome] = []
        for document in documents:
            content_hash = document.content_hash
            before = puts.get(document.id, stored.get(document.id))
            if before == content_hash:
                outcomes.append(Outcome.UNCHANGED)
                continue
            outcomes.append(Outcome.ADDED if before is None else Outcome.UPDATED)
            puts[document.id] = content_hash
            latest[content_hash] = document
        return outcomes, puts, {key: latest[key] for key in dict.fromkeys(puts.values())}

    def _unheld(self, wanted: Mapping[str, Document]) -> list[Document]:
        """Return the documents whose contents are not stored yet."""
        held = self._store.holds(wanted)
        return [document for key, document in wanted.items() if key not in held]

    def _check_quota(
        self,
        puts: Mapping[str, str],
        wanted: Mapping[str, Document],
        owner: str,
        quota: DocumentQuota,
    ) -> None:
        before = self._store.usage(owner)
        replaced = self._store.sizes(puts, owner)
        added = sum(wanted[key].size for key in puts.values()) - sum(replaced.values())
        after = OwnerUsage(before.documents + len(puts) - len(replaced), before.bytes + added)
        check_quota(owner, quota, before, after)

    def _contents(
        self, documents: Sequence[Document], prepared: Mapping[str, Content]
    ) -> list[Content]:
        left = [document for document in documents if document.content_hash not in prepared]
        preparation = Preparation(left, self._chunking, self._embedder)
        while preparation.step():
            pass
        made = {**prepared, **preparation.contents}
        return [made[document.content_hash] for document in documents]

    def _check_search(self, query: str, count: int, mode: SearchMode, rerank: bool) -> None:
        if not query.strip() or len(query) > MAX_QUERY_LENGTH:
            why = f"must have 1…{MAX_QUERY_LENGTH} characters, has {len(query.strip())}"
            raise InvalidArgument("query", why)
        if not 1 <= count <= MAX_HITS:
            raise InvalidArgument("count", f"must be 1…{MAX_HITS}, is {count}")
        if mode is SearchMode.DENSE and self._embedder is None:
            raise InvalidArgument("mode", "dense needs an embedding model; this index is lexical")
        if rerank and self._reranker is None:
            raise InvalidArgument("rerank", "no re-ranking model is loaded")

    def _reranked(self, query: str, hits: list[Hit]) -> list[Hit]:
        """Return the hits by the cross-encoder's score, which becomes theirs."""
        assert self._reranker is not None
        scores = self._reranker.score(query, [hit.text for hit in hits])
        judged = [replace(hit, score=score) for hit, score in zip(hits, scores, strict=True)]
        return sorted(judged, key=lambda hit: -hit.score)
