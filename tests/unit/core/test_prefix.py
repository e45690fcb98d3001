"""The prefix hash: the same for equal token sequences however cut, different for others."""

import random

import numpy as np

from tandem.core.prefix import EMPTY_PREFIX, extend_prefix


def test_cutting_does_not_matter() -> None:
    source = random.Random(0)
    for _ in range(100):
        tokens = [source.randrange(200_000) for _ in range(source.randrange(1, 50))]
        cut = source.randrange(len(tokens) + 1)
        parts = extend_prefix(extend_prefix(EMPTY_PREFIX, tokens[:cut]), tokens[cut:])
        assert parts == extend_prefix(EMPTY_PREFIX, tokens)


def test_near_misses_differ() -> None:
    prefixes: list[list[int]] = [
        [], [0], [0, 0], [1], [0, 1], [1, 0], [65_536], [256], [131_072], [2**31], [1, 0, 0]
    ]  # fmt: skip
    hashes = {extend_prefix(EMPTY_PREFIX, prefix) for prefix in prefixes}
    assert len(hashes) == len(prefixes)


def test_hashes_fit_an_unsigned_64_bit_field_and_use_it_all() -> None:
    hashes = [extend_prefix(EMPTY_PREFIX, [token]) for token in range(1000)]
    assert len(set(hashes)) == 1000
    assert all(0 <= value < 2**64 for value in hashes)
    assert max(hashes) > 2**63


def test_the_hash_is_pinned_and_takes_any_integer_type() -> None:
    # Both ends of a link must agree on it, so it is part of the protocol.
    assert extend_prefix(EMPTY_PREFIX, [1, 2, 3]) == 0x422B7C52DE20EA55
    for kind in (np.int64, np.int32, np.uint32):
        assert extend_prefix(EMPTY_PREFIX, np.array([1, 2, 3], dtype=kind)) == 0x422B7C52DE20EA55
