"""Token ids from elsewhere are checked one by one; equal sequences have equal prefix hashes,
however they were cut, and others do not."""

import random
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandem.core.errors import InvalidArgument
from tandem.core.tokens import (
    EMPTY_PREFIX,
    PrefixedTokens,
    PrefixMismatch,
    check_token_ids,
    extend_prefix,
    prefix_hashes,
)


@pytest.mark.parametrize("ids", [[], [0], (0, 150_000, 151_935), np.array([0, 151_935])])
def test_the_whole_vocabulary_is_allowed(ids: Sequence[int]) -> None:
    check_token_ids(ids, 151_936, "prompt")


@pytest.mark.parametrize("ids", [[-1], [0, 10], [3, 2**40], np.array([1, -1])])
def test_others_are_rejected_by_name_and_index(ids: Sequence[int]) -> None:
    with pytest.raises(InvalidArgument, match=rf"draft\.token_ids: \[{len(ids) - 1}\]") as caught:
        check_token_ids(ids, 10, "draft.token_ids")
    assert caught.value.field == "draft.token_ids"


def test_cutting_does_not_matter() -> None:
    source = random.Random(0)
    for _ in range(100):
        tokens = [source.randrange(200_000) for _ in range(source.randrange(1, 50))]
        cut = source.randrange(len(tokens) + 1)
        parts = extend_prefix(extend_prefix(EMPTY_PREFIX, tokens[:cut]), tokens[cut:])
        assert parts == extend_prefix(EMPTY_PREFIX, tokens)


def test_a_text_is_hashed_at_once_as_token_by_token() -> None:
    source = random.Random(0)
    tokens = [source.randrange(-1, 2**31) for _ in range(300)]
    whole = prefix_hashes(tokens)
    prefix = EMPTY_PREFIX
    for position, token in enumerate(tokens):
        assert int(whole[position]) == prefix
        prefix = extend_prefix(prefix, (token,))
    assert prefix == int(whole[-1]) == extend_prefix(EMPTY_PREFIX, tokens)
    assert np.array_equal(prefix_hashes(tokens[37:], int(whole[37])), whole[37:])
    swapped = [*tokens[:5], tokens[261], *tokens[6:261], tokens[5], *tokens[262:]]
    assert extend_prefix(EMPTY_PREFIX, swapped) != prefix


def test_the_hash_is_pinned_and_takes_any_integer_type() -> None:
    # Both ends of a link must agree on it, so it is part of the protocol.
    assert extend_prefix(EMPTY_PREFIX, [1, 2, 3]) == 0xDF3EDB33C0E6539C
    for kind in (np.int64, np.int32, np.uint32):
        assert extend_prefix(EMPTY_PREFIX, np.array([1, 2, 3], dtype=kind)) == 0xDF3EDB33C0E6539C


def test_hashes_follow_the_tokens() -> None:
    tokens = PrefixedTokens((5, 6))
    assert tokens.start == len(tokens) == 2
    tokens.append(7)
    tokens.extend((8, 9))
    assert tokens.since(0) == (5, 6, 7, 8, 9)
    assert tokens.since(3) == (8, 9)
    assert (tokens[2], tokens.last, tokens.start) == (7, 9, 2)
    assert tokens.prefix == extend_prefix(EMPTY_PREFIX, (5, 6, 7, 8, 9))
    assert tokens.prefix_with((1, 2)) == extend_prefix(tokens.prefix, (1, 2))
    assert PrefixedTokens(()).prefix == EMPTY_PREFIX


def test_every_position_can_be_compared() -> None:
    tokens = PrefixedTokens((5, 6, 7))
    for position in range(4):
        right = extend_prefix(EMPTY_PREFIX, (5, 6, 7)[:position])
        tokens.check(position, right)
        with pytest.raises(PrefixMismatch, match=f"before position {position}") as caught:
            tokens.check(position, right ^ 1)
        assert caught.value.position == position
    with pytest.raises(PrefixMismatch):
        tokens.check(3, extend_prefix(EMPTY_PREFIX, (5, 6)), beyond=(8,))


@given(
    st.lists(st.integers(0, 3), min_size=1),
    st.lists(st.one_of(st.integers(0, 3), st.lists(st.integers(0, 3), max_size=5)), max_size=12),
)
def test_what_was_asked_of_before_changes_no_hash(
    first: list[int], steps: list[int | list[int]]
) -> None:
    tokens = PrefixedTokens(first)
    text = list(first)
    for step in steps:
        if isinstance(step, int):
            tokens.append(step)
            text.append(step)
            assert tokens.prefix_at(len(text)) == tokens.prefix
        else:
            assert tokens.prefix_with(step) == extend_prefix(EMPTY_PREFIX, [*text, *step])
        assert tokens.prefix == extend_prefix(EMPTY_PREFIX, text)
