"""Checks of a caller's input that every engine makes before it changes anything.

This module must not import torch.
"""

from collections.abc import Sequence

from tandem.core.errors import InvalidArgument
from tandem.core.tokens import check_token_ids
from tandem.engine.base import Segment
from tandem.core.tree import check_parents


def check_capacity(capacity: int, context_length: int, length: int = 0) -> None:
    """Raise InvalidArgument("capacity") unless max(1, length) <= capacity <= context_length."""
    if not max(1, length) <= capacity <= context_length:
        raise InvalidArgument(
            "capacity", f"{capacity} is outside {max(1, length)}..{context_length}"
        )


def check_length(length: int, most: int) -> None:
    """Raise InvalidArgument("length") unless 0 <= length <= most."""
    if not 0 <= length <= most:
        raise InvalidArgument("length", f"{length} is outside 0..{most}")


def check_batch(batch: Sequence[Segment], vocabulary_size: int) -> None:
    """Raise InvalidArgument for the first segment that a forward pass could not serve."""
    seen: set[int] = set()
    for segment in batch:
        if id(segment.session) in seen:
            raise InvalidArgument("batch", "a session appears twice")
        seen.add(id(segment.session))
        check_segment(segment, vocabulary_size)


def check_segment(segment: Segment, vocabulary_size: int) -> None:
    """Raise InvalidArgument naming `token_ids`, `wanted` or `parents`."""
    count, session = len(segment.token_ids), segment.session
    if count == 0:
        raise InvalidArgument("token_ids", "no tokens to feed")
    check_token_ids(segment.token_ids, vocabulary_size, "token_ids")
    if session.length + count > session.capacity:
        raise InvalidArgument(
            "token_ids",
            f"{count} tokens after {session.length} exceed the capacity of {session.capacity}",
        )
    if not 0 <= segment.wanted <= count:
        raise InvalidArgument("wanted", f"{segment.wanted} is outside 0..{count}")
    if segment.parents is not None:
        check_parents(segment.parents, count)
