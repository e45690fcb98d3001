"""BM25 over chunks by SQLite's FTS5, in the database of the texts and by the same transactions.

Each word is indexed with the number of its chunk's collection before it, so a search reads the
words, frequencies and lengths of what its tenant may find, and of nothing else. FTS5 stores which
chunks have a word; its own ranking would weigh a word by everybody's chunks.
"""

from __future__ import annotations

import json
import sqlite3
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tandem.index.owners import OPERATOR, OPERATORS, Collection
from tandem.index.words import query_words, rarity, telling, words_of

TABLES = (
    """CREATE TABLE collection (
        id INTEGER PRIMARY KEY,
        name TEXT NOT NULL UNIQUE,
        chunks INTEGER NOT NULL,
        words INTEGER NOT NULL
    )""",
    "CREATE TABLE length (number INTEGER PRIMARY KEY, words INTEGER NOT NULL)",
    "CREATE VIRTUAL TABLE word USING fts5(words, content='', columnsize=0,"
    " tokenize=\"ascii tokenchars '_:'\")",
    "CREATE VIRTUAL TABLE word_frequency USING fts5vocab(word, row)",
    "CREATE VIRTUAL TABLE word_place USING fts5vocab(word, instance)",
)

MOST_LEVELS = 1000
"""Each time FTS5 writes its words anew it may take one level more. Of an index with 2,000 of them
it reads nothing any more, and says that it is damaged."""
DIGESTS = 2**64
SATURATION = 1.2
LENGTH_SHARE = 0.75
"""k1 and b of BM25, as FTS5 and Lucene have them."""

Numbers = NDArray[np.int64]
Chunks = Iterable[tuple[int, str]]
"""Numbers and texts."""


@dataclass(frozen=True, slots=True)
class StoredCollection:
    """A collection by its number in the database; `words` are those of its chunks together."""

    id: int
    collection: Collection
    chunks: int
    words: int


def every(database: sqlite3.Connection) -> list[StoredCollection]:
    """Return all collections, also those that have no chunks any more."""
    statement = "SELECT id, name, chunks, words FROM collection"
    return [
        StoredCollection(key, Collection.named(name), chunks, words)
        for key, name, chunks, words in database.execute(statement)
    ]


def chunk_count(database: sqlite3.Connection) -> int:
    """Return how many chunks there are."""
    return sum(each.chunks for each in every(database))


def visible(database: sqlite3.Connection, tenant: str) -> list[StoredCollection]:
    """Return the collections with chunks that `tenant` may find."""
    return [each for each in every(database) if each.chunks and each.collection.visible_to(tenant)]


def add(
    database: sqlite3.Connection,
    chunks: Chunks,
    collection: Collection = OPERATORS,
) -> int:
    """Add chunks under new numbers; return their collection's number in the database."""
    statement = "INSERT OR IGNORE INTO collection (name, chunks, words) VALUES (?, 0, 0)"
    database.execute(statement, (collection.name,))
    key = _key_of(database, collection)
    rows = [(number, words_of(text)) for number, text in chunks]
    database.executemany(
        "INSERT INTO word (rowid, words) VALUES (?, ?)",
        [(number, _indexed(key, words)) for number, words in rows],
    )
    database.executemany(
        "INSERT INTO length (number, words) VALUES (?, ?)",
        [(number, len(words)) for number, words in rows],
    )
    _count(database, key, len(rows), sum(len(words) for _, words in rows))
    return key


def remove(
    database: sqlite3.Connection,
    chunks: Chunks,
    collection: Collection = OPERATORS,
) -> None:
    """Remove chunks, with the texts that they were added with."""
    key = _key_of(database, collection)
    rows = [(number, words_of(text)) for number, text in chunks]
    database.executemany(
        "INSERT INTO word (word, rowid, words) VALUES ('delete', ?, ?)",
        [(number, _indexed(key, words)) for number, words in rows],
    )
    database.executemany("DELETE FROM length WHERE number = ?", [(number,) for number, _ in rows])
    _count(database, key, -len(rows), -sum(len(words) for _, words in rows))


def erase(database: sqlite3.Connection, kept: Iterable[tuple[Chunks, Collection]]) -> None:
    """Write the words anew without those of removed chunks, which FTS5 keeps until then. `kept` are
    all others, with the texts that they were added with; they are read once in MOST_LEVELS times,
    to begin with no level."""
    if _levels(database) < MOST_LEVELS:
        database.execute("INSERT INTO word (word) VALUES ('optimize')")
    else:
        rebuild(database, kept)


def rebuild(database: sqlite3.Connection, kept: Iterable[tuple[Chunks, Collection]]) -> None:
    """Index the words of these chunks, and of no others."""
    database.execute("INSERT INTO word (word) VALUES ('delete-all')")
    database.execute("DELETE FROM length")
    database.execute("UPDATE collection SET chunks = 0, words = 0")
    for chunks, collection in kept:
        add(database, chunks, collection)


def rank(
    database: sqlite3.Connection, query: str, count: int, tenant: str = OPERATOR
) -> dict[int, float]:
    """Return at most `count` chunks that `tenant` may find and that share a word with `query`, the
    best by BM25 first: how much of the query each covers, in [0, 1]. That is the share of its words
    that the chunk has, each weighed by its rarity; a word that no chunk has counts as missed."""
    searched = visible(database, tenant)
    chunks = sum(each.chunks for each in searched)
    frequencies = _frequencies(database, query_words(query), searched)
    chosen = telling(frequencies, chunks)
    if not chosen:
        return {}
    places = [_occurrences(database, word, searched) for word in chosen]
    numbers = np.unique(np.concatenate([found for found, _ in places]))
    mean = max(1, sum(each.words for each in searched)) / chunks
    relative = _lengths(database, numbers) / mean
    damping = SATURATION * (1 - LENGTH_SHARE + LENGTH_SHARE * relative)
    scores = np.zeros(len(numbers))
    covered = np.zeros(len(numbers))
    for word, (found, occurrences) in zip(chosen, places, strict=True):
        at = np.searchsorted(numbers, found)
        weight = rarity(frequencies[word], chunks)
        scores[at] += weight * occurrences * (SATURATION + 1) / (occurrences + damping[at])
        covered[at] += weight
    counted = [word for word, frequency in frequencies.items() if word in chosen or not frequency]
    covered /= sum(rarity(frequencies[word], chunks) for word in counted)
    best = np.argsort(-scores, kind="stable")[:count]
    return dict(zip(numbers[best].tolist(), covered[best].tolist(), strict=True))


def digest(database: sqlite3.Connection) -> int:
    """Return a checksum of all words that are indexed, whatever their order."""
    rows = database.execute("SELECT doc, term FROM word_place")
    return sum(_digest(number, term) for number, term in rows) % DIGESTS


def digest_of(chunks: Chunks, collection: int) -> int:
    """Return what these chunks add to the `digest`."""
    return sum(
        _digest(number, f"{collection}:{word}")
        for number, text in chunks
        for word in words_of(text)
    )


def _digest(number: int, term: str) -> int:
    return zlib.crc32(f"{number} {term}".encode())


def _levels(database: sqlite3.Connection) -> int:
    """Return how many levels of segments FTS5's structure record says: after four bytes, a number
    of seven bits a byte."""
    (record,) = database.execute("SELECT block FROM word_data WHERE id = 10").fetchone()
    levels = 0
    for byte in record[4:]:
        levels = levels << 7 | byte & 0x7F
        if byte < 0x80:
            break
    return levels


def _indexed(collection: int, words: Sequence[str]) -> str:
    return " ".join(f"{collection}:{word}" for word in words)


def _key_of(database: sqlite3.Connection, collection: Collection) -> int:
    statement = "SELECT id FROM collection WHERE name = ?"
    (key,) = database.execute(statement, (collection.name,)).fetchone()
    return int(key)


def _count(database: sqlite3.Connection, collection: int, chunks: int, words: int) -> None:
    statement = "UPDATE collection SET chunks = chunks + ?, words = words + ? WHERE id = ?"
    database.execute(statement, (chunks, words, collection))


def _frequencies(
    database: sqlite3.Connection, words: Sequence[str], searched: Sequence[StoredCollection]
) -> dict[str, int]:
    """Return how many of the chunks have each word."""
    frequencies = dict.fromkeys(words, 0)
    terms = json.dumps([f"{each.id}:{word}" for word in words for each in searched])
    statement = (
        "SELECT term, doc FROM json_each(?) AS wanted"
        " CROSS JOIN word_frequency ON term = wanted.value"
    )
    for term, chunks in database.execute(statement, (terms,)):
        frequencies[term.partition(":")[2]] += chunks
    return frequencies


def _occurrences(
    database: sqlite3.Connection, word: str, searched: Sequence[StoredCollection]
) -> tuple[Numbers, Numbers]:
    """Return the chunks that have a word, in order, and how often each has it."""
    terms = json.dumps([f"{each.id}:{word}" for each in searched])
    statement = (
        "SELECT doc FROM json_each(?) AS wanted CROSS JOIN word_place ON term = wanted.value"
    )
    rows = database.execute(statement, (terms,)).fetchall()
    return np.unique(np.array([number for (number,) in rows], np.int64), return_counts=True)


def _lengths(database: sqlite3.Connection, numbers: Numbers) -> NDArray[np.float64]:
    """Return how many words each of these chunks has."""
    statement = (
        "SELECT words FROM json_each(?) AS wanted CROSS JOIN length ON number = wanted.value"
    )
    rows = database.execute(statement, (json.dumps(numbers.tolist()),)).fetchall()
    if len(rows) < len(numbers):
        raise sqlite3.DatabaseError("words of a chunk that is not there")
    return np.array([words for (words,) in rows], np.float64)
