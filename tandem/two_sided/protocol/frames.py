"""What all frames of the two-sided conversations have in common, and those that both have. The
epoch rises with each draft of a side that is void."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypedDict

from tandem.core.tokens import PrefixHash


@dataclass(frozen=True, slots=True)
class Frame:
    """Fields of every message: session, epoch, first position, hash of the ids before it."""

    session: int
    epoch: int
    base: int
    prefix_hash: PrefixHash


class FrameHeader(TypedDict):
    """The fields of `Frame`, for a machine that makes several kinds of frames."""

    session: int
    epoch: int
    base: int
    prefix_hash: PrefixHash


@dataclass(frozen=True, slots=True)
class Cancel(Frame):
    pass


@dataclass(frozen=True, slots=True)
class Ping(Frame):
    nonce: int


@dataclass(frozen=True, slots=True)
class GoingAway(Frame):
    grace_s: float


@dataclass(frozen=True, slots=True)
class Pong(Frame):
    nonce: int
