"""A tenant's earlier texts: what is found in them, how long they are kept, and what that costs."""

from __future__ import annotations

import random
from array import array
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from tandem.specdec import text_memory
from tandem.specdec.text_memory import (
    LONGEST_MATCH,
    MOST_COPIES,
    MOST_PLACES,
    OVERLAP,
    SHORTEST_MATCH,
    Block,
    LiveText,
    Text,
    TextMemory,
    find,
    make_text,
)

VOCABULARY = 1000


def words(count: int, seed: int = 1, vocabulary: int = VOCABULARY) -> list[int]:
    source = random.Random(seed)
    return [source.randrange(vocabulary) for _ in range(count)]


def followers(blocks: Sequence[Block], tail: Sequence[int]) -> tuple[int, list[int]]:
    """How long the longest match is, and what followed it, the newest first."""
    match = find(blocks, tuple(tail[-LONGEST_MATCH:]))
    if match is None:
        return 0, []
    return match.length, [tokens[place] for tokens, place in match.places]


def by_hand(texts: Sequence[Sequence[int]], tail: Sequence[int]) -> tuple[int, list[int]]:
    """The same by comparing everything with everything."""
    longest, found = 0, list[int]()
    for text in reversed(texts):
        for place in range(len(text) - 1, SHORTEST_MATCH - 1, -1):
            length = 0
            most = min(place, len(tail), LONGEST_MATCH)
            while length < most and text[place - 1 - length] == tail[-1 - length]:
                length += 1
            if length > longest and length >= SHORTEST_MATCH:
                longest, found = length, []
            if length == longest and longest:
                found.append(text[place])
    return longest, found


@pytest.mark.parametrize("vocabulary", [2, 4, 40])
def test_the_longest_match_is_found_wherever_it_stands(vocabulary: int) -> None:
    """As comparing everything finds it; where there are many, some of them."""
    texts = [words(120, seed, vocabulary) for seed in range(5)]
    memory = TextMemory(quota=10_000)
    for text in texts:
        memory.learn(text, ())
    source = random.Random(7)
    for _ in range(200):
        text = source.choice(texts)
        begin = source.randrange(100)
        tail = [*words(source.randrange(4), begin, vocabulary), *text[begin : begin + 20]]
        length, found = followers(memory.blocks, tail)
        right_length, all_found = by_hand(texts, tail)
        if len(all_found) <= MOST_PLACES and right_length >= 16:
            assert (length, sorted(found)) == (right_length, sorted(all_found))
        else:  # of many places some are looked at
            assert length <= right_length
            assert len(found) <= MOST_PLACES
            assert (length == 0) == (right_length == 0)


def test_no_match_reaches_from_one_text_into_another() -> None:
    memory = TextMemory(quota=1000)
    memory.learn((1, 2, 3, 4), ())
    memory.learn((5, 6, 7, 8), ())
    assert followers(memory.blocks, (1, 2, 3)) == (3, [4])
    for tail in ((2, 3, 4), (3, 4, 5), (4, 5, 6), (6, 7, 8)):
        assert followers(memory.blocks, tail) == (0, []), tail


def test_texts_shorter_than_a_match_are_found_nowhere() -> None:
    memory = TextMemory(quota=1000)
    for length in range(4):
        memory.learn(range(length), ())
    assert followers(memory.blocks, (0, 1, 2)) == (0, [])
    assert find(memory.blocks, (1, 2)) is None


def test_places_count_how_often_a_token_followed() -> None:
    memory = TextMemory(quota=1000)
    for follower in (7, 8, 7):
        memory.learn((1, 2, 3, follower, follower), ())
    length, found = followers(memory.blocks, (1, 2, 3))
    assert (length, sorted(found)) == (3, [7, 7, 8])


def test_equal_hashes_decide_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Were all contexts' keys the same, what is found would still be compared."""
    monkeypatch.setattr(
        text_memory, "context_keys", lambda tokens: np.zeros(max(0, len(tokens) - 16), np.uint64)
    )
    monkeypatch.setattr(text_memory, "_key_part", lambda tail, level: 0)
    memory = TextMemory(quota=1000)
    memory.learn((1, 2, 3, 4, 5), ())
    assert followers(memory.blocks, (1, 2, 3)) == (3, [4])
    assert followers(memory.blocks, (9, 9, 9)) == (0, [])


def test_keys_of_a_text_are_those_that_a_lookup_makes() -> None:
    text = words(40)
    block = Block([make_text(text)])
    for place in range(SHORTEST_MATCH, len(text)):
        assert followers([block], text[:place])[1] == [text[place]], place


def test_the_answer_so_far_is_found_by_its_last_tokens() -> None:
    live = LiveText()
    live.extend((1, 2, 3, 4, 9, 1, 2))
    assert live.places((9, 1, 2)) == [], "what follows the end is not known"
    live.extend((3,))
    match = find((), (9, 1, 2, 3), live)
    assert match is not None
    assert (match.length, [tokens[place] for tokens, place in match.places]) == (3, [4])


def test_a_conversation_is_kept_once() -> None:
    """Each prompt has all turns before it."""
    memory = TextMemory(quota=100_000)
    text = list[int]()
    for turn in range(8):
        prompt, answer = [*text, *words(100, 2 * turn)], words(150, 2 * turn + 1)
        kept, _ = memory.learn(prompt, answer)
        text = [*prompt, *answer]
        assert kept is not None
        assert [*text[: kept.position], *kept.token_ids] == text
    assert len(text) == 2000
    assert len(memory) < len(text) + 8 * (OVERLAP + text_memory.PREFIX_BLOCK)
    for place in range(SHORTEST_MATCH, len(text)):
        found = followers(memory.blocks, text[:place])[1]
        assert found in ([text[place]], [text[place]] * 2), "twice near the end of a known part"


def test_an_answer_given_again_counts_again_up_to_a_few_times() -> None:
    memory = TextMemory(quota=100_000)
    prompt, answer = words(200), words(100, 2)
    for times in range(MOST_COPIES + 3):
        memory.learn(prompt, answer)
        found = followers(memory.blocks, [*prompt, *answer[:50]])[1]
        assert found == [answer[50]] * min(times + 1, MOST_COPIES)
    assert memory.learn(prompt, answer) == (None, False)
    assert memory.learn(prompt, words(100, 3))[0] is not None, "another answer is news"


def test_of_texts_those_go_first_that_were_longest_not_repeated() -> None:
    memory = TextMemory(quota=1000)
    texts = [words(200, seed) for seed in range(5)]
    for text in texts:
        memory.learn(text, ())
    memory.learn((*texts[0], 1, 2, 3, 4, 5), ())  # which repeats the first
    kept, put_out = memory.learn(words(200, 9), ())
    assert kept is not None
    assert put_out
    assert len(memory) <= 1000
    assert followers(memory.blocks, texts[0][:50])[1] == [texts[0][50]]
    assert followers(memory.blocks, texts[1][:50])[1] == []
    assert followers(memory.blocks, words(200, 9)[:50])[1] != []


def test_a_text_longer_than_the_quota_is_kept_from_its_end() -> None:
    memory = TextMemory(quota=100)
    text = words(500)
    memory.learn(text[:450], text[450:])
    assert len(memory) <= 100
    assert followers(memory.blocks, text[:480])[1] == [text[480]]
    assert followers(memory.blocks, text[:50])[1] == []


def test_what_was_put_out_with_a_beginning_is_learned_again() -> None:
    memory = TextMemory(quota=600)
    conversation = words(300)
    memory.learn(conversation, ())
    for seed in range(2, 8):
        memory.learn(words(200, seed), ())
    assert followers(memory.blocks, conversation[:100])[1] == []
    memory.learn(conversation, words(50, 99))
    assert followers(memory.blocks, conversation[:100])[1] == [conversation[100]]


def test_blocks_stay_few_and_never_change_what_a_request_began_with() -> None:
    memory = TextMemory(quota=200_000)
    memory.learn(words(100), ())
    before = memory.blocks
    for seed in range(2, 200):
        memory.learn(words(100, seed), ())
        assert len(memory.blocks) <= 10
    text = words(100)
    assert followers(before, text[:50]) == (LONGEST_MATCH, [text[50]])
    assert len(before[0]) == 100


def test_a_token_takes_few_bytes() -> None:
    memory = TextMemory(quota=100_000)
    for seed in range(200):
        memory.learn(words(200, 2 * seed), words(200, 2 * seed + 1))
    assert len(memory) == 80_000
    assert memory.size_bytes / len(memory) < 64


class Counted(array):  # type: ignore[type-arg]
    """Counts how often an item is read."""

    reads = 0

    def __getitem__(self, index: Any) -> Any:
        Counted.reads += 1
        return super().__getitem__(index)


def test_a_lookup_costs_a_bisection_and_a_few_comparisons() -> None:
    """However much is remembered, and however often a context recurs."""
    memory = TextMemory(quota=200_000)
    for seed in range(60):
        memory.learn(words(1000, seed, 3), ())
    memory.learn([5] * 20_000, ())
    costs = list[int]()
    for block in memory.blocks:
        block.tokens = Counted("i", block.tokens)
    for tail in ([5] * LONGEST_MATCH, words(LONGEST_MATCH, 7, 3), words(LONGEST_MATCH, 8, 900)):
        Counted.reads = 0
        find(memory.blocks, tuple(tail))
        costs.append(Counted.reads)
    assert max(costs) <= MOST_PLACES * (LONGEST_MATCH + 1)
    assert len(memory.blocks) <= 8


def test_a_text_is_a_plain_value() -> None:
    text = make_text((1, 2, 3))
    assert text == Text(array("i", (1, 2, 3)), 3)
    assert len(text) == 3
