"""Committed tokens and the hashes of all their prefixes."""

import pytest

from tandem.core.prefix import EMPTY_PREFIX, extend_prefix
from tandem.protocol.prefixes import PrefixedTokens, PrefixMismatch


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


def test_positions_beyond_are_compared_with_what_follows() -> None:
    tokens = PrefixedTokens((5, 6))
    tokens.check(4, extend_prefix(EMPTY_PREFIX, (5, 6, 7, 8)), beyond=(7, 8, 9))
    with pytest.raises(PrefixMismatch):
        tokens.check(4, extend_prefix(EMPTY_PREFIX, (5, 6, 7, 9)), beyond=(7, 8, 9))
