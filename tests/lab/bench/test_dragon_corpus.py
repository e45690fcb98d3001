"""Documents of the quality bench, found as the services find them."""

from __future__ import annotations

import pytest

from lab.bench.two_sided.dragon_corpus import default_search, word_search

TEXTS = (
    "The heron stands in shallow water and waits for fish.",
    "Release managers publish a new version every autumn.",
    "Egrets and other wading birds hunt along the shore.",
    "The linter refuses an import that nobody uses.",
)


def test_the_default_search_finds_by_meaning_what_words_alone_do_not() -> None:
    """Before, the figures' documents were found by their words alone."""
    query = "storks catch prey"
    with word_search(TEXTS) as by_words:
        assert not by_words(query, 2)
    with default_search(TEXTS) as find:
        found = find(query, 2)
    assert {number for number, _ in found} == {0, 2}
    relevances = [relevance for _, relevance in found]
    assert all(0 < relevance <= 10 for relevance in relevances), "ten times a similarity"
    assert relevances[0] == pytest.approx(max(relevances), rel=0.5)
