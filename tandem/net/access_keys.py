"""Bearer keys: what callers show, and the only form in which a service keeps them.

A key is 32 random bytes, so one round of SHA-256 hides it: slow hashes protect words that people
chose. Invariants: a `KeyRing` holds hashes, never keys; whether a key is known is decided in a time
that depends neither on the key nor on which entry it meets.

    key = new_key(secrets.token_bytes(KEY_BYTES))     # handed to the caller, kept nowhere
    line = key_line("edge-1", key, {Scope.VERIFY})    # "edge-1 sha256:… scopes=verify", kept
    parse_keys(line).caller(key)                      # edge-1, who may have drafts verified
    read_lines(text).malformed                        # lines that let nobody in, by number

A line is HOLDER sha256:HEX and fields NAME=VALUE, in any order, of which `scopes` must be there: a
key whose scopes had to be guessed would either open too much or quietly stop to work.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from base64 import urlsafe_b64encode
from collections.abc import Collection
from dataclasses import dataclass, field

from tandem.core.errors import InvalidArgument
from tandem.net.quotas import QUOTA_FIELDS, Quota
from tandem.net.scopes import Caller, Scope, scopes_from

KEY_BYTES = 32
KEY_PREFIX = "tandem-"
"""Lets secret scanners and readers of logs recognise a key."""

MAX_KEY_CHARACTERS = 256
MIN_KEY_CHARACTERS = 32
_SCHEME = "sha256:"
_HOLDER = r"(?P<holder>[A-Za-z0-9][A-Za-z0-9._-]{0,63})"
_HASH = r"sha256:(?P<digest>[0-9a-f]{64})"
_LINE = re.compile(rf"{_HOLDER}\s+{_HASH}(?P<fields>(\s+[a-z_]+=\S*)*)")
_FORM = "HOLDER sha256:HEX scopes=SCOPE,…"
FIELDS = frozenset({"scopes"}) | QUOTA_FIELDS
"""What a line may say of a key."""


def new_key(entropy: bytes) -> str:
    """Return a key of `entropy`, which must be `KEY_BYTES` fresh random bytes."""
    if len(entropy) != KEY_BYTES:
        raise InvalidArgument("entropy", f"must be {KEY_BYTES} bytes, got {len(entropy)}")
    return KEY_PREFIX + urlsafe_b64encode(entropy).rstrip(b"=").decode()


def check_key(key: str) -> None:
    """Raise InvalidArgument, without showing the key, for one too short to be random or unfit for a
    header."""
    if not MIN_KEY_CHARACTERS <= len(key) <= MAX_KEY_CHARACTERS:
        sizes = f"{MIN_KEY_CHARACTERS} to {MAX_KEY_CHARACTERS}"
        raise InvalidArgument("key", f"must have {sizes} characters, got {len(key)}")
    if key.startswith(_SCHEME):
        raise InvalidArgument("key", "is a hash, not a key")
    if not (key.isascii() and key.isprintable() and " " not in key):
        raise InvalidArgument("key", "must be printable ASCII without spaces")


def hash_key(key: str) -> str:
    """Return `key` as it is kept: "sha256:" and 64 hexadecimal digits. Any text has a hash."""
    return _SCHEME + _digest(key).hex()


def key_line(holder: str, key: str, scopes: Collection[Scope]) -> str:
    """Return the line of a file of keys that lets `holder` in with `key`, for `scopes`."""
    check_key(key)
    if not scopes:
        raise InvalidArgument("scopes", "must contain at least one")
    named = ",".join(scope for scope in Scope if scope in scopes)
    line = f"{holder} {hash_key(key)} scopes={named}"
    if _LINE.fullmatch(line) is None:
        why = "must be 1 to 64 letters, digits, dots, dashes or underscores, and begin with one of"
        raise InvalidArgument("holder", f"{why} the first two, got {holder[:80]!r}")
    return line


def parse_keys(text: str) -> KeyRing:
    """Parse like `read_lines`, but every line must be well-formed. Raises InvalidArgument naming
    the first that is not, which it does not show: it may hold a key by mistake."""
    lines = read_lines(text)
    if lines.malformed:
        raise InvalidArgument("keys", lines.malformed[0].why)
    return lines.ring


def read_lines(text: str) -> KeyLines:
    """Read keys from lines of `HOLDER sha256:HEX scopes=…`, skipping empty lines and those that
    begin with #. A holder may have several keys, so that a new one can be handed out before the old
    one goes. Each line counts by itself: a malformed one neither opens anything nor shuts others
    out."""
    known = []
    malformed = []
    for number, line in enumerate(text.splitlines(), start=1):
        entry = line.strip()
        if not entry or entry.startswith("#"):
            continue
        try:
            known.append(_hashed_key(number, entry))
        except InvalidArgument as error:
            malformed.append(MalformedLine(number, error.why))
    return KeyLines(KeyRing(tuple(known)), tuple(malformed))


def _hashed_key(number: int, entry: str) -> HashedKey:
    match = _LINE.fullmatch(entry)
    if match is None:
        raise InvalidArgument("keys", f"line {number} must be {_FORM}")
    fields = _fields(number, match["fields"])
    if "scopes" not in fields:
        raise InvalidArgument("keys", f"line {number} has no scopes=SCOPE,…")
    try:
        scopes = scopes_from(fields["scopes"])
        quota = Quota.parse(fields)
    except InvalidArgument as error:
        raise InvalidArgument("keys", f"line {number}: {error}") from error
    caller = Caller(match["holder"], scopes, quota)
    return HashedKey(caller, bytes.fromhex(match["digest"]))


def _fields(number: int, words: str) -> dict[str, str]:
    fields: dict[str, str] = {}
    for word in words.split():
        name, _, value = word.partition("=")
        if name not in FIELDS:
            known = ", ".join(sorted(FIELDS))
            why = f"line {number}: {name[:40]!r} is not a field of a key; known: {known}"
            raise InvalidArgument("keys", why)
        if name in fields:
            raise InvalidArgument("keys", f"line {number}: {name} appears twice")
        fields[name] = value
    return fields


@dataclass(frozen=True, slots=True)
class HashedKey:
    """A caller with its scopes, and the SHA-256 of the key that identifies it."""

    caller: Caller
    digest: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class KeyRing:
    """The keys a service knows."""

    keys: tuple[HashedKey, ...] = ()

    def caller(self, key: str) -> Caller | None:
        """Return the caller with this `key`; None for an unknown one."""
        digest = _digest(key)
        caller = None
        for known in self.keys:  # all of them, always
            if hmac.compare_digest(known.digest, digest):
                caller = known.caller
        return caller

    def holder(self, key: str) -> str | None:
        """Return the name alone."""
        caller = self.caller(key)
        return None if caller is None else caller.holder


@dataclass(frozen=True, slots=True)
class MalformedLine:
    """A line that lets nobody in: its number from 1 and why. `why` may quote a field that it has,
    so it is for whoever has the file, and not for logs."""

    number: int
    why: str


@dataclass(frozen=True, slots=True)
class KeyLines:
    """Content of a keys file: the keys of its well-formed lines, and the others."""

    ring: KeyRing
    malformed: tuple[MalformedLine, ...] = ()


def _digest(key: str) -> bytes:
    # Callers send anything; lone surrogates have no UTF-8 and must not raise.
    return hashlib.sha256(key.encode(errors="surrogatepass")).digest()
