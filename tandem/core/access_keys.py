"""Bearer keys: what callers show, and the only form in which a service keeps them.

A key is 32 random bytes, so one round of SHA-256 hides it: slow hashes protect words that people
chose. Invariants: a `KeyRing` holds hashes, never keys; whether a key is known is decided in a time
that depends neither on the key nor on which entry it meets. Imports the standard library only.

    key = new_key(secrets.token_bytes(KEY_BYTES))     # handed to the caller, kept nowhere
    line = key_line("edge-1", key)                    # "edge-1 sha256:…", kept by the service
    parse_keys(line).holder(key)                      # "edge-1"
"""

from __future__ import annotations

import hashlib
import hmac
import re
from base64 import urlsafe_b64encode
from dataclasses import dataclass, field

from tandem.core.errors import InvalidArgument

KEY_BYTES = 32
KEY_PREFIX = "tandem-"
"""Lets scanners for secrets and readers of logs tell what they found."""

MAX_KEY_CHARACTERS = 256
MIN_KEY_CHARACTERS = 32
_SCHEME = "sha256:"
_LINE = re.compile(r"(?P<holder>[A-Za-z0-9][A-Za-z0-9._-]{0,63})\s+sha256:(?P<digest>[0-9a-f]{64})")


def new_key(entropy: bytes) -> str:
    """A key of `entropy`, which must be `KEY_BYTES` fresh random bytes."""
    if len(entropy) != KEY_BYTES:
        raise InvalidArgument("entropy", f"must be {KEY_BYTES} bytes, got {len(entropy)}")
    return KEY_PREFIX + urlsafe_b64encode(entropy).rstrip(b"=").decode()


def check_key(key: str) -> None:
    """InvalidArgument, without the key, for what cannot be one: too short to be random, or
    characters that an HTTP header does not carry."""
    if not MIN_KEY_CHARACTERS <= len(key) <= MAX_KEY_CHARACTERS:
        sizes = f"{MIN_KEY_CHARACTERS} to {MAX_KEY_CHARACTERS}"
        raise InvalidArgument("key", f"must have {sizes} characters, got {len(key)}")
    if key.startswith(_SCHEME):
        raise InvalidArgument("key", "is a hash, not a key")
    if not (key.isascii() and key.isprintable() and " " not in key):
        raise InvalidArgument("key", "must be printable ASCII without spaces")


def hash_key(key: str) -> str:
    """`key` as it is kept: "sha256:" and 64 hexadecimal digits. Any text has a hash."""
    return _SCHEME + _digest(key).hex()


def key_line(holder: str, key: str) -> str:
    """The line of a file of keys that lets `holder` in with `key`."""
    check_key(key)
    line = f"{holder} {hash_key(key)}"
    if _LINE.fullmatch(line) is None:
        why = "must be 1 to 64 letters, digits, dots, dashes or underscores, and begin with one of"
        raise InvalidArgument("holder", f"{why} the first two, got {holder[:80]!r}")
    return line


def parse_keys(text: str) -> KeyRing:
    """Keys as lines of `HOLDER sha256:HEX`; empty lines and those that begin with # are skipped.

    A holder may have several keys, so that a new one can be handed out before the old one goes.
    Raises InvalidArgument naming the line, which it does not show: it may hold a key by mistake.
    """
    known = []
    for number, line in enumerate(text.splitlines(), start=1):
        entry = line.strip()
        if not entry or entry.startswith("#"):
            continue
        found = _LINE.fullmatch(entry)
        if found is None:
            raise InvalidArgument("keys", f"line {number} must be HOLDER sha256:HEX")
        known.append(HashedKey(found["holder"], bytes.fromhex(found["digest"])))
    return KeyRing(tuple(known))


@dataclass(frozen=True, slots=True)
class HashedKey:
    """Who may enter, and the SHA-256 of the key that shows it."""

    holder: str
    digest: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class KeyRing:
    """The keys a service knows."""

    keys: tuple[HashedKey, ...] = ()

    def holder(self, key: str) -> str | None:
        """Whose `key` this is; None for an unknown one."""
        digest = _digest(key)
        found = None
        for known in self.keys:  # all of them, always
            if hmac.compare_digest(known.digest, digest):
                found = known.holder
        return found


def _digest(key: str) -> bytes:
    # Callers send anything; lone surrogates have no UTF-8 and must not raise.
    return hashlib.sha256(key.encode(errors="surrogatepass")).digest()
