"""Which blocks of keys and values are kept, for whom, and which go first."""

from __future__ import annotations

from tandem.backends.interface import KV_BLOCK
from tandem.net.tenant import Tenant
from tandem.runtime.prefix_index import PrefixIndex

SIZE = 10


def text(*blocks: int) -> list[int]:
    """One number for each block."""
    return [block for block in blocks for _ in range(KV_BLOCK)]


A = Tenant("a")


def keep(index: PrefixIndex[str], caller: str, *blocks: int) -> None:
    index.put(Tenant(caller), text(*blocks), [f"{caller}{block}" for block in blocks], SIZE)


def found(index: PrefixIndex[str], caller: str, *blocks: int) -> list[str]:
    return index.find(Tenant(caller), text(*blocks))


def test_a_text_finds_the_blocks_that_it_begins_with() -> None:
    index = PrefixIndex[str]()
    keep(index, "a", 1, 2, 3)
    assert found(index, "a", 1, 2, 3) == ["a1", "a2", "a3"]
    assert found(index, "a", 1, 2, 9) == ["a1", "a2"]
    assert found(index, "a", 2, 3) == []
    assert index.find(A, text(1, 2)[:-1]) == ["a1"]
    assert index.find(A, [*text(1), 7]) == ["a1"]


def test_callers_are_apart() -> None:
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


def test_a_caller_keeps_no_more_than_it_may() -> None:
    index = PrefixIndex[str](caller_bytes=2 * SIZE)
    keep(index, "a", 1, 2, 3)
    assert found(index, "a", 1, 2, 3) == ["a1", "a2"]
    keep(index, "b", 1)
    assert index.size_bytes == 3 * SIZE
    tight = PrefixIndex[str](caller_bytes=SIZE - 1)
    keep(tight, "a", 1)
    assert (found(tight, "a", 1), tight.size_bytes) == ([], 0)


def test_a_block_whose_beginning_is_gone_is_not_kept() -> None:
    index = PrefixIndex[str]()
    index.put(A, text(1, 2), ["a2"], SIZE)
    assert index.size_bytes == 0
    keep(index, "a", 1)
    index.put(A, text(1, 2), ["a2"], SIZE)
    assert found(index, "a", 1, 2) == ["a1", "a2"]
    index.put(A, text(1, 2), ["again"], SIZE)
    assert (found(index, "a", 1, 2), index.size_bytes) == (["a1", "a2"], 2 * SIZE)


def keep_for(index: PrefixIndex[str], tenant: Tenant, *blocks: int, public: int = 0) -> None:
    """The first `public` blocks are public."""
    contents = [f"{tenant.id.decode()}{block}" for block in blocks]
    index.put(tenant, text(*blocks), contents, SIZE, public * KV_BLOCK)


def test_tenants_of_one_caller_are_apart() -> None:
    index = PrefixIndex[str]()
    keep_for(index, Tenant("edge", b"x"), 1, 2)
    assert index.find(Tenant("edge", b"y"), text(1, 2)) == []
    assert index.find(Tenant("edge"), text(1, 2)) == []
    assert index.find(Tenant("edge", b"x"), text(1, 2)) == ["x1", "x2"]


def test_an_id_of_another_caller_s_tenant_finds_nothing() -> None:
    index = PrefixIndex[str]()
    keep_for(index, Tenant("edge", b"x"), 1, 2, public=1)
    assert index.find(Tenant("stranger", b"x"), text(1, 2), 2 * KV_BLOCK) == []


def test_what_is_public_is_found_by_all_tenants_of_the_caller_and_the_rest_is_not() -> None:
    index = PrefixIndex[str]()
    keep_for(index, Tenant("edge", b"x"), 1, 2, 3, public=2)
    assert index.find(Tenant("edge", b"y"), text(1, 2, 3), 2 * KV_BLOCK) == ["x1", "x2"]
    assert index.find(Tenant("edge", b"x"), text(1, 2, 3), 2 * KV_BLOCK) == ["x1", "x2", "x3"]
    assert index.size_bytes == 3 * SIZE


def test_nothing_private_is_found_by_calling_it_public() -> None:
    index = PrefixIndex[str]()
    keep_for(index, Tenant("edge", b"x"), 1, 2)
    keep_for(index, Tenant("edge"), 1, 2)
    assert index.find(Tenant("edge", b"y"), text(1, 2), 2 * KV_BLOCK) == []


def test_a_block_with_a_token_that_is_not_public_is_the_tenant_s() -> None:
    index = PrefixIndex[str]()
    index.put(Tenant("edge", b"x"), text(1, 2), ["x1", "x2"], SIZE, 2 * KV_BLOCK - 1)
    assert index.find(Tenant("edge", b"y"), text(1, 2), 2 * KV_BLOCK) == ["x1"]


def test_many_tenants_keep_no_more_than_their_caller_may() -> None:
    index = PrefixIndex[str](caller_bytes=2 * SIZE)
    for tenant in (b"x", b"y", b"z"):
        keep_for(index, Tenant("edge", tenant), 1)
    keep_for(index, Tenant("other", b"x"), 1)
    assert index.size_bytes == 3 * SIZE
    assert index.find(Tenant("other", b"x"), text(1)) == ["x1"]


def test_a_caller_with_many_tenants_gives_before_one_that_keeps_less() -> None:
    index = PrefixIndex[str]()
    for tenant in (b"x", b"y", b"z"):
        keep_for(index, Tenant("many", tenant), 1)
    keep_for(index, Tenant("modest"), 1, 2)
    index.shrink(4 * SIZE)
    assert len(index.find(Tenant("modest"), text(1, 2))) == 2
