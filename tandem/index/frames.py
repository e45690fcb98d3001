"""Checksummed frames in a file: what was written whole is told apart from what was not.

A frame is a mark, the payload's length and CRC-32, a CRC-32 of these, and the payload. Invariant:
`read_frames` yields whole frames only. What follows the last of them is a torn tail, and dropped,
unless a whole frame comes later still: then the damage lies in the middle, and is an error. Must
not import grpc.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from mmap import mmap

from tandem.index.errors import FolderDamaged

_MARK = b"\xf6TdmF\r\n\x1a"
_HEAD = struct.Struct("<8sIII")


def frame_of(payload: bytes) -> bytes:
    """`payload` as a frame."""
    head = _HEAD.pack(_MARK, len(payload), zlib.crc32(payload), 0)
    return head[:-4] + zlib.crc32(head[:-4]).to_bytes(4, "little") + payload


@dataclass(frozen=True, slots=True)
class Frame:
    """`end` is the offset behind it."""

    payload: bytes
    end: int


def read_frames(content: mmap | bytes, name: str) -> Iterator[Frame]:
    """The whole frames from the start on. FolderDamaged, naming the file, for damage in between."""
    offset = 0
    while (frame := _frame_at(content, offset)) is not None:
        yield frame
        offset = frame.end
    if (later := _next_frame(content, offset)) is not None:
        raise FolderDamaged(
            f"{name}: the record at byte {offset} is damaged, and a good one follows at {later}; "
            "restore the file from a copy"
        )


def _frame_at(content: mmap | bytes, offset: int) -> Frame | None:
    head = content[offset : offset + _HEAD.size]
    if len(head) < _HEAD.size:
        return None
    mark, length, checksum, head_checksum = _HEAD.unpack(head)
    if mark != _MARK or zlib.crc32(head[:-4]) != head_checksum:
        return None
    end = offset + _HEAD.size + length
    payload = content[offset + _HEAD.size : end]
    if len(payload) < length or zlib.crc32(payload) != checksum:
        return None
    return Frame(payload, end)


def _next_frame(content: mmap | bytes, offset: int) -> int | None:
    """Where the next whole frame begins. A document's text holds none: JSON escapes the mark."""
    at = content.find(_MARK, offset + 1)
    while at >= 0:
        if _frame_at(content, at) is not None:
            return at
        at = content.find(_MARK, at + 1)
    return None
