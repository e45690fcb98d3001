"""Held-out text with documents for it on two sides, as DRAGON's §7.2 splits a corpus.

Texts that no demo model was trained on are cut into windows. Some are kept to be predicted, all
others are cut into documents. The first tokens of a kept window are the query; of the 2k documents
that a search finds for it the better half is the cloud's and the other the device's.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from lab.bench.harness.texts import read_peps
from lab.training.demo_pair.corpus import is_held_out
from tandem.core.errors import TandemError
from tandem.index import lexical
from tandem.index.document_index import open_index
from tandem.index.records import Document, Hit
from tandem.text import Tokenizer
from tandem.two_sided.protocol.mixture import Side

WINDOW_TOKENS = 256
QUERY_TOKENS = 32
DOCUMENT_TOKENS = 64
WINDOWS_PER_TEXT = 2
ADDED_AT_ONCE = 256
CHUNKS_PER_DOCUMENT = 2
MEASURE_SCALE = 10.0
"""What a whole unit of similarity, or of coverage, counts here. The services weigh by both together
(`tandem.index.relevance`); the figures were measured with one of them, and stay comparable."""


@dataclass(frozen=True, slots=True)
class RankedDocument:
    """A document: its tokens, the relevance that search gave it, and its rank at its side."""

    token_ids: tuple[int, ...]
    score: float
    rank: int = 1


@dataclass(frozen=True, slots=True)
class Window:
    """Text to predict after its query, and the best documents for that, the best first."""

    token_ids: tuple[int, ...]
    documents: tuple[RankedDocument, ...]

    def of(self, side: Side, count: int) -> tuple[RankedDocument, ...]:
        """Return the side's documents where each side has `count`."""
        documents = (
            self.documents[:count] if side is Side.CLOUD else self.documents[count : 2 * count]
        )
        return tuple(replace(one, rank=rank) for rank, one in enumerate(documents, start=1))


Find = Callable[[str, int], Sequence[tuple[int, float]]]
"""From a query and a count to the best documents, each its number and its relevance."""
OpenSearch = Callable[[Sequence[str]], AbstractContextManager[Find]]
"""Makes the documents of these texts searchable."""


@contextmanager
def word_search(texts: Sequence[str]) -> Iterator[Find]:
    """Yield a search by words alone, in the order of BM25. Relevances are those of
    `relevance_of`."""
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as words:
        for statement in lexical.TABLES:
            words.execute(statement)
        lexical.add(words, enumerate(texts))

        def find(query: str, count: int) -> list[tuple[int, float]]:
            covered = lexical.rank(words, query, count)
            return [(number, MEASURE_SCALE * share) for number, share in covered.items()]

        yield find


@contextmanager
def default_search(texts: Sequence[str]) -> Iterator[Find]:
    """Yield the services' default search: embeddings in FAISS, fused with words, where MiniLM is
    installed, else words alone. Relevances are those of `relevance_of`."""
    with TemporaryDirectory() as folder, closing(open_index(Path(folder))) as index:
        for start in range(0, len(texts), ADDED_AT_ONCE):
            added = enumerate(texts[start : start + ADDED_AT_ONCE], start)
            index.add([Document(str(number), text) for number, text in added])

        def find(query: str, count: int) -> list[tuple[int, float]]:
            # A long document is several chunks, of which the best counts.
            best: dict[int, float] = {}
            for hit in index.search(query, CHUNKS_PER_DOCUMENT * count):
                best.setdefault(int(hit.document_id), relevance_of(hit))
            return list(best.items())[:count]

        yield find


def relevance_of(hit: Hit) -> float:
    """Return ten times the hit's similarity or, without an embedding, its coverage of the query
    times ten."""
    known = hit.coverage if hit.similarity is None else hit.similarity
    return MEASURE_SCALE * (known or 0.0)


def read_windows(peps: Path, tokenizer: Tokenizer, documents: int, seed: int) -> list[Window]:
    """Return windows of held-out PEPs in random order, with up to 2·`documents` documents each.
    Raises TandemError where no text is long enough."""
    texts = [one.text for one in read_peps(peps) if is_held_out(one.id)]
    if windows := windows_of(texts, tokenizer, documents, seed):
        return windows
    raise TandemError(f"--peps: {peps} has no held-out text that is long enough")


def windows_of(
    texts: Iterable[str],
    tokenizer: Tokenizer,
    documents: int,
    seed: int,
    *,
    documents_from: Iterable[str] = (),
    window_tokens: int = WINDOW_TOKENS,
    most: int | None = None,
    search: OpenSearch = word_search,
) -> list[Window]:
    """Return windows of any texts in random order, with up to 2·`documents` documents each; `most`
    at the most, and none where the texts are too short. `documents_from`: texts that all documents
    are of; none: other parts of the same texts."""
    source = np.random.default_rng(seed)
    kept: list[tuple[int, ...]] = []
    pieces: list[tuple[int, ...]] = []
    for text in texts:
        windows = _cut(tokenizer.encode(text), window_tokens)
        chosen = set(source.permutation(len(windows))[:WINDOWS_PER_TEXT].tolist())
        kept += [window for number, window in enumerate(windows) if number in chosen]
        for number, window in enumerate(windows):
            pieces += [] if number in chosen else _cut(window, DOCUMENT_TOKENS)
    if others := list(documents_from):
        pieces = [
            piece for text in others for piece in _cut(tokenizer.encode(text), DOCUMENT_TOKENS)
        ]
    if not kept or not pieces:
        return []
    order = source.permutation(len(kept)).tolist()[:most]
    with search([text_of(tokenizer, piece) for piece in pieces]) as find:
        return [
            _with_documents(kept[number], pieces, tokenizer, documents, find) for number in order
        ]


def _cut(token_ids: Sequence[int], length: int) -> list[tuple[int, ...]]:
    """Return the pieces of exactly `length` tokens; what is left at the end is dropped."""
    starts = range(0, len(token_ids) - length + 1, length)
    return [tuple(token_ids[start : start + length]) for start in starts]


def _with_documents(
    token_ids: tuple[int, ...],
    pieces: Sequence[tuple[int, ...]],
    tokenizer: Tokenizer,
    documents: int,
    find: Find,
) -> Window:
    found = find(text_of(tokenizer, token_ids[:QUERY_TOKENS]), 2 * documents)
    ranked = (RankedDocument(pieces[number], relevance) for number, relevance in found)
    return Window(token_ids, tuple(ranked))


def text_of(tokenizer: Tokenizer, token_ids: Sequence[int]) -> str:
    """Return what the tokens spell."""
    stream = tokenizer.detokenizer()
    return stream.push(token_ids) + stream.finish()
