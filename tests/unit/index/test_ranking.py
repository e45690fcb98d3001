"""Rankings by words and by both, each against its definition computed by hand."""

from __future__ import annotations

import math
import random
import sqlite3
from collections import Counter
from collections.abc import Iterator

import pytest

from tandem.index import lexical
from tandem.index.owners import OPERATORS
from tandem.index.relevance import COSINE_WEIGHT, COVERAGE_WEIGHT, ORIGIN
from tandem.index.searcher import ranked
from tandem.index.store import Found


@pytest.fixture
def database() -> Iterator[sqlite3.Connection]:
    """An empty index of words, in memory."""
    opened = sqlite3.connect(":memory:", isolation_level=None)
    for statement in lexical.TABLES:
        opened.execute(statement)
    yield opened
    opened.close()


def test_a_passage_that_answers_is_before_one_with_the_words_of_the_question() -> None:
    found = Found(
        nearest=[3, 1],
        similarity={3: 0.6, 1: 0.5, 2: -0.1, 4: 0.1},
        coverage={2: 0.9, 3: 0.4, 4: 0.5},
    )
    scores = {
        number: COSINE_WEIGHT * max(0.0, found.similarity[number])
        + COVERAGE_WEIGHT * found.coverage.get(number, 0.0)
        - ORIGIN
        for number in (1, 2, 3, 4)
    }
    assert dict(ranked(found)) == pytest.approx(scores)
    assert [number for number, _ in ranked(found)] == [3, 1, 2, 4]


def test_words_are_folded_and_identifiers_also_split(database: sqlite3.Connection) -> None:
    texts = ["Ärger ﬁndet STRASSE", "def __init__(self)", "getHTTP_x2 and more", "x2 getHTTP\0end"]
    lexical.add(database, enumerate(texts))
    for query, found in [
        ("arger", [0]),
        ("ÄRGER findet", [0]),
        ("straße", [0]),
        ("init", [1]),
        ("__INIT__", [1]),
        ("gethttp_x2", [2, 3]),  # as a whole in the first, in parts in both
        ('"OR" NOT - end', [3]),
        ("nowhere *", []),
        (" ".join(f"w{n}" for n in range(2000)), []),
    ]:
        assert list(lexical.rank(database, query, 5)) == found, query


def bm25_by_definition(texts: dict[int, str], query: str) -> dict[int, float]:
    """Robertson and Zaragoza (2009), eq. 3.15, with one added within the logarithm, as Lucene."""
    counts = {number: Counter(text.split()) for number, text in texts.items()}
    average = sum(c.total() for c in counts.values()) / len(counts)
    scores = {}
    for number, own in counts.items():
        score = 0.0
        for term in query.split():
            holding = sum(1 for c in counts.values() if c[term])
            if own[term]:
                rarity = math.log(1 + (len(counts) - holding + 0.5) / (holding + 0.5))
                damping = 1.2 * (0.25 + 0.75 * own.total() / average)
                score += rarity * own[term] * 2.2 / (own[term] + damping)
        if score > 0:
            scores[number] = score
    return scores


@pytest.mark.parametrize("most", [lexical.MOST_LEVELS, 0])
def test_words_are_erased_as_often_as_documents_are_removed(
    database: sqlite3.Connection, monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    """FTS5 takes a level for each time that it rewrites an index of some pages, and reads nothing
    of one with 2,000. `most` 0: they are all begun anew each time."""
    monkeypatch.setattr(lexical, "MOST_LEVELS", most)
    texts = {number: " ".join(f"w{number}x{each}" for each in range(50)) for number in range(40)}
    lexical.add(database, texts.items())
    for number in range(40, 2140 if most else 60):
        texts[number] = f"word{number} again"
        lexical.add(database, [(number, texts[number])])
        if (gone := number - 1) >= 40:
            lexical.remove(database, [(gone, texts.pop(gone))])
        lexical.erase(database, [(texts.items(), OPERATORS)])
    key = lexical.every(database)[0].id
    assert lexical.digest(database) == lexical.digest_of(texts.items(), key) % lexical.DIGESTS
    assert list(lexical.rank(database, f"word{max(texts)}", 5)) == [max(texts)]
    assert lexical.rank(database, f"word{max(texts) - 1}", 5) == {}


def test_bm25_follows_every_change(database: sqlite3.Connection) -> None:
    source = random.Random(3)
    texts = dict[int, str]()
    query = "t1 t2 t5 t9 unknown"
    for number in range(200):
        texts[number] = " ".join(f"t{int(source.paretovariate(0.7))}" for _ in range(20))
        lexical.add(database, [(number, texts[number])])
        if source.random() < 0.7:
            gone = source.choice(list(texts))
            lexical.remove(database, [(gone, texts.pop(gone))])
        if number % 40 == 7:
            lexical.erase(database, [(texts.items(), OPERATORS)])
        if number % 20 == 7 and texts:
            scores = bm25_by_definition(texts, query)
            order = sorted(scores, key=lambda each: (-round(scores[each], 9), each))
            assert list(lexical.rank(database, query, 1000)) == order
            assert list(lexical.rank(database, query, 3)) == order[:3]
    assert lexical.rank(database, "nowhere", 5) == {}
