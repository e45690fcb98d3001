"""Decoding images that strangers send. Pillow alone reads their bytes, and is imported here only.

Invariant: the header is read and its promise checked before anything is decoded, and only formats
that both sides of the check agree on are tried. Whatever a decoder raises is the sender's fault.
Pixels are taken as they are stored: a camera's note that they are turned is not followed.
"""

from __future__ import annotations

from collections.abc import Sequence
from io import BytesIO
from typing import TYPE_CHECKING

from tandem.core.errors import InvalidArgument
from tandem.core.prompt import FIELD, check_image_bytes, check_image_size

if TYPE_CHECKING:
    from PIL.Image import Image

FORMATS = ("PNG", "JPEG", "WEBP")


def image_sizes(images: Sequence[bytes]) -> list[tuple[int, int]]:
    """Return (height, width) of each, by its header. Raises InvalidArgument("images")."""
    check_image_bytes(images)
    sizes = []
    for index, encoded in enumerate(images):
        with _opened(encoded, index) as image:
            sizes.append((image.height, image.width))
    return sizes


def decode_image(encoded: bytes, index: int) -> Image:
    """Return the pixels, as RGB. Raises InvalidArgument("images") for bytes that are damaged."""
    try:
        with _opened(encoded, index) as image:
            image.verify()  # checksums, where the format has them; ends the image's use
        with _opened(encoded, index) as image:
            return image.convert("RGB")
    except InvalidArgument:
        raise
    except Exception as error:  # decoders raise whatever they stumble over
        raise InvalidArgument(FIELD, f"[{index}] cannot be decoded: {_words(error)}") from error


def _opened(encoded: bytes, index: int) -> Image:
    """Return the header alone, within bounds."""
    from PIL import Image, UnidentifiedImageError

    try:
        image = Image.open(BytesIO(encoded), formats=FORMATS)
    except UnidentifiedImageError as error:
        raise InvalidArgument(FIELD, f"[{index}] is not one of {', '.join(FORMATS)}") from error
    except Image.DecompressionBombError as error:
        raise InvalidArgument(FIELD, f"[{index}] has too many pixels") from error
    except Exception as error:  # decoders raise whatever they stumble over
        raise InvalidArgument(FIELD, f"[{index}] has an invalid header: {_words(error)}") from error
    check_image_size(image.width, image.height, index)
    return image


def _words(error: Exception) -> str:
    return f"{type(error).__name__} {error}".strip().splitlines()[0][:200]
