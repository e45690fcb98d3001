"""A few keys of a GGUF file, found by their bytes. To step over a vocabulary from key to key takes
0.1 s a file; to search for a key takes none that can be felt."""

from __future__ import annotations

import mmap
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

HEADER_BYTES = 2**26
"""The keys lie before the weights; vocabularies of 250,000 tokens take 20 MB."""
_UINT32, _STRING, _ARRAY = 4, 8, 9
"""Types of values."""
_TOKENS = b"tokenizer.ggml.tokens"
_AFTER_TOKENS = tuple(
    b"tokenizer.ggml." + name for name in (b"token_type", b"scores", b"merges", b"eos_token_id")
)
"""One of these keys follows the vocabulary, in the order of the converter."""


class GgufHeader:
    """The keys of one file."""

    def __init__(self, mapped: mmap.mmap) -> None:
        self._mapped = mapped

    @property
    def has_chat_template(self) -> bool:
        return self._place(b"tokenizer.chat_template", _STRING) is not None

    @property
    def file_type(self) -> int | None:
        """llama.cpp's number of the quantisation of most weights."""
        place = self._place(b"general.file_type", _UINT32)
        return None if place is None else self._number("<I", place)

    @property
    def token_count(self) -> int | None:
        place = self._place(_TOKENS, _ARRAY)
        return None if place is None else self._number("<Q", place + 4)

    @property
    def tokens(self) -> bytes:
        """The whole vocabulary as it is stored; empty where its end cannot be told."""
        place = self._place(_TOKENS, _ARRAY)
        if place is None:
            return b""
        keys = (struct.pack("<Q", len(key)) + key for key in _AFTER_TOKENS)
        ends = [end for key in keys if (end := self._mapped.find(key, place, HEADER_BYTES)) >= 0]
        return self._mapped[place : min(ends)] if ends else b""

    def _place(self, key: bytes, kind: int) -> int | None:
        """Return where a key's value lies, None without one of this type."""
        entry = struct.pack("<Q", len(key)) + key + struct.pack("<I", kind)
        place = self._mapped.find(entry, 0, HEADER_BYTES)
        return None if place < 0 else place + len(entry)

    def _number(self, kind: str, place: int) -> int:
        number: int = struct.unpack_from(kind, self._mapped, place)[0]
        return number


@contextmanager
def gguf_header(path: Path) -> Iterator[GgufHeader]:
    """Open a file's header. Raises OSError, ValueError for an empty file, and struct.error where
    one is cut off."""
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
        yield GgufHeader(mapped)
