"""What a found document weighs: by its vector and by its words, never more than a better one."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from tandem.demo import demo_folder
from tandem.index.document_index import DocumentIndex, open_index
from tandem.index.records import Document, Hit
from tandem.index.relevance import falling, relevance

DOCUMENTS = 4


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
