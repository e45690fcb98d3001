"""BM25 over chunks, by SQLite's FTS5, in memory. FTS5 keeps no checksums, so its tables are not
stored: they are built at opening, from texts whose checksums were compared. Thread-safe.

A BM25 score is a sum over words, so what FTS5 says of one word is kept until chunks change: FTS5
takes about 1 µs for each chunk that has the word, and the sum of what is kept 10 ns."""

import math
import re
import sqlite3
import threading
import unicodedata
from collections.abc import Iterable, Mapping

import numpy as np
from numpy.typing import NDArray

COMMON_SHARE, FEW_SCORED = 0.5, 1_000
"""A word in more chunks than this share is left out of a query once the rarer words match a few:
FTS5 gives it next to no weight: 10⁻⁶ for a negative inverse document frequency."""
MOST_SCORED = 10_000
"""Chunks that the words of one query may match in all, the rarest words first."""
MOST_KEPT = 1_000_000
"""Scores of single words that are kept: 16 MB."""
MOST_WORDS = 100_000
"""Of queries, of which it is kept how many chunks have them, if any."""

Scores = tuple[NDArray[np.int64], NDArray[np.float64]]
"""Numbers of chunks, and what a word adds to the score of each."""


class LexicalIndex:
    """Chunks by number, found by their words."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._chunks = 0
        self._frequencies: dict[str, int] = {}
        self._scores: dict[str, Scores] = {}
        self._kept = 0
        self._connection = sqlite3.connect(
            ":memory:", isolation_level=None, check_same_thread=False
        )
        columns = "text, content='', tokenize='unicode61 remove_diacritics 0'"
        self._connection.execute(f"CREATE VIRTUAL TABLE words USING fts5({columns})")
        self._connection.execute("CREATE VIRTUAL TABLE vocabulary USING fts5vocab(words, row)")

    def __len__(self) -> int:
        return self._chunks

    def change(self, new: Iterable[tuple[int, str]], gone: Iterable[tuple[int, str]]) -> None:
        """Add chunks of new numbers, and remove some with the text they were added with."""
        added = [(number, folded(text)) for number, text in new]
        removed = [(number, folded(text)) for number, text in gone]
        with self._lock:
            execute = self._connection.executemany
            self._connection.execute("BEGIN")
            execute("INSERT INTO words (rowid, text) VALUES (?, ?)", added)
            execute("INSERT INTO words (words, rowid, text) VALUES ('delete', ?, ?)", removed)
            self._connection.execute("COMMIT")
            self._chunks += len(added) - len(removed)
            self._frequencies.clear()
            self._forget_scores()

    def rank(self, query: str, count: int) -> list[tuple[int, float]]:
        """The numbers that `search` finds, in its order, each with the chunk's `coverage` of the
        query."""
        found = [number for number, _ in self.search(query, count)]
        with self._lock:
            terms = list(dict.fromkeys(words_of(query)))
            told = set(self._telling(terms))
            words = {term: set(self._scores_of(term)[0].tolist()) for term in told}
            frequencies = {term: self._frequency(term) for term in terms}
            asked = {t: n for t, n in frequencies.items() if t in told or not n}
            chunks = self._chunks
        return [
            (number, coverage(asked, {t for t, has in words.items() if number in has}, chunks))
            for number in found
        ]

    def search(self, query: str, count: int) -> list[tuple[int, float]]:
        """At most `count` chunks that share a word with `query`, as (number, score), best first;
        of equal ones the smaller number first."""
        with self._lock:
            scores = [self._scores_of(term) for term in self._telling(query_terms(query))]
        if not scores or count < 1:
            return []
        numbers, place = np.unique(np.concatenate([n for n, _ in scores]), return_inverse=True)
        sums = np.bincount(place, np.concatenate([s for _, s in scores]))
        if len(sums) > count:
            least = np.partition(sums, -count)[-count]
            numbers, sums = numbers[sums >= least], sums[sums >= least]
        best = np.argsort(-sums, kind="stable")[:count]
        return list(zip(numbers[best].tolist(), sums[best].tolist(), strict=True))

    def close(self) -> None:
        with self._lock:
            self._connection.close()

    def _scores_of(self, term: str) -> Scores:
        if (known := self._scores.get(term)) is not None:
            return known
        statement = "SELECT rowid, -rank FROM words WHERE words MATCH ?"
        found = self._connection.execute(statement, (f'"{term}"',)).fetchall()
        scores = np.array([n for n, _ in found], np.int64), np.array([s for _, s in found])
        if self._kept + len(found) > MOST_KEPT or len(self._scores) >= MOST_WORDS:
            self._forget_scores()
        self._scores[term] = scores
        self._kept += len(found)
        return scores

    def _forget_scores(self) -> None:
        self._scores.clear()
        self._kept = 0

    def _telling(self, terms: list[str]) -> list[str]:
        """The terms that tell chunks apart, the rarest first; one at least, if chunks have any."""
        frequencies = sorted((self._frequency(term), term) for term in terms)
        known = [(frequency, term) for frequency, term in frequencies if frequency]
        chosen: list[str] = []
        scored = 0
        for frequency, term in known:
            scored += frequency
            common = frequency > COMMON_SHARE * self._chunks and scored > FEW_SCORED
            if chosen and (common or scored > MOST_SCORED):
                break
            chosen.append(term)
        return chosen

    def _frequency(self, term: str) -> int:
        """Number of chunks that have it; of a phrase, an upper bound."""
        if " " in term:
            return min(map(self._frequency, term.split()))
        if term not in self._frequencies:
            statement = "SELECT doc FROM vocabulary WHERE term = ?"
            row = self._connection.execute(statement, (term,)).fetchone()
            if len(self._frequencies) >= MOST_WORDS:
                self._frequencies.clear()
            self._frequencies[term] = row[0] if row else 0
        return self._frequencies[term]


def coverage(frequencies: Mapping[str, int], held: set[str], chunks: int) -> float:
    """How much of a query a chunk answers, within [0, 1]: the share of its words that the chunk
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
    """The distinct words of a query; of an identifier its parts, and all of them as a phrase."""
    terms: list[str] = []
    for identifier in re.findall(r"\w+", folded(query)):
        parts = words_of(identifier)
        terms += [*parts, " ".join(parts)]
    return [term for term in dict.fromkeys(terms) if term]


def words_of(text: str) -> list[str]:
    return re.findall(r"[^\W_]+", folded(text))


def folded(text: str) -> str:
    """Lower case, without accents and compatibility forms: FTS5's versions fold differently."""
    if text.isascii():
        return text.lower().replace("\0", " ")
    decomposed = unicodedata.normalize("NFKD", text.casefold())
    plain = "".join(c for c in decomposed if not unicodedata.combining(c))
    return plain.casefold().replace("\0", " ")
