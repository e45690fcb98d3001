"""Bounds of images, and their places among the ids of a prompt."""

import pytest

from tandem.core.errors import InvalidArgument
from tandem.core.prompt import (
    MAX_IMAGES,
    MAX_IMAGES_BYTES,
    check_image_bytes,
    check_image_size,
    check_places,
    place_images,
    placeholder_runs,
)

PAD = 6
AROUND = (5, 7)


@pytest.mark.parametrize(
    ("images", "why"),
    [
        ([b"x"] * (MAX_IMAGES + 1), "at most"),
        ([b"x", b""], r"\[1\] is empty"),
        ([bytes(MAX_IMAGES_BYTES), b"x"], "bytes in all"),
    ],
)
def test_too_many_too_large_or_empty(images: list[bytes], why: str) -> None:
    with pytest.raises(InvalidArgument, match=why) as refused:
        check_image_bytes(images)
    assert refused.value.field == "images"
    check_image_bytes([bytes(MAX_IMAGES_BYTES - 1), b"x"])


@pytest.mark.parametrize(
    ("width", "height"), [(0, 5), (5, 0), (4001, 4000), (2**31, 2**31), (101, 1), (3, 400)]
)
def test_sizes_that_are_not_decoded(width: int, height: int) -> None:
    with pytest.raises(InvalidArgument, match=r"images: \[2\]"):
        check_image_size(width, height, 2)
    if not min(width, height):
        with pytest.raises(InvalidArgument, match="pixels"):
            check_image_size(width, height, 2)


def test_sizes_that_are() -> None:
    for width, height in ((4000, 4000), (1, 1), (100, 1), (4, 400)):
        check_image_size(width, height, 0)


@pytest.mark.parametrize(
    ("prompt", "placed"),
    [
        ([1, 2], (5, 6, 6, 7, 5, 6, 6, 6, 7, 1, 2)),
        ([1, 6, 2, 6], (1, 6, 6, 2, 6, 6, 6)),
        ([6, 6, 2, 6, 6, 6], (6, 6, 2, 6, 6, 6)),
    ],
)
def test_images_are_put_where_the_prompt_has_places(
    prompt: list[int], placed: tuple[int, ...]
) -> None:
    assert place_images(prompt, PAD, AROUND, [2, 3]) == placed
    check_places(placed, PAD, [2, 3])


@pytest.mark.parametrize("prompt", [[6, 1], [6, 6], [6, 1, 6, 1, 6], [6, 6, 6, 1, 6, 6]])
def test_places_for_other_images_are_rejected(prompt: list[int]) -> None:
    with pytest.raises(InvalidArgument, match="image placeholders for"):
        place_images(prompt, PAD, AROUND, [2, 3])
    with pytest.raises(InvalidArgument, match="placeholders, the prompt has"):
        check_places(prompt, PAD, [2, 3])


def test_runs_of_placeholders_are_counted_in_order() -> None:
    assert placeholder_runs((6, 6, 1, 6, 2, 6, 6, 6), PAD) == [2, 1, 3]
    assert placeholder_runs((1, 2), PAD) == []
    assert place_images((1, 2), PAD, AROUND, []) == (1, 2)
    check_places((1, 2), PAD, [])
