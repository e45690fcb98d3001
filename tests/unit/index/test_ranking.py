"""Lexical, dense and fused rankings, each against its definition computed by hand."""

from __future__ import annotations

import math
import random
from collections import Counter

import numpy as np
import pytest

from tandem.index.dense import DenseIndex, Vectors, recall
from tandem.index.lexical import LexicalIndex
from tandem.index.searcher import reciprocal_rank_fusion


def test_fusion_adds_reciprocal_ranks_and_keeps_the_order_of_ties() -> None:
    fused = reciprocal_rank_fusion([["a", "b", "c"], ["c", "d"]], rank_constant=10)
    assert dict(fused) == pytest.approx(
        {"c": 1 / 13 + 1 / 11, "a": 1 / 11, "b": 1 / 12, "d": 1 / 12}
    )
    assert [key for key, _ in fused] == ["c", "a", "b", "d"]
    assert reciprocal_rank_fusion([[], []]) == []


def test_words_are_folded_and_identifiers_also_split() -> None:
    index = LexicalIndex()
    texts = ["Ärger ﬁndet STRASSE", "def __init__(self)", "getHTTP_x2 and more", "x2 getHTTP\0end"]
    index.change(enumerate(texts), ())
    for query, found in [
        ("arger", [0]),
        ("ÄRGER findet", [0]),
        ("straße", [0]),
        ("init", [1]),
        ("__INIT__", [1]),
        ("gethttp_x2", [2, 3]),  # as a phrase in the first, in parts in both
        ('"OR" NOT - end', [3]),
        ("nowhere *", []),
        (" ".join(f"w{n}" for n in range(2000)), []),
    ]:
        assert [number for number, _ in index.search(query, 5)] == found, query
    index.close()


def bm25_by_definition(texts: dict[int, str], query: str) -> dict[int, float]:
    """Robertson and Zaragoza (2009), eq. 3.15, with FTS5's floor under the rarity of a word."""
    counts = {number: Counter(text.split()) for number, text in texts.items()}
    average = sum(c.total() for c in counts.values()) / len(counts)
    scores = {}
    for number, own in counts.items():
        score = 0.0
        for term in query.split():
            holding = sum(1 for c in counts.values() if c[term])
            if own[term]:
                rarity = max(math.log((len(counts) - holding + 0.5) / (holding + 0.5)), 1e-6)
                damping = 1.2 * (0.25 + 0.75 * own.total() / average)
                score += rarity * own[term] * 2.2 / (own[term] + damping)
        if score > 0:
            scores[number] = score
    return scores


def test_bm25_follows_every_change() -> None:
    source = random.Random(3)
    index, texts = LexicalIndex(), dict[int, str]()
    query = "t1 t2 t5 t9 unknown"
    for number in range(200):
        texts[number] = " ".join(f"t{int(source.paretovariate(0.7))}" for _ in range(20))
        index.change([(number, texts[number])], ())
        if source.random() < 0.7:
            gone = source.choice(list(texts))
            index.change((), [(gone, texts.pop(gone))])
        if number % 20 == 7 and texts:
            found = index.search(query, 1000)
            assert dict(found) == pytest.approx(bm25_by_definition(texts, query))
            assert found == sorted(found, key=lambda one: (-one[1], one[0]))
            assert index.search(query, 3) == found[:3]
    assert index.search("nowhere", 5) == []
    index.close()


def test_common_words_are_left_out_once_rarer_ones_match_enough() -> None:
    index = LexicalIndex()
    index.change([(n, f"the tenth{n % 10} word{n}") for n in range(1500)], ())
    assert len(index.search("the", 2000)) == 1500  # all there is to go by
    assert [n for n, _ in index.search("the word7", 2000)] == [7]
    assert len(index.search("the tenth3", 2000)) == 150
    few = LexicalIndex()
    few.change([(0, "a"), (1, "a b"), (2, "b")], ())
    assert len(few.search("a b", 5)) == 3
    for each in (index, few):
        each.close()


def clustered(count: int, dimension: int, seed: int) -> Vectors:
    source = np.random.default_rng(seed)
    centres = source.standard_normal((50, dimension))
    rows = centres[source.integers(50, size=count)] + 0.6 * source.standard_normal(
        (count, dimension)
    )
    unit: Vectors = (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)
    return unit


def test_words_are_scored_once_until_chunks_change(monkeypatch: pytest.MonkeyPatch) -> None:
    """FTS5 takes a microsecond for each chunk that has a word, and the next query the same."""
    index, asked = LexicalIndex(), list[str]()
    index.change([(n, f"word{n % 7} both{n % 2} all") for n in range(100)], [])
    index._connection.set_trace_callback(asked.append)

    def scored(query: str) -> int:
        del asked[:]
        assert index.search(query, 3)
        return sum("rank" in statement for statement in asked)

    assert scored("word1 both1") == 2
    first = index.search("word1 both1", 100)
    assert scored("word1 both1") == 0
    assert scored("word2 both1") == 1
    assert index.search("word1 both1", 100) == first
    index.change([(100, "word1 both1")], [])
    assert scored("word1 both1") == 2
    assert index.search("word1 both1", 1)[0][0] == 100, "the shortest"
    monkeypatch.setattr("tandem.index.lexical.MOST_KEPT", 20)
    for n in range(7):
        index.search(f"word{n}", 3)
        (words,) = index._words.values()
        assert words.kept_scores == sum(len(found) for found, _ in words._scores.values()) <= 20
    index.close()


def test_words_that_no_chunk_has_are_not_kept_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor phrases: who searches could fill the memory of a service whose documents stay."""
    monkeypatch.setattr("tandem.index.lexical.MOST_WORDS", 10)
    index = LexicalIndex()
    index.change([(0, "a heron"), (1, "of this")], [])
    for n in range(40):
        assert [number for number, _ in index.rank(f"unheard{n} heron", 3)] == [0]
        index.rank(f"heron_{'a_' * n}of", 3)
        assert sum(words.kept_words for words in index._words.values()) <= 10
    index.close()


def test_flat_search_equals_brute_force_through_additions_and_removals() -> None:
    vectors, queries = clustered(400, 24, 1), clustered(20, 24, 2)
    index = DenseIndex(24)
    index.add(np.arange(250), vectors[:250])
    index.remove(np.arange(100, 140))
    index.add(np.arange(250, 400), vectors[250:])
    left = np.setdiff1d(np.arange(400), np.arange(100, 140))
    assert index.kind == "flat"
    for query in queries:
        products = vectors[left] @ query
        best = left[np.argsort(-products)[:10]]
        found = index.search(query, 10)
        assert [number for number, _ in found] == best.tolist()
        assert [s for _, s in found] == pytest.approx(np.sort(products)[::-1][:10], abs=1e-5)
    assert DenseIndex(24).search(queries[0], 5) == []


def test_cells_take_over_in_the_background_and_follow_changes() -> None:
    rows = clustered(3000, 16, 3)
    vectors, queries = rows[:2900], rows[2950:]
    index = DenseIndex(16, flat_limit=1000)
    index.add(np.arange(900), vectors[:900])
    kinds = [index.kind]
    index.add(np.arange(900, 2000), vectors[900:2000])
    index.remove(np.arange(50))  # while it is built, or just after
    index.wait_until_built()
    index.add(np.arange(2000, 2900), vectors[2000:2900])
    index.remove(np.arange(1950, 2050))
    assert [*kinds, index.kind] == ["flat", "ivf"]
    assert len(index) == 2750
    left = np.setdiff1d(np.arange(2900), np.concatenate([np.arange(50), np.arange(1950, 2050)]))
    truth = left[np.argsort(-(queries @ vectors[left].T), axis=1)[:, :10]]
    found = np.array([[number for number, _ in index.search(query, 10)] for query in queries])
    assert np.isin(found, left).all()
    assert recall(found, truth) >= 0.95
    index.close()


def test_coverage_is_the_share_of_the_words_by_rarity_whatever_else_a_collection_has() -> None:
    shares = []
    for others in (20, 400):
        index = LexicalIndex()
        texts = ["alpha beta common", "alpha common", "common words", *["common"] * others]
        index.change(enumerate(texts), ())
        found = dict(index.rank("Alpha, beta common?", 3))
        assert list(found)[:2] == [0, 1]
        assert found[0] == pytest.approx(1)
        assert dict(index.rank("alpha beta gamma", 2))[0] < 0.7
        assert max(list(found.values())[2:]) < 0.05
        rarity = [math.log(1 + (len(texts) - n + 0.5) / (n + 0.5)) for n in (2, 1, len(texts))]
        assert found[1] == pytest.approx((rarity[0] + rarity[2]) / sum(rarity))
        shares.append(found[1])
        assert index.rank("nowhere", 5) == []
        index.close()
    assert shares[0] == pytest.approx(shares[1], abs=0.03)
