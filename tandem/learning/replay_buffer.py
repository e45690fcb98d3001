"""The texts that a draft learns from, in one bounded file of one tenant.

The file begins with a magic number and a digest of the vocabulary; records follow, oldest first,
each with its length and a checksum. Invariants: the file is never larger than its limit; a file, or
the end of one, that cannot be read is left out with one warning, and nothing of it is believed; a
record that a killed process wrote only in part is such an end.
"""

from __future__ import annotations

import hashlib
import os
import struct
from collections.abc import Iterator
from pathlib import Path
from zlib import crc32

import numpy as np

from tandem.learning.examples import Example, TargetProbs
from tandem.runtime.private_files import make_private_folder, replace_privately
from tandem.telemetry.logging import get_logger

log = get_logger(__name__)

MAGIC = b"TDMLRN01"
DIGEST_BYTES = 16
MAX_PROMPT = 512
MAX_ANSWER = 2048
"""Tokens that are kept of a text: the end of its prompt, the beginning of its answer."""
MAX_PROBS = 32
"""Tokens that are kept of a target distribution: the likeliest."""
KEPT_SHARE = 0.75
"""Of the limit: what is left of a full file when it is written anew."""
_RECORD = struct.Struct("<II")
"""Length and checksum of what follows."""
_TEXT = struct.Struct("<IIfBQQI")
_PROBS = struct.Struct("<II")


class Damaged(Exception):
    """A record that is not what was written."""


class ReplayBuffer:
    """The file at `path`, of at most `max_bytes`, for token ids below `vocabulary_size` of the
    vocabulary with this hash. Not for two threads at once; every method may raise OSError."""

    def __init__(
        self, path: Path, max_bytes: int, vocabulary_hash: str, vocabulary_size: int
    ) -> None:
        self._path = path
        self._max_bytes = max_bytes
        digest = hashlib.sha256(vocabulary_hash.encode()).digest()
        self._start = MAGIC + digest[:DIGEST_BYTES]
        self._vocabulary_size = vocabulary_size
        self._records: list[bytes] | None = None
        """Those of the file; None where it must be written anew."""
        self.size_bytes = 0
        """Of the file, as far as it is believed."""

    def read(self) -> list[Example]:
        """Return the texts, oldest first; what cannot be read is left out, and overwritten by the
        next `add`."""
        try:
            content = self._path.read_bytes()
        except FileNotFoundError:
            self._keep(None)
            return []
        texts: list[Example] = []
        records: list[bytes] = []
        why = "" if content.startswith(self._start) else "it is of another vocabulary or format"
        end = len(self._start)
        if not why:
            try:
                for next_end, payload in _records(content, end):
                    texts.append(_decoded(payload, self._vocabulary_size))
                    records.append(content[end:next_end])
                    end = next_end
                if end < len(content):
                    why = "a text is not whole, or has another checksum"
            except Damaged as error:
                why = str(error)
        if why:
            left = len(content) - (end if records else 0)
            log.warning(
                "texts to learn from are left out", file=str(self._path), bytes=left, reason=why
            )
        self._keep(records if records or not why else None)
        if why and records:
            self._write()
        return texts

    def add(self, text: Example) -> None:
        """Add a text; the oldest ones go where it would not fit."""
        record = _encoded(_trimmed(text))
        records = self._records
        if records is not None and self.size_bytes + len(record) <= self._max_bytes:
            try:
                append_privately(self._path, record)
            except FileNotFoundError:  # what it held was deleted on purpose
                self._keep([record])
                self._write()
            else:
                records.append(record)
                self.size_bytes += len(record)
            return
        self._keep([*(records or ()), record])
        assert self._records is not None, "kept just now"
        while len(self._records) > 1 and self.size_bytes > KEPT_SHARE * self._max_bytes:
            self.size_bytes -= len(self._records.pop(0))
        self._write()

    def _keep(self, records: list[bytes] | None) -> None:
        self._records = records
        self.size_bytes = len(self._start) + sum(map(len, records or ()))

    def _write(self) -> None:
        make_private_folder(self._path.parent)  # somebody may have deleted it
        replace_privately(self._path, self._start + b"".join(self._records or ()))


def append_privately(path: Path, content: bytes) -> None:
    """Add to the end of a file that is there. Raises OSError, with nothing added: what a full disk
    took of `content` is cut off again."""
    handle = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW)
    try:
        end = os.lseek(handle, 0, os.SEEK_END)
        try:
            written = os.write(handle, content)
            if written != len(content):
                raise OSError(f"{path}: only {written} of {len(content)} bytes could be written")
        except OSError:
            os.ftruncate(handle, end)
            raise
    finally:
        os.close(handle)


def _records(content: bytes, start: int = 0) -> Iterator[tuple[int, bytes]]:
    """Yield the payload of each record from `start` on, with the place where the record ends, up to
    the first one that is not whole or has another checksum."""
    place = start
    while place + _RECORD.size <= len(content):
        length, checksum = _RECORD.unpack_from(content, place)
        begin = place + _RECORD.size
        place = begin + length
        payload = content[begin:place]
        if len(payload) < length or crc32(payload) != checksum:
            return
        yield place, payload


def _trimmed(text: Example) -> Example:
    """Return the part of a text that is kept."""
    start = max(0, text.first - MAX_PROMPT)
    return text.part(start, min(len(text), text.first + MAX_ANSWER))


def _encoded(text: Example) -> bytes:
    parts = [
        _TEXT.pack(
            *(len(text), text.first, text.temperature, text.seed is not None),
            *(text.seed or 0, text.position, len(text.target_probs)),
        ),
        text.token_ids.astype("<u4").tobytes(),
    ]
    for index, known in sorted(text.target_probs.items()):
        kept = np.argsort(-known.probs, kind="stable")[:MAX_PROBS]
        parts += [
            _PROBS.pack(index, len(kept)),
            known.ids[kept].astype("<u4").tobytes(),
            known.probs[kept].astype("<f4").tobytes(),
            known.draft_probs[kept].astype("<f4").tobytes(),
        ]
    payload = b"".join(parts)
    return _RECORD.pack(len(payload), crc32(payload)) + payload


def _decoded(payload: bytes, vocabulary_size: int) -> Example:
    """Decode a text. Raises Damaged for bytes that cannot be one."""
    try:
        header = _TEXT.unpack_from(payload)
        count, first, temperature, seeded, seed, position, known_count = header
        at = _TEXT.size
        ids = _ids(payload, at, count, vocabulary_size)
        at += 4 * count
        target_probs = {}
        for _ in range(known_count):
            index, size = _PROBS.unpack_from(payload, at)
            at += _PROBS.size
            known_ids = _ids(payload, at, size, vocabulary_size)
            both = np.frombuffer(payload, "<f4", 2 * size, at + 4 * size).astype(np.float32)
            at += 12 * size
            if not first <= index < count or not ((both >= 0) & (both <= 1)).all():
                raise Damaged("probabilities that cannot be")
            target_probs[index] = TargetProbs(known_ids, both[:size], both[size:])
    except (struct.error, ValueError) as error:
        raise Damaged("a text is shorter than it says") from error
    if at != len(payload) or not 1 <= first < count or not 0 <= temperature < 100:
        raise Damaged("a text that cannot be")
    return Example(
        token_ids=ids,
        first=first,
        temperature=temperature,
        seed=seed if seeded else None,
        position=position,
        target_probs=target_probs,
    )


def _ids(
    payload: bytes, at: int, count: int, vocabulary_size: int
) -> np.ndarray[tuple[int], np.dtype[np.int32]]:
    ids = np.frombuffer(payload, "<u4", count, at)
    if (ids >= vocabulary_size).any():
        raise Damaged("token ids outside the vocabulary")
    return ids.astype(np.int32)
