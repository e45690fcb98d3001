"""Bounds of token ids that come from elsewhere.

Must not import asyncio, grpc, torch or time.
"""

from collections.abc import Sequence
from typing import Any

from numpy.typing import NDArray

from tandem.core.errors import InvalidArgument


def check_token_ids(ids: Sequence[int] | NDArray[Any], vocabulary_size: int, field: str) -> None:
    """Raise InvalidArgument(field), naming the index, unless all ids are in [0, V).

    The whole vocabulary is allowed: an id is never squeezed into 8 or 16 bits on the way.
    """
    for index, token in enumerate(ids):
        if not 0 <= token < vocabulary_size:
            raise InvalidArgument(field, f"[{index}] = {token} is not in [0, {vocabulary_size})")
