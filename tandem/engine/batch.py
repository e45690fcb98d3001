"""Checks of a caller's input that every engine makes before it changes anything, and growing trees.

This module must not import torch.
"""

from collections.abc import Sequence
from dataclasses import replace

from tandem.core.errors import InvalidArgument
from tandem.core.tokens import check_token_ids
from tandem.core.tree import check_parents, depths
from tandem.engine.base import Segment


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


def check_batch(batch: Sequence[Segment], vocabulary_size: int, exits: int = 0) -> None:
    """Raise InvalidArgument for the first segment that a forward pass could not serve, of a model
    with that many early exits."""
    seen: set[int] = set()
    for segment in batch:
        if id(segment.session) in seen:
            raise InvalidArgument("batch", "a session appears twice")
        seen.add(id(segment.session))
        check_segment(segment, vocabulary_size, exits)


def check_segment(segment: Segment, vocabulary_size: int, exits: int) -> None:
    """Raise InvalidArgument naming `token_ids`, `wanted`, `parents` or `exits`."""
    count, session = len(segment.token_ids), segment.session
    if count == 0:
        raise InvalidArgument("token_ids", "no tokens to feed")
    check_token_ids(segment.token_ids, vocabulary_size, "token_ids")
    if segment.grows and (segment.parents is None or session.tree is None):
        raise InvalidArgument("grows", "no tree is pending in this session")
    pending = session.tree or () if segment.grows else ()
    if segment.parents is not None:
        check_parents(segment.parents, count, len(pending))
    _check_room(segment, pending)
    if not 0 <= segment.wanted <= count:
        raise InvalidArgument("wanted", f"{segment.wanted} is outside 0..{count}")
    if any(not 0 <= index < exits for index in segment.exits):
        raise InvalidArgument("exits", f"{segment.exits}; the model has {exits}")


def _check_room(segment: Segment, pending: tuple[int, ...]) -> None:
    """Committed tokens and the longest branch fit the capacity; all nodes fit the slots."""
    count, session = len(segment.token_ids), segment.session
    deepest, nodes = count, count
    if segment.parents is not None:
        deepest = max(depths((*pending, *segment.parents))) + 1
        nodes += len(pending)
    if session.length + deepest > session.capacity or session.length + nodes > session.slots:
        raise InvalidArgument(
            "token_ids",
            f"{count} tokens after {session.length} exceed the capacity of {session.capacity}",
        )


def grown(tree: Segment, more: Segment) -> Segment:
    """The pending tree and the nodes that join it as one tree."""
    parents = (*(tree.parents or ()), *(more.parents or ()))
    return replace(more, token_ids=(*tree.token_ids, *more.token_ids), parents=parents, grows=False)
