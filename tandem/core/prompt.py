"""The prompt of an answer: a text, token ids or a conversation, and images that go with it.
Invariant: on the wire a prompt's ids hold one placeholder per image token, so that both models, and
every position after an image, mean the same. Decoding images is the engine's work."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from itertools import groupby

from tandem.core.errors import InvalidArgument
from tandem.core.frozen import frozen

MAX_IMAGES = 4
MAX_IMAGES_BYTES = 8 * 2**20
"""Of all images of a request together, as they come (compressed)."""
MAX_IMAGE_PIXELS = 16 * 10**6
"""Of one image, by its header: what decoding it may cost."""
MAX_ASPECT_RATIO = 100
MAX_IMAGE_TOKENS = 1280
"""Of one image. Larger ones are scaled down further than their model would: the vision tower's pass
holds up every session of its engine, and grows with the square of this."""

MAX_PROMPT_IDS = 2**20
MAX_TURNS = 4096
"""What a decoder takes where no model's context length is known to bound it."""

FIELD = "images"


@frozen
class Turn:
    """One turn of a conversation. `tool_calls`: what an assistant's turn called, a JSON list as in
    OpenAI's API; `tool_call_id`: the call that a tool's turn answers; `reasoning_content`: what an
    assistant thought before it said `content`."""

    role: str
    content: str
    tool_calls: str = ""
    tool_call_id: str = ""
    reasoning_content: str = ""


class Truncate(StrEnum):
    """The treatment of a prompt that is longer than the context."""

    NONE = "none"
    """It is refused."""
    OLDEST = "oldest"
    """Its oldest turns or tokens are left out."""


Prompt = str | tuple[int, ...] | tuple[Turn, ...]


def is_conversation(prompt: Prompt) -> bool:
    """Return whether a prompt consists of turns."""
    return any(isinstance(item, Turn) for item in prompt)


def check_image_bytes(images: Sequence[bytes]) -> None:
    """Raise InvalidArgument("images") for too many, too large, or an empty one."""
    if len(images) > MAX_IMAGES:
        raise InvalidArgument(FIELD, f"{len(images)} images; at most {MAX_IMAGES}")
    for index, image in enumerate(images):
        if not image:
            raise InvalidArgument(FIELD, f"[{index}] is empty")
    if (size := sum(map(len, images))) > MAX_IMAGES_BYTES:
        raise InvalidArgument(FIELD, f"{size} bytes in all; at most {MAX_IMAGES_BYTES}")


def check_image_size(width: int, height: int, index: int) -> None:
    """Raise InvalidArgument("images") for a header that promises more than may be decoded."""
    if width < 1 or height < 1 or width * height > MAX_IMAGE_PIXELS:
        raise InvalidArgument(
            FIELD, f"[{index}] has {width} x {height} pixels; at most {MAX_IMAGE_PIXELS} in all"
        )
    if max(width, height) > MAX_ASPECT_RATIO * min(width, height):
        raise InvalidArgument(FIELD, f"[{index}] is {width} x {height}: too narrow")


def place_images(
    prompt_ids: Sequence[int], placeholder: int, around: tuple[int, int], counts: Sequence[int]
) -> tuple[int, ...]:
    """Return the prompt with `counts[i]` placeholders for image i. A prompt may have one
    placeholder per image, or all of them already; into one that has none the images go at its
    beginning, each between the two tokens `around`. InvalidArgument("images"): it has places for
    others."""
    ids = tuple(prompt_ids)
    runs = placeholder_runs(ids, placeholder)
    if runs == list(counts):
        return ids
    if not runs:
        before, after = around
        ids = tuple(t for _ in counts for t in (before, placeholder, after)) + ids
    elif runs != [1] * len(counts):
        raise InvalidArgument(
            FIELD, f"the prompt has {len(runs)} image placeholders for {len(counts)} images"
        )
    left = iter(counts)
    spread = ((token,) * next(left) if token == placeholder else (token,) for token in ids)
    return tuple(token for tokens in spread for token in tokens)


def check_places(prompt_ids: Sequence[int], placeholder: int, counts: Sequence[int]) -> None:
    """Raise InvalidArgument("images") unless the prompt holds just these images' placeholders."""
    if (runs := placeholder_runs(prompt_ids, placeholder)) != list(counts):
        raise InvalidArgument(
            FIELD, f"this model needs {list(counts)} placeholders, the prompt has {runs}"
        )


def placeholder_runs(token_ids: Sequence[int], placeholder: int) -> list[int]:
    """Return the lengths of the runs of `placeholder`, in order."""
    return [len(list(run)) for token, run in groupby(token_ids) if token == placeholder]
