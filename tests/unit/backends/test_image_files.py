"""Decoding what strangers send: nothing but whole PNG, JPEG and WebP files of bounded size."""

import random
import struct
import zlib

import pytest

from tandem.backends.image_files import decode_image, image_sizes
from tandem.core.errors import InvalidArgument
from tests.unit.backends.tiny_vision import picture


def png_of(width: int, height: int, pixels: bytes) -> bytes:
    """A PNG whose header says what it likes."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        checksum = struct.pack(">I", zlib.crc32(kind + content))
        return struct.pack(">I", len(content)) + kind + content + checksum

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    ends = chunk(b"IDAT", zlib.compress(pixels, 9)) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + ends


BOMB = png_of(30_000, 30_000, bytes(10**6))


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP"])
def test_three_formats_are_read(kind: str) -> None:
    encoded = picture(56, 40, kind=kind)
    assert image_sizes([encoded]) == [(40, 56)]
    decoded = decode_image(encoded, 0)
    assert (decoded.mode, decoded.size) == ("RGB", (56, 40))


@pytest.mark.parametrize(
    ("encoded", "why"),
    [
        (BOMB, "pixels"),
        (png_of(4001, 4000, b""), "at most"),
        (png_of(2000, 3, b""), "too narrow"),
        (b"junk", "not one of"),
        (b"\x89PNG\r\n\x1a\n", "invalid header|not one of"),
        (picture()[:25], "invalid header|not one of"),
    ],
)
def test_a_header_that_promises_too_much_or_nothing(encoded: bytes, why: str) -> None:
    with pytest.raises(InvalidArgument, match=why) as refused:
        image_sizes([picture(), encoded])
    assert refused.value.field == "images"
    assert refused.value.why.startswith("[1]")


def test_a_bomb_is_small_and_costs_nothing() -> None:
    assert len(BOMB) < 2000
    with pytest.raises(InvalidArgument, match="pixels"):
        decode_image(BOMB, 0)


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP"])
def test_damaged_files_are_refused_or_read_but_never_more_than_that(kind: str) -> None:
    """Cut short, or with bytes flipped: an image, or InvalidArgument."""
    source, whole = random.Random(3), picture(64, 48, kind=kind)
    refused = 0
    for _ in range(60):
        damaged = bytearray(
            whole[: source.randrange(len(whole))] if source.random() < 0.5 else whole
        )
        for _ in range(source.randrange(1, 6)):
            if damaged:
                damaged[source.randrange(len(damaged))] ^= 1 << source.randrange(8)
        try:
            assert decode_image(bytes(damaged), 0).mode == "RGB"
        except InvalidArgument:
            refused += 1
    assert refused > 10


def test_more_pixels_than_the_header_said_are_not_read() -> None:
    decoded = decode_image(png_of(4, 4, bytes(10**6)), 0)
    assert decoded.size == (4, 4)
