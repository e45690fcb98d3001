"""Blocks are shared without copies and never written where another session reads."""

import torch

from tandem.backends.torch.kv_cache import KvPool, KvSession, LayerShape

LAYERS = [LayerShape(2, 3, 5, None), LayerShape(1, 4, 4, 7)]
BYTES = (2 * (3 + 5) + 1 * (4 + 4)) * 2


def pool() -> KvPool:
    return KvPool(LAYERS, torch.bfloat16, torch.device("cpu"))


def append(session: KvSession, *marks: float) -> None:
    """Feed one token per mark, whose keys and values are all that number."""
    session.prepare()
    for layer, shape in enumerate(LAYERS):
        column = torch.tensor(marks, dtype=torch.bfloat16)[None, :, None]
        key = column.expand(shape.kv_heads, -1, shape.key_size)
        session.write(layer, key, column.expand(shape.kv_heads, -1, shape.value_size))
    session.finish(len(marks), None)


def held(session: KvSession, layer: int = 1, start: int = 0) -> list[float]:
    spans = session.read(layer, start, session.length)
    keys = torch.cat([keys for keys, _ in spans], dim=1)
    values = torch.cat([values for _, values in spans], dim=1)
    assert torch.equal(keys[0, :, 0], values[0, :, 0])
    found: list[float] = keys[0, :, 0].tolist()
    return found


def test_bytes_per_token_add_up_over_layers() -> None:
    kv = pool()
    assert kv.bytes_per_token == BYTES
    session = kv.open(10)
    assert kv.bytes_in_use == 10 * BYTES
    session.close()
    assert kv.bytes_in_use == 0


def test_a_fork_reads_the_parents_memory() -> None:
    kv = pool()
    parent = kv.open(10)
    append(parent, 1, 2, 3, 4)
    child = kv.fork(parent, 3, 8)
    append(child, 5)
    assert held(child) == [1, 2, 3, 5]
    shared = child.read(0, 0, 4)[0][0]
    assert shared.data_ptr() == parent.read(0, 0, 4)[0][0].data_ptr()
    assert kv.bytes_in_use == (10 + 5) * BYTES
    assert held(child, start=2) == [3, 5]
    assert held(child, start=3) == [5]


def test_the_parent_goes_on_in_place_behind_the_shared_part() -> None:
    kv = pool()
    parent = kv.open(10)
    append(parent, 1, 2, 3, 4)
    child = kv.fork(parent, 2, 8)
    parent.rollback(2)
    append(parent, 7)
    assert (held(parent), held(child)) == ([1, 2, 7], [1, 2])
    assert kv.bytes_in_use == (10 + 6) * BYTES


def test_the_parent_never_overwrites_what_a_child_reads() -> None:
    kv = pool()
    parent = kv.open(10)
    append(parent, 1, 2, 3, 4)
    child = kv.fork(parent, 4, 8)
    parent.rollback(1)
    append(parent, 8, 9)
    assert (held(parent), held(child)) == ([1, 8, 9], [1, 2, 3, 4])
    assert kv.bytes_in_use == (10 + 4 + 9) * BYTES
    child.close()
    parent.rollback(0)
    append(parent, 6)
    assert held(parent) == [6]
    parent.close()
    assert kv.bytes_in_use == 0


def test_a_child_that_goes_back_into_the_prefix_gets_a_tail_of_its_own() -> None:
    kv = pool()
    parent = kv.open(4)
    append(parent, 1, 2, 3, 4)
    child = kv.fork(parent, 4, 8)
    child.rollback(2)
    append(child, 5, 6, 7, 8, 9, 10)
    assert (held(parent), held(child)) == ([1, 2, 3, 4], [1, 2, 5, 6, 7, 8, 9, 10])
    parent.close()
    assert held(child)[:2] == [1, 2]
    child.close()
    assert kv.bytes_in_use == 0


def test_blocks_outlive_the_session_that_made_them() -> None:
    kv = pool()
    parent = kv.open(10)
    append(parent, 1, 2)
    child = kv.fork(parent, 2, 4)
    grandchild = kv.fork(child, 2, 4)
    parent.close()
    child.close()
    append(grandchild, 3)
    assert held(grandchild) == [1, 2, 3]
    assert kv.bytes_in_use == (10 + 2) * BYTES
    grandchild.close()
    assert kv.bytes_in_use == 0


def test_without_other_readers_the_same_slots_are_written_again() -> None:
    kv = pool()
    session = kv.open(5)
    append(session, 1, 2, 3)
    kv.fork(session, 3, 5).close()
    session.rollback(1)
    append(session, 4)
    assert held(session) == [1, 4]
    assert kv.bytes_in_use == 5 * BYTES
