"""What a found document weighs: by its vector and by its words, never more than a better one."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandem.demo import demo_folder
from tandem.index.document_index import DocumentIndex, open_index
from tandem.index.records import Document, Hit
from tandem.index.relevance import COVERAGE_ALONE, falling, relevance

SHARES = st.floats(0, 1)
DOCUMENTS = 4


@given(SHARES, SHARES, SHARES, SHARES)
def test_it_rises_with_either_kind_of_evidence(
    cosine: float, coverage: float, more: float, most: float
) -> None:
    least, middle, highest = (
        relevance(*each)
        for each in (
            (cosine, coverage),
            (max(cosine, more), coverage),
            (max(cosine, more), max(coverage, most)),
        )
    )
    assert least is not None
    assert middle is not None
    assert highest is not None
    assert least <= middle <= highest


def test_what_has_no_word_of_the_query_or_an_opposite_vector_has_nothing_of_that_kind() -> None:
    assert relevance(0.4, None) == relevance(0.4, 0.0)
    assert relevance(-0.1, 0.5) == relevance(0.0, 0.5)


def test_without_an_embedding_words_alone_count() -> None:
    assert relevance(None, 0.25) == 0.25 * COVERAGE_ALONE
    assert relevance(None, None) is None


def test_a_usual_answer_is_about_as_relevant_with_an_embedding_and_without() -> None:
    """As the chunks of a text that is asked for by its title, in the mean."""
    assert relevance(0.62, 0.77) == pytest.approx(relevance(None, 0.77), abs=0.5)


@given(st.lists(st.floats(-10, 10), max_size=20))
def test_no_value_is_larger_than_one_before_it_and_the_sum_stays(values: list[float]) -> None:
    found = falling(values)
    assert len(found) == len(values)
    assert all(one >= other - 1e-9 for one, other in pairwise(found))
    assert sum(found) == pytest.approx(sum(values), abs=1e-6)
    assert falling(sorted(values, reverse=True)) == sorted(values, reverse=True)


@pytest.mark.parametrize(
    ("values", "found"),
    [
        ([3.0, 1.0, 2.0, 0.0], [3.0, 1.5, 1.5, 0.0]),
        ([1.0, 2.0, 6.0], [3.0, 3.0, 3.0]),
        ([2.0, 4.0, 1.0, 5.0], [3.0, 3.0, 3.0, 3.0]),
        ([], []),
    ],
)
def test_the_nearest_falling_values(values: list[float], found: list[float]) -> None:
    assert falling(values) == pytest.approx(found)


@pytest.fixture(scope="module")
def sides(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, DocumentIndex]]:
    """The demo's documents of both sides, found as they are by default."""
    opened = {}
    for side in ("private", "public"):
        index = open_index(tmp_path_factory.mktemp(side))
        paths = sorted((demo_folder("demo-documents") / side).iterdir())
        index.add([Document(path.name, path.read_text()) for path in paths])
        opened[side] = index
    yield opened
    for index in opened.values():
        index.close()


def by_both(hits: list[Hit]) -> list[float]:
    return falling([relevance(hit.similarity, hit.coverage) or 0.0 for hit in hits])


QUESTIONS = [
    ("private", "How long is each Heron release maintained?", "maintained for eighteen", 0.97),
    ("public", "How often is a new feature version of Python released?", "every twelve", 0.65),
    ("public", "How long is the Python 3.X series maintained?", "series is maintained for", 0.3),
]
"""Of the demonstration, and an earlier one of it; words of the passage with the answer, and its
least share of its side's weight among four. By ten times the cosine it was 0.94, 0.48 and 0.15."""


@pytest.mark.parametrize(("side", "question", "fact", "least"), QUESTIONS)
def test_the_passage_with_the_answer_weighs_more_than_by_its_vector_alone(
    sides: dict[str, DocumentIndex], side: str, question: str, fact: str, least: float
) -> None:
    """Where passages of one subject shared the weight nearly evenly."""
    hits = sides[side].search(question, DOCUMENTS)
    (place,) = (place for place, hit in enumerate(hits) if fact in hit.text)
    by_cosine = [10 * (hit.similarity or 0.0) for hit in hits]
    share, before = (
        float(np.exp(found)[place] / np.exp(found).sum()) for found in (by_both(hits), by_cosine)
    )
    assert share > max(least, before + 0.03)


@pytest.mark.parametrize(("side", "question", "fact", "least"), QUESTIONS)
def test_the_side_that_has_the_answer_has_most_of_the_weight(
    sides: dict[str, DocumentIndex], side: str, question: str, fact: str, least: float
) -> None:
    """Of both sides' documents together, as many as are asked for by default."""
    found = {name: by_both(index.search(question, 2)) for name, index in sides.items()}
    masses = {name: float(np.exp(each).sum()) for name, each in found.items()}
    assert masses[side] > 0.9 * sum(masses.values())
