"""Texts that were told of, without an object for each."""

import pytest

from tandem.index.known_texts import KnownTexts
from tandem.index.owners import OPERATORS, Collection


def test_a_text_is_forgotten_once() -> None:
    known = KnownTexts()
    ann = Collection.of("ann")
    for first, collection, chunks in ((3, OPERATORS, 2), (5, ann, 0), (9, OPERATORS, 40)):
        known.add(first, collection, chunks)
    assert known.pop(5) == (ann, 0)
    assert known.pop(5) is None
    assert [known.pop(first) for first in (0, 4, 10)] == [None] * 3
    assert known.pop(9) == (OPERATORS, 40)
    known.add(10, ann, 1)
    assert known.pop(10) == (ann, 1)
    with pytest.raises(AssertionError):
        known.add(10, ann, 1)
