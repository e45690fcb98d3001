"""BM25 over chunks, by SQLite's FTS5, in memory. FTS5 keeps no checksums, so its tables are not
stored: they are built at opening, from texts whose checksums were compared. Thread-safe.

A BM25 score is a sum over words, so what FTS5 says of one word is kept until chunks change: FTS5
takes about 1 µs for each chunk that has the word, and the sum of what is kept 10 ns."""

from __future__ import annotations

import math
import re
import sqlite3
import threading
import unicodedata
from collections.abc import Iterable, Mapping

import numpy as np
from numpy.typing import NDArray

from tandem.index.owners import OPERATOR, OPERATORS, Collection

COMMON_SHARE = 0.5
"""A word in more chunks than this share is left out of a query once the rarer words match
`FEW_SCORED` chunks: FTS5 gives it next to no weight, 10⁻⁶ for a negative inverse document
frequency."""
FEW_SCORED = 1_000
MOST_SCORED = 10_000
"""Chunks that the words of one query may match in all, the rarest words first."""
MOST_KEPT = 1_000_000
"""Scores of single words that are kept between queries: 16 MB."""
MOST_WORDS = 100_000
"""Of queries, of which it is kept between queries how many chunks have them, if any."""
LEAST_RARITY = 1e-6
"""FTS5's weight of a word that more than half of the chunks have."""

Scores = tuple[NDArray[np.int64], NDArray[np.float64]]
"""Numbers of chunks, and what a word adds to the score of each."""


class LexicalIndex:
    """Chunks by number, found by their words. Each collection has tables of its own, and a search
    adds up the statistics of those that its tenant may find: FTS5's own frequencies, over a table
    of everybody's, would tell one tenant how many chunks of another have a word."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._connection = sqlite3.connect(
            ":memory:", isolation_level=None, check_same_thread=False
        )
        self._words: dict[Collection, _CollectionWords] = {}
        self._made = 0

    def __len__(self) -> int:
        return sum(words.chunks for words in self._words.values())

    def change(
        self,
        new: Iterable[tuple[int, str]],
        gone: Iterable[tuple[int, str]],
        collection: Collection = OPERATORS,
    ) -> None:
        """Add chunks of new numbers, and remove some with the text they were added with."""
        added = [(number, folded(text)) for number, text in new]
        removed = [(number, folded(text)) for number, text in gone]
        with self._lock:
            if (words := self._words.get(collection)) is None:
                self._made += 1
                words = _CollectionWords(self._connection, self._made)
                self._words[collection] = words
            words.change(added, removed)
            if not words.chunks:
                words.drop()
                del self._words[collection]

    def rank(self, query: str, count: int, tenant: str = OPERATOR) -> list[tuple[int, float]]:
        """Return the numbers that `search` finds, in its order, each with the chunk's `coverage` of
        the query."""
        numbers = [number for number, _ in self.search(query, count, tenant)]
        with self._lock:
            visible = self._visible(tenant)
            terms = list(dict.fromkeys(words_of(query)))
            telling = set(visible.telling(terms))
            words = {term: set(visible.scores(term)[0].tolist()) for term in telling}
            frequencies = {term: visible.frequency(term) for term in terms}
            query_terms = {t: n for t, n in frequencies.items() if t in telling or not n}
            chunks = visible.chunks
            self._bound_what_is_kept()
        return [
            (
                number,
                coverage(query_terms, {t for t, has in words.items() if number in has}, chunks),
            )
            for number in numbers
        ]

    def search(self, query: str, count: int, tenant: str = OPERATOR) -> list[tuple[int, float]]:
        """Return at most `count` chunks that `tenant` may find and that share a word with `query`,
        as (number, score), best first; of equal ones the smaller number first."""
        with self._lock:
            visible = self._visible(tenant)
            scores = [visible.scores(term) for term in visible.telling(query_terms(query))]
            self._bound_what_is_kept()
        if not scores or count < 1:
            return []
        numbers, place = np.unique(np.concatenate([n for n, _ in scores]), return_inverse=True)
        sums = np.bincount(place, np.concatenate([s for _, s in scores]))
        if len(sums) > count:
            least = np.partition(sums, -count)[-count]
            numbers = numbers[sums >= least]
            sums = sums[sums >= least]
        best = np.argsort(-sums, kind="stable")[:count]
        return list(zip(numbers[best].tolist(), sums[best].tolist(), strict=True))

    def close(self) -> None:
        with self._lock:
            self._connection.close()

    def _bound_what_is_kept(self) -> None:
        """Bound the cached scores of all collections together."""
        every = self._words.values()
        too_many = sum(words.kept_scores for words in every) > MOST_KEPT
        if too_many or sum(words.kept_words for words in every) > MOST_WORDS:
            for words in every:
                words.forget()

    def _visible(self, tenant: str) -> _VisibleWords:
        return _VisibleWords(
            [words for collection, words in self._words.items() if collection.visible_to(tenant)]
        )


class _CollectionWords:
    """The tables of one collection."""

    def __init__(self, connection: sqlite3.Connection, number: int) -> None:
        self.chunks = 0
        self._connection = connection
        self._table = f"words_{number}"
        self._vocabulary = f"vocabulary_{number}"
        self._frequencies: dict[str, int] = {}
        self._scores: dict[str, Scores] = {}
        self.kept_scores = 0
        columns = "text, content='', tokenize='unicode61 remove_diacritics 0'"
        connection.execute(f"CREATE VIRTUAL TABLE {self._table} USING fts5({columns})")
        connection.execute(
            f"CREATE VIRTUAL TABLE {self._vocabulary} USING fts5vocab({self._table}, row)"
        )

    def change(self, added: list[tuple[int, str]], removed: list[tuple[int, str]]) -> None:
        table = self._table
        execute = self._connection.executemany
        self._connection.execute("BEGIN")
        execute(f"INSERT INTO {table} (rowid, text) VALUES (?, ?)", added)
        execute(f"INSERT INTO {table} ({table}, rowid, text) VALUES ('delete', ?, ?)", removed)
        self._connection.execute("COMMIT")
        self.chunks += len(added) - len(removed)
        self.forget()

    def drop(self) -> None:
        self._connection.execute(f"DROP TABLE {self._vocabulary}")
        self._connection.execute(f"DROP TABLE {self._table}")

    def scores(self, term: str) -> Scores:
        """Return the scores of the chunks that contain the word, as FTS5 computes them, divided by
        FTS5's weight for a word of this frequency."""
        if (known := self._scores.get(term)) is not None:
            return known
        statement = f"SELECT rowid, -rank FROM {self._table} WHERE {self._table} MATCH ?"
        rows = self._connection.execute(statement, (f'"{term}"',)).fetchall()
        weight = rarity(len(rows), self.chunks)
        scores = np.array([n for n, _ in rows], np.int64), np.array([s for _, s in rows]) / weight
        self._scores[term] = scores
        self.kept_scores += len(rows)
        return scores

    def frequency(self, word: str) -> int:
        """Return the number of chunks that have it."""
        if word not in self._frequencies:
            statement = f"SELECT doc FROM {self._vocabulary} WHERE term = ?"
            row = self._connection.execute(statement, (word,)).fetchone()
            self._frequencies[word] = row[0] if row else 0
        return self._frequencies[word]

    @property
    def kept_words(self) -> int:
        return max(len(self._frequencies), len(self._scores))

    def forget(self) -> None:
        """Forget what is kept of queries."""
        self._frequencies.clear()
        self._scores.clear()
        self.kept_scores = 0


class _VisibleWords:
    """Some collections as if they were one; each chunk's length counts against the mean of its own
    collection."""

    def __init__(self, collections: list[_CollectionWords]) -> None:
        self._collections = collections
        self.chunks = sum(words.chunks for words in collections)

    def scores(self, term: str) -> Scores:
        """Return the BM25 scores of all chunks that contain the word, with its frequency in all of
        them."""
        results = [words.scores(term) for words in self._collections]
        numbers = np.concatenate([np.empty(0, np.int64), *(n for n, _ in results)])
        scores = np.concatenate([np.empty(0), *(s for _, s in results)])
        return numbers, scores * rarity(len(numbers), self.chunks)

    def telling(self, terms: list[str]) -> list[str]:
        """Return the terms that tell chunks apart, the rarest first; one at least, if chunks have
        any."""
        frequencies = sorted((self.frequency(term), term) for term in terms)
        occurring = [(frequency, term) for frequency, term in frequencies if frequency]
        chosen: list[str] = []
        scored = 0
        for frequency, term in occurring:
            scored += frequency
            common = frequency > COMMON_SHARE * self.chunks and scored > FEW_SCORED
            if chosen and (common or scored > MOST_SCORED):
                break
            chosen.append(term)
        return chosen

    def frequency(self, term: str) -> int:
        """Return the number of chunks that have it; of a phrase, an upper bound."""
        if " " in term:
            return min(map(self.frequency, term.split()))
        return sum(words.frequency(term) for words in self._collections)


def rarity(frequency: int, chunks: int) -> float:
    """Return the weight that FTS5's BM25 gives a word that `frequency` of the chunks have."""
    weight = math.log((chunks - frequency + 0.5) / (frequency + 0.5))
    return weight if weight > 0 else LEAST_RARITY


def coverage(frequencies: Mapping[str, int], held: set[str], chunks: int) -> float:
    """Return how much of a query a chunk answers, in [0, 1]: the share of its words that the chunk
    has, each weighed by how rare it is. That is BM25 with k1 = 0 over the highest there can be, so
    it means the same in another collection, which a score of BM25 does not. `frequencies`: how
    many of the `chunks` have each word of the query; one that none has counts as missed."""
    weights = {
        word: math.log1p(max(0.0, chunks - count + 0.5) / (count + 0.5))
        for word, count in frequencies.items()
    }
    total = sum(weights.values())
    return sum(weights[word] for word in held) / total if total else 0.0


def query_terms(query: str) -> list[str]:
    """Return the distinct words of a query; of an identifier its parts, and all of them as a
    phrase."""
    terms: list[str] = []
    for identifier in re.findall(r"\w+", folded(query)):
        parts = words_of(identifier)
        terms += [*parts, " ".join(parts)]
    return [term for term in dict.fromkeys(terms) if term]


def words_of(text: str) -> list[str]:
    return re.findall(r"[^\W_]+", folded(text))


def folded(text: str) -> str:
    """Return the text in lower case, without accents and compatibility forms. FTS5 is not left to
    do this, since its versions fold differently."""
    if text.isascii():
        return text.lower().replace("\0", " ")
    decomposed = unicodedata.normalize("NFKD", text.casefold())
    plain = "".join(c for c in decomposed if not unicodedata.combining(c))
    return plain.casefold().replace("\0", " ")
