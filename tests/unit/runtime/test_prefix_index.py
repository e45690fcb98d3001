"""Which blocks of keys and values are kept, for whom, and which go first."""

from __future__ import annotations

from tandem.backends.interface import KV_BLOCK
from tandem.runtime.prefix_index import PrefixIndex

SIZE = 10


def text(*blocks: int) -> list[int]:
    """One number for each block."""
    return [block for block in blocks for _ in range(KV_BLOCK)]


def keep(index: PrefixIndex[str], holder: str, *blocks: int) -> None:
    index.put(holder, text(*blocks), [f"{holder}{block}" for block in blocks], SIZE)


def found(index: PrefixIndex[str], holder: str, *blocks: int) -> list[str]:
    return index.find(holder, text(*blocks))


def test_a_text_finds_the_blocks_that_it_begins_with() -> None:
    index = PrefixIndex[str]()
    keep(index, "a", 1, 2, 3)
    assert found(index, "a", 1, 2, 3) == ["a1", "a2", "a3"]
    assert found(index, "a", 1, 2, 9) == ["a1", "a2"]
    assert found(index, "a", 2, 3) == []
    assert index.find("a", text(1, 2)[:-1]) == ["a1"]
    assert index.find("a", [*text(1), 7]) == ["a1"]


def test_a_token_before_a_block_makes_it_another() -> None:
    index = PrefixIndex[str]()
    keep(index, "a", 1, 2)
    assert index.find("a", [5, *text(1, 2)[1:]]) == []


def test_holders_are_apart() -> None:
    index = PrefixIndex[str]()
    keep(index, "a", 1, 2)
    assert found(index, "b", 1, 2) == []
    keep(index, "b", 1)
    assert found(index, "b", 1, 2) == ["b1"]
    assert index.size_bytes == 3 * SIZE


def test_the_beginning_stays_longest() -> None:
    index = PrefixIndex[str]()
    keep(index, "a", 1, 2, 3)
    keep(index, "a", 1, 4)
    index.shrink(3 * SIZE)
    assert found(index, "a", 1, 2, 3) == ["a1", "a2"]
    assert found(index, "a", 1, 4) == ["a1", "a4"]
    index.shrink(SIZE)
    assert found(index, "a", 1, 4) == ["a1"]
    index.shrink(0)
    assert (found(index, "a", 1), index.size_bytes) == ([], 0)


def test_a_look_up_is_a_use() -> None:
    index = PrefixIndex[str]()
    keep(index, "a", 1)
    keep(index, "a", 2)
    assert found(index, "a", 1)
    index.shrink(SIZE)
    assert (found(index, "a", 1), found(index, "a", 2)) == (["a1"], [])


def test_who_keeps_most_gives_first() -> None:
    index = PrefixIndex[str]()
    keep(index, "modest", 1)
    keep(index, "greedy", 1, 2, 3)
    index.shrink(2 * SIZE)
    assert found(index, "modest", 1) == ["modest1"]
    assert found(index, "greedy", 1, 2, 3) == ["greedy1"]


def test_a_holder_keeps_no_more_than_it_may() -> None:
    index = PrefixIndex[str](holder_bytes=2 * SIZE)
    keep(index, "a", 1, 2, 3)
    assert found(index, "a", 1, 2, 3) == ["a1", "a2"]
    keep(index, "b", 1)
    assert index.size_bytes == 3 * SIZE
    tight = PrefixIndex[str](holder_bytes=SIZE - 1)
    keep(tight, "a", 1)
    assert (found(tight, "a", 1), tight.size_bytes) == ([], 0)


def test_a_block_whose_beginning_is_gone_is_not_kept() -> None:
    index = PrefixIndex[str]()
    index.put("a", text(1, 2), ["a2"], SIZE)
    assert index.size_bytes == 0
    keep(index, "a", 1)
    index.put("a", text(1, 2), ["a2"], SIZE)
    assert found(index, "a", 1, 2) == ["a1", "a2"]
    index.put("a", text(1, 2), ["again"], SIZE)
    assert (found(index, "a", 1, 2), index.size_bytes) == (["a1", "a2"], 2 * SIZE)
