"""Keys and their hashes: who is let in, and what a file of keys may say."""

from __future__ import annotations

import hashlib
import hmac

import pytest

from tandem.core.access_keys import (
    KEY_BYTES,
    check_key,
    hash_key,
    key_line,
    new_key,
    parse_keys,
)
from tandem.core.errors import InvalidArgument

KEYS = [new_key(bytes([number]) * KEY_BYTES) for number in range(4)]


def test_a_key_is_its_entropy_in_printable_characters() -> None:
    assert KEYS[0] == "tandem-" + "A" * 43
    assert len(set(KEYS)) == len(KEYS)
    for key in KEYS:
        check_key(key)
    with pytest.raises(InvalidArgument, match="32 bytes, got 16"):
        new_key(bytes(16))


def test_what_is_kept_is_the_hash_and_not_the_key() -> None:
    assert hash_key(KEYS[1]) == "sha256:" + hashlib.sha256(KEYS[1].encode()).hexdigest()
    line = key_line("edge-1", KEYS[1])
    assert line == f"edge-1 {hash_key(KEYS[1])}"
    ring = parse_keys(line)
    assert KEYS[1] not in line + repr(ring)
    assert ring.keys[0].digest.hex() not in repr(ring)


def test_a_key_opens_for_its_holder_only() -> None:
    lines = [key_line("edge", KEYS[0]), "# old and new", "", f"  {key_line('edge', KEYS[1])}  "]
    ring = parse_keys("\n".join([*lines, key_line("bench", KEYS[2])]))
    assert [ring.holder(key) for key in KEYS] == ["edge", "edge", "bench", None]
    stored = hash_key(KEYS[0])
    near = [KEYS[0][:-1], KEYS[0] + "A", KEYS[0].upper(), KEYS[0] + "\0", "", stored, stored[7:]]
    assert [ring.holder(key) for key in near] == [None] * len(near)
    assert ring.holder("\udcff" * 40) is None
    assert parse_keys("").holder(KEYS[0]) is None


def test_every_entry_is_compared_in_constant_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether and where a key is found does not shorten the search."""
    compared: list[bytes] = []
    compare_digest = hmac.compare_digest

    def compare(one: bytes, other: bytes) -> bool:
        compared.append(one)
        return compare_digest(one, other)

    ring = parse_keys("\n".join(key_line(f"edge-{n}", key) for n, key in enumerate(KEYS[:3])))
    monkeypatch.setattr(hmac, "compare_digest", compare)
    for key in KEYS:
        compared.clear()
        ring.holder(key)
        assert compared == [known.digest for known in ring.keys]


@pytest.mark.parametrize(
    "line",
    [
        KEYS[0],
        f"edge {KEYS[0]}",
        f"sha256:{'0' * 64}",
        f"edge sha256:{'0' * 63}",
        f"edge sha256:{'0' * 65}",
        f"edge sha256:{'G' * 64}",
        f"edge md5:{'0' * 64}",
        f"-edge sha256:{'0' * 64}",
        f"{'e' * 65} sha256:{'0' * 64}",
        f"an edge sha256:{'0' * 64}",
    ],
)
def test_a_bad_line_is_named_and_not_shown(line: str) -> None:
    with pytest.raises(InvalidArgument) as refusal:
        parse_keys(f"# keys\n{line}\n")
    assert str(refusal.value) == "keys: line 2 must be HOLDER sha256:HEX"


@pytest.mark.parametrize("holder", ["", "-a", "a b", "a\nb", "ä", "a" * 65])
def test_a_bad_holder_is_refused(holder: str) -> None:
    with pytest.raises(InvalidArgument, match="holder: must be"):
        key_line(holder, KEYS[0])


@pytest.mark.parametrize(
    "key", ["short", "k" * 31, "k" * 257, "k" * 40 + "\n", "k " * 20, "é" * 40]
)
def test_what_is_no_key_is_refused_without_showing_it(key: str) -> None:
    for check in (check_key, lambda key: key_line("edge", key)):
        with pytest.raises(InvalidArgument) as refusal:
            check(key)
        assert key not in str(refusal.value)
