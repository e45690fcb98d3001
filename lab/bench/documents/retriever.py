"""`bench retriever`: what is found, how fast, and at what cost.

The labelled set is made of PEPs: a PEP's title is the query, its own chunks are what is relevant;
titles are not indexed, and of each text the beginning only, as embedding takes most of the time.
Large folders are of synthetic passages: random words, and vectors that are blends of two real
chunks' with noise; queries are real titles.
"""

from __future__ import annotations

import resource
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from math import log
from pathlib import Path
from statistics import fmean, median

import numpy as np
from numpy.typing import NDArray

from lab.bench.harness.models import Models
from lab.bench.harness.report import Goal, Report, Row, make_row, progress
from lab.bench.harness.texts import read_peps
from tandem.index.chunking import Chunking
from tandem.index.document_index import DocumentIndex
from tandem.index.embedding import MINILM, load_embedder
from tandem.index.records import Content, Document, Hit
from tandem.index.relevance import falling, relevance
from tandem.index.searcher import SearchMode
from tandem.index.sqlite_store import SqliteStore
from tandem.index.store import Manifest

Vectors = NDArray[np.float32]

DEPTH = 5
NEIGHBOURS = 10
WEIGHED_HITS = 4
RECALL_LIMIT = 0.95
P50_LIMIT_S = 20e-3
OPEN_LIMIT_S = 10.0
NOISE = 0.3
BLENDED_AT_ONCE = 50_000
STORED_AT_ONCE = 5_000
WORDS = 40
"""Words of a synthetic passage."""
MOST_WORDS = 200_000
"""Different words of all of them."""
DOCUMENTS_PER_COMMIT = 64

FOUND = ("mode", "queries", "recall_at_5", "chunk_recall_at_5", "search_p50_s")
LARGE = (
    *("index", "passages", "dimension", "recall_at_10", "dense_p50_s", "hybrid_p50_s"),
    *("store_s", "open_s", "memory_bytes", "disk_bytes"),
)
WEIGHED = ("relevance", "queries", "own_weight", "own_log_weight")
INGEST = ("embedding", "documents", "chunks", "bytes_per_s", "chunks_per_s", "memory_bytes")


@dataclass(frozen=True, slots=True)
class Size:
    """How much of everything."""

    peps: int
    letters: int
    passages: tuple[int, ...]


FULL = Size(636, 4_000, (10_000, 100_000))
QUICK = Size(40, 1_500, (2_000, 24_000))


def run(report: Report, models: Models, peps: Path) -> None:
    """Fill the report; `models` are not used."""
    size = QUICK if report.quick else FULL
    documents = read_peps(peps)[: size.peps]
    embedder = load_embedder(MINILM)
    assert embedder is not None
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        ingests = [_ingest_lexical(place / "lexical", documents)]
        labelled = [Document(document.id, document.text[: size.letters]) for document in documents]
        index = DocumentIndex(place / "hybrid", embedder, Chunking())
        ingests.append(_ingested(index, MINILM, labelled))
        rows = [_found(index, mode, documents) for mode in SearchMode]
        weights = _weighed(index, documents)
        index.close()
        titles = [document.title for document in documents]
        vectors = embedder.embed([document.text[:400] for document in documents] + titles)
        large = [
            large_folder(place / str(count), vectors, titles, count, report.seed)
            for count in size.passages
        ]
    report.add("Ingest, one core, synced", INGEST, ingests)
    report.add("Titles of PEPs find their text", FOUND, rows)
    report.add(f"Weight of a title's own text among {WEIGHED_HITS} hits", WEIGHED, weights)
    report.add("Large folders, one query at a time", LARGE, large)
    for row in report.rows:
        row["seed"] = report.seed
    report.goals += _goals(rows, large)
    report.notes += _notes(size)


def _ingest_lexical(folder: Path, documents: Sequence[Document]) -> Row:
    index = DocumentIndex(folder, None, Chunking())
    row = _ingested(index, "lexical", documents)
    index.close()
    return row


def _ingested(index: DocumentIndex, embedding: str, documents: Sequence[Document]) -> Row:
    progress(f"ingest of {len(documents)} PEPs, {embedding}")
    before = memory_bytes()
    began_s = time.perf_counter()
    for start in range(0, len(documents), DOCUMENTS_PER_COMMIT):
        index.add(documents[start : start + DOCUMENTS_PER_COMMIT])
    duration_s = time.perf_counter() - began_s
    chunks = index.stats().chunks
    return make_row(
        embedding=embedding,
        documents=len(documents),
        chunks=chunks,
        bytes_per_s=sum(len(document.text.encode()) for document in documents) / duration_s,
        chunks_per_s=chunks / duration_s,
        memory_bytes=memory_bytes() - before,
    )


def _found(index: DocumentIndex, mode: SearchMode, documents: Sequence[Document]) -> Row:
    """Return the row of a search mode. `recall_at_5`: the share of titles with a chunk of their
    document among the five hits; `chunk_recall_at_5`: the mean share of a document's chunks that
    were found, of those that five hits have room for."""
    chunks_of = {document.id: len(index.chunks_of([document.id])) for document in documents}
    title_hits = []
    shares = []
    times_s = []
    for document in documents:
        began_s = time.perf_counter()
        hits = index.search(document.title, DEPTH, mode)
        times_s.append(time.perf_counter() - began_s)
        relevant = sum(hit.document_id == document.id for hit in hits)
        title_hits.append(float(relevant > 0))
        shares.append(relevant / min(DEPTH, chunks_of[document.id]))
    return make_row(
        mode=str(mode),
        queries=len(documents),
        recall_at_5=fmean(title_hits),
        chunk_recall_at_5=fmean(shares),
        search_p50_s=median(times_s),
    )


def _weighed(index: DocumentIndex, documents: Sequence[Document]) -> list[Row]:
    """Return, for each way to compute relevance, how much of the weight is on chunks of the
    document whose title is the query. Only queries count where some of the hits are of that
    document and some are not."""
    shares: dict[str, list[float]] = {name: [] for name in RELEVANCES}
    for document in documents:
        hits = index.search(document.title, WEIGHED_HITS)
        own = [hit.document_id == document.id for hit in hits]
        if any(own) and not all(own):
            for name, relevances in RELEVANCES.items():
                shares[name].append(own_weight(relevances(hits), own))
    return [
        make_row(
            relevance=name,
            queries=len(found),
            own_weight=fmean(found) if found else None,
            own_log_weight=fmean(map(log, found)) if found else None,
        )
        for name, found in shares.items()
    ]


def own_weight(relevances: Sequence[float], own: Sequence[bool]) -> float:
    """Return the share of the sum of exp R that is on the chunks marked in `own`."""
    masses = np.exp(np.array(relevances) - max(relevances))
    return float(masses[np.array(own)].sum() / masses.sum())


def _by_both(hits: Sequence[Hit]) -> list[float]:
    return falling([relevance(hit.similarity, hit.coverage) or 0.0 for hit in hits])


def _by_cosine(hits: Sequence[Hit]) -> list[float]:
    return [10.0 * (hit.similarity or 0.0) for hit in hits]


RELEVANCES = {"vectors and words, as services weigh": _by_both, "ten times the cosine": _by_cosine}


def blended(vectors: Vectors, count: int, seed: int) -> Vectors:
    """Return `count` unit vectors like those given: blends of two of them, with noise."""
    source = np.random.default_rng(seed)
    unit: Vectors = np.empty((count, vectors.shape[1]), np.float32)
    for begin in range(0, count, BLENDED_AT_ONCE):
        part = min(BLENDED_AT_ONCE, count - begin)
        first, second = source.integers(len(vectors), size=(2, part))
        share = source.random((part, 1), dtype=np.float32)
        rows = share * vectors[first] + (1 - share) * vectors[second]
        noise = source.standard_normal(rows.shape, dtype=np.float32)
        rows += np.float32(NOISE / np.sqrt(rows.shape[1])) * noise
        unit[begin : begin + part] = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    return unit


def large_folder(
    folder: Path, vectors: Vectors, titles: Sequence[str], count: int, seed: int
) -> Row:
    """Fill a folder with `count` passages, open it again as a restart does, and search it.
    `vectors`: of real texts, of which the last are those of `titles`, the queries."""
    progress(f"{count} passages")
    queries = vectors[len(vectors) - len(titles) :]
    rows = blended(vectors, count, seed)
    manifest = Manifest("synthetic", rows.shape[1], 200, 40)
    began_s = time.perf_counter()
    store = SqliteStore(folder, manifest)
    for begin in range(0, count, STORED_AT_ONCE):
        contents = synthetic_contents(rows[begin : begin + STORED_AT_ONCE], begin, seed)
        puts = {str(begin + place): each.content_hash for place, each in enumerate(contents)}
        store.commit(puts=puts, contents=contents, removed=())
    store_s = time.perf_counter() - began_s
    store.close()
    before = memory_bytes()
    began_s = time.perf_counter()
    store = SqliteStore(folder, manifest)
    open_s = time.perf_counter() - began_s
    dense_s = []
    hybrid_s = []
    found = []
    for title, query in zip(titles, queries, strict=True):
        began_s = time.perf_counter()
        nearest = store.find("", query, NEIGHBOURS).nearest
        dense_s.append(time.perf_counter() - began_s)
        found.append(nearest)
        began_s = time.perf_counter()
        hits = store.find(title, query, 50)
        store.chunks(hits.nearest[:DEPTH])
        hybrid_s.append(time.perf_counter() - began_s)
    used = memory_bytes() - before
    kind = store.stats().dense
    store.close()
    return make_row(
        index=kind,
        passages=count,
        dimension=rows.shape[1],
        recall_at_10=recall(np.array(found), exact_neighbours(rows, queries, NEIGHBOURS)),
        dense_p50_s=median(dense_s),
        hybrid_p50_s=median(hybrid_s),
        store_s=store_s,
        open_s=open_s,
        memory_bytes=used,
        disk_bytes=sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()),
    )


def synthetic_contents(rows: Vectors, begin: int, seed: int) -> list[Content]:
    """Return a passage for each vector, of words as frequent as those of a language are."""
    source = np.random.default_rng((seed, begin))
    words = np.minimum(source.zipf(1.2, (len(rows), WORDS)), MOST_WORDS)
    documents = [
        Document(str(begin + place), f"{begin + place} " + " ".join(f"w{word}" for word in line))
        for place, line in enumerate(words.tolist())
    ]
    return [
        Content(
            content_hash=document.content_hash,
            title="",
            text=document.text,
            spans=[(0, len(document.text))],
            vectors=row[None, :],
        )
        for document, row in zip(documents, rows, strict=True)
    ]


def exact_neighbours(rows: Vectors, queries: Vectors, count: int) -> NDArray[np.int64]:
    """Return the places of the `count` rows with the largest inner products, for each query."""
    best = np.empty((len(queries), 0), np.float32)
    places = np.empty((len(queries), 0), np.int64)
    for begin in range(0, len(rows), BLENDED_AT_ONCE):
        products = queries @ rows[begin : begin + BLENDED_AT_ONCE].T
        numbers = np.broadcast_to(np.arange(begin, begin + products.shape[1]), products.shape)
        best = np.concatenate([best, products], axis=1)
        places = np.concatenate([places, numbers], axis=1)
        order = np.argsort(-best, axis=1, kind="stable")[:, :count]
        best = np.take_along_axis(best, order, axis=1)
        places = np.take_along_axis(places, order, axis=1)
    return places


def recall(hits: NDArray[np.int64], truth: NDArray[np.int64]) -> float:
    """Return the share of the true neighbours that were found, over all rows."""
    return sum(len(np.intersect1d(a, b)) for a, b in zip(hits, truth, strict=True)) / truth.size


def _goals(rows: Sequence[Row], large: Sequence[Row]) -> list[Goal]:
    recalls = {row["mode"]: row["recall_at_5"] for row in rows}
    better = max(recalls["dense"], recalls["lexical"])
    goals = [
        Goal("fused recall@5 (limit: the better single)", recalls["hybrid"], better, "at least")
    ]
    for row in large:
        count = f"{row['passages']:,} passages"
        goals += [
            Goal(f"recall@10 of {count}", row["recall_at_10"], RECALL_LIMIT, "at least"),
            Goal(f"search of {count}, p50 seconds", row["hybrid_p50_s"], P50_LIMIT_S, "at most"),
            Goal(f"opening {count}, seconds", row["open_s"], OPEN_LIMIT_S, "at most"),
        ]
    return goals


def _notes(size: Size) -> list[str]:
    return [
        f"Labelled set: {size.peps} PEPs, the first {size.letters:,} letters of each, without their"
        " titles; recall_at_5 counts titles with a chunk of theirs among five.",
        f"Large folders: passages of {WORDS} random words, vectors are blends of two real ones with"
        " noise, queries are real titles; embedding of the query is not in their times.",
        "memory_bytes is growth of resident memory by opening and the searches. open_s: opening"
        " with what was built before.",
    ]


def memory_bytes() -> int:
    """Return the resident memory of this process now; where the system does not say, its peak."""
    try:
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    except OSError:
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else peak * 1024  # macOS counts bytes
    return pages * resource.getpagesize()
