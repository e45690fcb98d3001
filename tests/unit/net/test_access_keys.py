"""Keys and their hashes: who is let in, and what a file of keys may say."""

from __future__ import annotations

import hashlib
import hmac

import pytest

from tandem.core.errors import InvalidArgument
from tandem.net.access_keys import (
    KEY_BYTES,
    hash_key,
    key_line,
    new_key,
    parse_keys,
)
from tandem.net.scopes import Caller, Scope

KEYS = [new_key(bytes([number]) * KEY_BYTES) for number in range(4)]


def line(holder: str, key: str) -> str:
    return key_line(holder, key, {Scope.GENERATE})


def test_what_is_kept_is_the_hash_and_not_the_key() -> None:
    assert hash_key(KEYS[1]) == "sha256:" + hashlib.sha256(KEYS[1].encode()).hexdigest()
    entry = key_line("edge-1", KEYS[1], {Scope.VERIFY})
    assert entry == f"edge-1 {hash_key(KEYS[1])} scopes=verify"
    ring = parse_keys(entry)
    assert KEYS[1] not in entry + repr(ring)
    assert ring.keys[0].digest.hex() not in repr(ring)


def test_a_key_opens_for_its_holder_only() -> None:
    lines = [line("edge", KEYS[0]), "# old and new", "", f"  {line('edge', KEYS[1])}  "]
    ring = parse_keys("\n".join([*lines, line("bench", KEYS[2])]))
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

    ring = parse_keys("\n".join(line(f"edge-{n}", key) for n, key in enumerate(KEYS[:3])))
    monkeypatch.setattr(hmac, "compare_digest", compare)
    for key in KEYS:
        compared.clear()
        ring.holder(key)
        assert compared == [known.digest for known in ring.keys]


@pytest.mark.parametrize(
    "entry",
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
def test_a_bad_line_is_named_and_not_shown(entry: str) -> None:
    with pytest.raises(InvalidArgument) as refusal:
        parse_keys(f"# keys\n{entry}\n")
    assert str(refusal.value) == "keys: line 2 must be HOLDER sha256:HEX scopes=SCOPE,…"


def test_a_key_is_good_for_its_scopes_alone() -> None:
    both = frozenset({Scope.VERIFY, Scope.DOCUMENTS_READ})
    entry = key_line("edge", KEYS[0], both)
    assert entry.endswith(" scopes=verify,documents:read")
    caller = parse_keys(entry).caller(KEYS[0])
    assert caller == Caller("edge", both)
    with pytest.raises(InvalidArgument, match="scopes: must contain at least one"):
        key_line("edge", KEYS[0], ())


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ("", "line 2 has no scopes=SCOPE,…"),
        (" scopes=", "line 2: scopes: '' is not one of generate, verify, decode, documents:read,"),
        (" scopes=verify,all", "line 2: scopes: 'all' is not one of generate"),
        (" scopes=verify sope=2", "line 2: 'sope' is not a field of a key; known: "),
        (" scopes=verify scopes=admin", "line 2: scopes appears twice"),
        (" verify", "line 2 must be HOLDER sha256:HEX scopes="),
    ],
)
def test_a_field_that_is_missing_or_strange_is_named(fields: str, words: str) -> None:
    """A key without scopes is refused, too: any guess would be wrong."""
    with pytest.raises(InvalidArgument) as refusal:
        parse_keys(f"# keys\nedge {hash_key(KEYS[0])}{fields}\n")
    assert words in str(refusal.value)
