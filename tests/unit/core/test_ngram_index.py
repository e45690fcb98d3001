"""Where the end of a text stood before: what is found, with what work, and how little it takes."""

from __future__ import annotations

import random
from array import array
from collections.abc import Sequence
from threading import Thread
from typing import Any

import pytest

from tandem.core.ngram_index import LONGEST_MATCH, MOST_PLACES, MOST_STEPS, NgramIndex, _Chain

VOCABULARY = 1000


def words(count: int, seed: int = 1, vocabulary: int = VOCABULARY) -> list[int]:
    source = random.Random(seed)
    return [source.randrange(vocabulary) for _ in range(count)]


def index_of(*texts: Sequence[int]) -> NgramIndex:
    index = NgramIndex()
    for text in texts:
        index.extend(text)
        index.end_text()
    return index


def by_hand(tokens: Sequence[int], tail: Sequence[int]) -> tuple[int, list[int]]:
    """The same by comparing everything with everything."""
    longest, found = 0, list[int]()
    for place in range(len(tokens) - 1, 2, -1):
        if tokens[place] < 0:
            continue
        length, most = 0, min(place, len(tail), LONGEST_MATCH)
        while length < most and tokens[place - 1 - length] == tail[-1 - length]:
            length += 1
        if length > max(longest, 2):
            longest, found = length, []
        if length == longest and longest:
            found.append(place)
    return longest, found


@pytest.mark.parametrize("vocabulary", [2, 4, 40])
def test_the_longest_match_is_found_wherever_it_stands(vocabulary: int) -> None:
    """As comparing everything finds it; in a text of few words, among the newest places."""
    index = index_of(*(words(120, seed, vocabulary) for seed in range(5)))
    source = random.Random(7)
    for _ in range(200):
        begin = source.randrange(580)
        known = [each for each in index.tokens[begin : begin + 20] if each >= 0]
        tail = [*words(source.randrange(4), begin, vocabulary), *known]
        length, found = index.find(tail)
        right_length, right = by_hand(index.tokens, tail)
        assert length <= right_length
        assert (length == 0) == (right_length == 0)
        if vocabulary == 40:
            assert (length, found) == (right_length, right[:MOST_PLACES])


@pytest.mark.parametrize("cuts", [[], [10, 11, 12], [40, 100, 500], [64, 65, 300]])
def test_it_is_the_same_however_a_text_came(cuts: list[int]) -> None:
    text = words(600, vocabulary=30)
    one_by_one, index = NgramIndex(), NgramIndex()
    for token_id in text:
        one_by_one.extend((token_id,))
    for begin, end in zip([0, *cuts], [*cuts, 600], strict=True):
        index.extend(text[begin:end])
    for end in range(3, 600):
        tail = text[max(0, end - LONGEST_MATCH) : end]
        assert index.find(tail) == one_by_one.find(tail)


def test_what_is_cut_off_is_found_no_more_and_what_is_left_is() -> None:
    text = words(300, vocabulary=30)
    short, long = index_of(text[:150]), index_of(text[:150])
    long.extend(text[150:])
    copied = long.copy()
    long.truncate(151)
    for end in range(3, 300):
        tail = text[max(0, end - LONGEST_MATCH) : end]
        assert long.find(tail) == short.find(tail)
    long.extend(text[150:])
    for end in range(3, 300):
        tail = text[max(0, end - LONGEST_MATCH) : end]
        assert long.find(tail) == copied.find(tail)


def test_no_match_reaches_from_one_text_into_another() -> None:
    index = index_of((1, 2, 3, 4), (5, 6, 7, 8))
    assert index.find((1, 2, 3)) == (3, [3])
    for tail in ((3, 4, 5), (4, 5, 6)):
        assert index.find(tail) == (0, []), tail
    assert index.find((2, 3, 4)) == (0, []), "the end of a text is no token"


def test_equal_hashes_decide_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Were all contexts' hashes the same, what is found would still be compared."""
    monkeypatch.setattr(_Chain, "_head_of", lambda self, tokens, end, size: 0)
    index = index_of((1, 2, 3, 4, 5))
    assert index.find((1, 2, 3)) == (3, [3])
    assert index.find((9, 9, 9)) == (0, [])


class Counted(array):  # type: ignore[type-arg]
    """Counts how often an item is read."""

    reads = 0

    def __getitem__(self, index: Any) -> Any:
        Counted.reads += 1
        return super().__getitem__(index)


@pytest.mark.parametrize("length", [1000, 60_000])
def test_a_lookup_costs_no_more_in_a_longer_text(length: int) -> None:
    """However often a context recurs."""
    index = index_of(words(length, 1, 3), [5] * length)
    index.tokens = Counted("i", index.tokens)
    for tail in ([5] * LONGEST_MATCH, words(LONGEST_MATCH, 7, 3), words(LONGEST_MATCH, 8, 900)):
        Counted.reads = 0
        index.find(tail)
        assert Counted.reads <= 2 * MOST_STEPS * (LONGEST_MATCH + 1)


def test_others_look_up_while_one_appends() -> None:
    """What they find is a match, however the table grows meanwhile."""
    text = words(60_000, vocabulary=50)
    index = NgramIndex()
    index.extend(text[:1000])
    wrong = list[int]()
    found = list[int]()

    def look_up() -> None:
        source = random.Random(3)
        while len(index) < len(text) and not wrong:
            end = source.randrange(40, 900)
            length, places = index.find(text[end - LONGEST_MATCH : end])
            found.extend(places)
            wrong.extend(
                place
                for place in places
                if text[place - length : place] != text[end - length : end]
            )

    readers = [Thread(target=look_up) for _ in range(2)]
    for reader in readers:
        reader.start()
    for begin in range(1000, len(text), 100):
        index.extend(text[begin : begin + 100])
    for reader in readers:
        reader.join()
    assert found
    assert not wrong
