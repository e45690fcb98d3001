"""A tenant's earlier texts: what is kept of them, how often, and for how long."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from tandem.core.ngram_index import LONGEST_MATCH
from tandem.specdec.text_memory import MOST_COPIES, OVERLAP, TextMemory

VOCABULARY = 1000


def words(count: int, seed: int = 1) -> list[int]:
    source = random.Random(seed)
    return [source.randrange(VOCABULARY) for _ in range(count)]


def followers(memory: TextMemory, tail: Sequence[int]) -> list[int]:
    """What followed the longest match, the newest first."""
    _, places = memory.index.find(tail[-LONGEST_MATCH:])
    return [memory.index.tokens[place] for place in places]


def test_places_count_how_often_a_token_followed() -> None:
    memory = TextMemory(quota=1000)
    for follower in (7, 8, 7):
        memory.learn((1, 2, 3, follower, follower), ())
    assert followers(memory, (1, 2, 3)) == [7, 8, 7]


def test_a_conversation_is_kept_once() -> None:
    """Each prompt has all turns before it."""
    memory = TextMemory(quota=100_000)
    text = list[int]()
    for turn in range(8):
        prompt, answer = [*text, *words(100, 2 * turn)], words(150, 2 * turn + 1)
        memory.learn(prompt, answer)
        text = [*prompt, *answer]
    assert len(text) == 2000
    assert len(memory) < len(text) + 8 * (OVERLAP + LONGEST_MATCH)
    for place in range(3, len(text)):
        found = followers(memory, text[:place])
        assert {*found} == {text[place]}, place


def test_an_answer_given_again_counts_again_up_to_a_few_times() -> None:
    memory = TextMemory(quota=100_000)
    prompt, answer = words(200), words(100, 2)
    for times in range(MOST_COPIES + 3):
        memory.learn(prompt, answer)
        found = followers(memory, [*prompt, *answer[:50]])
        assert found == [answer[50]] * min(times + 1, MOST_COPIES)
    before = len(memory)
    memory.learn(prompt, answer)
    assert len(memory) == before
    memory.learn(prompt, words(100, 3))
    assert len(memory) >= before + 100, "another answer is news"


def test_of_texts_those_go_first_that_were_longest_not_repeated() -> None:
    memory = TextMemory(quota=1000)
    texts = [words(200, seed) for seed in range(5)]
    for text in texts:
        memory.learn(text, ())
    memory.learn((*texts[0], 1, 2, 3, 4, 5), ())  # which repeats the first
    memory.learn(words(200, 9), ())
    assert len(memory) <= 1000
    assert followers(memory, texts[0][:50]) == [texts[0][50]]
    assert followers(memory, texts[1][:50]) == []
    assert followers(memory, words(200, 9)[:50]) != []


def test_a_text_longer_than_the_quota_is_kept_from_its_end() -> None:
    memory = TextMemory(quota=100)
    text = words(500)
    memory.learn(text[:450], text[450:])
    assert len(memory) <= 100
    assert followers(memory, text[:480]) == [text[480]]
    assert followers(memory, text[:50]) == []


def test_what_was_evicted_with_a_beginning_is_learned_again() -> None:
    memory = TextMemory(quota=600)
    conversation = words(300)
    memory.learn(conversation, ())
    for seed in range(2, 8):
        memory.learn(words(200, seed), ())
    assert followers(memory, conversation[:100]) == []
    memory.learn(conversation, words(50, 99))
    assert followers(memory, conversation[:100]) == [conversation[100]]


def test_whoever_looks_up_while_texts_are_evicted_goes_on() -> None:
    memory = TextMemory(quota=600)
    text = words(100)
    memory.learn(text, ())
    before = memory.index
    for seed in range(2, 20):
        memory.learn(words(100, seed), ())
    assert followers(memory, text[:50]) == []
    _, (place,) = before.find(text[18:50])
    assert before.tokens[place] == text[50]


@pytest.mark.parametrize("length", range(6))
def test_a_few_tokens_are_no_text(length: int) -> None:
    memory = TextMemory(quota=100)
    memory.learn(range(length), ())
    assert len(memory) == (length if length > 3 else 0)
