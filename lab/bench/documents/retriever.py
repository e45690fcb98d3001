"""`bench retriever`: what is found, how fast, at what cost, and what a killed writer loses.

The labelled set is made of PEPs: a PEP's title is the query, its own chunks are what is relevant;
titles are not indexed, and of each text the beginning only, as embedding takes most of the time.
The large index is of synthetic vectors: blends of two real chunks' vectors with noise; its queries
are real titles.
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

from lab.bench.documents.retriever_kill import kill_trial
from lab.bench.harness.plots import bars
from lab.bench.harness.report import Goal, Report, Row, counted, make_row, progress
from lab.bench.harness.suite import Models
from lab.bench.harness.texts import read_peps
from tandem.core.errors import TandemError
from tandem.index.cell_quantizer import exact_neighbours, recall
from tandem.index.chunking import Chunking
from tandem.index.dense import DenseIndex
from tandem.index.document_index import DocumentIndex
from tandem.index.embedding import MINILM, load_embedder
from tandem.index.records import Document, Hit
from tandem.index.relevance import falling, relevance
from tandem.index.searcher import SearchMode

Vectors = NDArray[np.float32]

DEPTH = 5
NEIGHBOURS = 10
WEIGHED_HITS = 4
RECALL_LIMIT = 0.95
P50_LIMIT_S = 3e-3
NOISE = 0.3
BLENDED_AT_ONCE = 50_000
DOCUMENTS_PER_COMMIT = 64

FOUND = ("mode", "queries", "recall_at_5", "chunk_recall_at_5", "search_p50_s")
DENSE = (
    *("index", "vectors", "dimension", "recall_at_10", "search_p50_s", "search_p99_s"),
    *("build_s", "reopen_s", "memory_bytes", "disk_bytes"),
)
WEIGHED = ("relevance", "queries", "own_weight", "own_log_weight")
INGEST = ("embedding", "documents", "chunks", "bytes_per_s", "chunks_per_s", "memory_bytes")


@dataclass(frozen=True, slots=True)
class Size:
    """How much of everything."""

    peps: int
    letters: int
    brute: int
    vectors: tuple[int, ...]
    kills: int


FULL = Size(636, 4_000, 10_000, (100_000, 1_000_000), 30)
QUICK = Size(40, 1_500, 2_000, (24_000,), 3)


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
        vectors = stored_vectors(index)
        index.close()
        queries = embedder.embed([document.title for document in documents])
        dense = [
            _searched(kind, vectors, queries, count, report.seed, place / f"{kind}-{count}")
            for kind, count in (("flat", size.brute), *(("ivf", n) for n in size.vectors))
        ]
        lost = _kill_trials(place, size.kills, report.seed)
    report.add("Ingest, one core, synced", INGEST, ingests)
    report.add("Titles of PEPs find their text", FOUND, rows)
    report.add(f"Weight of a title's own text among {WEIGHED_HITS} hits", WEIGHED, weights)
    report.add("Nearest vectors, one query at a time", DENSE, dense)
    for row in report.rows:
        row["seed"] = report.seed
    report.goals += _goals(rows, dense, size.kills, lost)
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
    chunks_of = index.chunk_counts()
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


def stored_vectors(index: DocumentIndex) -> Vectors:
    """Return all vectors of an index, one row per chunk."""
    return np.concatenate([content.vectors for content in index.contents()])


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


def _searched(
    kind: str, vectors: Vectors, queries: Vectors, count: int, seed: int, folder: Path
) -> Row:
    """Build an index, open it again as a restart does, and search it."""
    progress(f"{count} vectors, {kind}")
    rows = blended(vectors, count, seed)
    began_s = time.perf_counter()
    index = _loaded(rows, folder)
    build_s = time.perf_counter() - began_s
    index.close()
    before = memory_bytes()
    began_s = time.perf_counter()
    index = _loaded(rows, folder)
    reopen_s = time.perf_counter() - began_s
    if index.kind != kind:
        raise TandemError(f"{count} vectors are searched by {index.kind}, not {kind}")
    results = []
    times_s = []
    for query in queries:
        began_s = time.perf_counter()
        hits = index.search(query, NEIGHBOURS)
        times_s.append(time.perf_counter() - began_s)
        results.append([number for number, _ in hits])
    used = memory_bytes() - before
    index.close()
    return make_row(
        index=kind,
        vectors=count,
        dimension=rows.shape[1],
        recall_at_10=recall(np.array(results), exact_neighbours(rows, queries, NEIGHBOURS)),
        search_p50_s=median(times_s),
        search_p99_s=float(np.quantile(times_s, 0.99)),
        build_s=build_s,
        reopen_s=reopen_s,
        memory_bytes=used,
        disk_bytes=sum(path.stat().st_size for path in folder.glob("*")),
    )


def _loaded(rows: Vectors, folder: Path) -> DenseIndex:
    """Return an index of these rows once everything that it builds is built."""
    index = DenseIndex(rows.shape[1], folder, loading=True)
    for begin in range(0, len(rows), BLENDED_AT_ONCE):
        part = rows[begin : begin + BLENDED_AT_ONCE]
        index.add(np.arange(begin, begin + len(part)), part)
    index.settle()
    index.wait_until_built()
    return index


def _kill_trials(folder: Path, trials: int, seed: int) -> int:
    """Return how many trials lost something."""
    lost = 0
    for trial in counted(range(trials), lambda trial: "kill -9, a trial"):
        source = np.random.default_rng((seed, trial))
        try:
            kill_trial(folder / f"kill-{trial}", seed * 1000 + trial, int(source.integers(1, 120)))
        except TandemError as error:
            print(error, file=sys.stderr)
            lost += 1
    return lost


def _goals(rows: Sequence[Row], dense: Sequence[Row], kills: int, lost: int) -> list[Goal]:
    recalls = {row["mode"]: row["recall_at_5"] for row in rows}
    better = max(recalls["dense"], recalls["lexical"])
    flat, *cells = dense
    return [
        Goal("fused recall@5 (limit: the better single)", recalls["hybrid"], better, "at least"),
        Goal("flat search equals brute force", flat["recall_at_10"], 1.0, "at least"),
        *(
            Goal(f"recall@10 of {row['vectors']:,}", row["recall_at_10"], RECALL_LIMIT, "at least")
            for row in cells
        ),
        *(
            Goal(
                f"search of {row['vectors']:,}, p50 seconds",
                row["search_p50_s"],
                P50_LIMIT_S * max(1, row["vectors"] / 100_000) ** 0.5,
                "at most",
            )
            for row in cells
        ),
        Goal(f"of {kills} kills, those that lost something", lost, 0, "at most"),
    ]


def _notes(size: Size) -> list[str]:
    return [
        f"Labelled set: {size.peps} PEPs, the first {size.letters:,} letters of each, without their"
        " titles; recall_at_5 counts titles with a chunk of theirs among five.",
        "Vectors of the last table are synthetic (blends of two real ones with noise), queries are"
        " real titles; embedding of the query is not in its times.",
        "memory_bytes is growth of resident memory; of vectors after the second opening and the"
        " searches, pages of mapped files included. reopen_s: opening with what was built before.",
    ]


def memory_bytes() -> int:
    """Return the resident memory of this process now; where the system does not say, its peak."""
    try:
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    except OSError:
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else peak * 1024  # macOS counts bytes
    return pages * resource.getpagesize()


def draw(report: Report, folder: Path) -> None:
    """Draw recall@5 by search mode."""
    figures = {row["mode"]: row["recall_at_5"] for row in report.rows if row.get("mode")}
    title = "Titles with their own text among five hits"
    bars(folder / "retriever_recall.png", figures, ylabel="recall@5", title=title)
