"""What a random number is for.

Must not import asyncio, grpc, torch or time.
"""

from enum import IntEnum


class Purpose(IntEnum):
    """What a random number is for. The values enter the hash: never renumber them."""

    DRAFT = 1
    ACCEPT = 2
    RECOVER = 3
    TARGET = 4
    """A token drawn from the target law itself: bonus tokens and tokens the cloud decodes alone."""
    TAIL = 5
    """Tail tokens that go with a sparse answer."""
    NOISE = 6
    COIN = 7
    LINK = 8
    PLACE = 9
    """Which side aggregates, where that is left to chance."""
