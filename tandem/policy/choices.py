"""The choices in which methods differ; a preset is one of each (DESIGN §1).

Must not import asyncio, grpc, torch or time.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Acceptance(StrEnum):
    """How a draft is judged. At temperature 0 laws are one-hot, so greedy needs no third rule."""

    REJECTION = "rejection"
    SHARED_NOISE = "shared_noise"


class Uplink(StrEnum):
    """What travels with each draft token."""

    FULL_LAWS = "full_laws"
    SPARSE_LAWS = "sparse_laws"
    PROBABILITIES = "probabilities"
    IDS = "ids"


class Answer(StrEnum):
    """What the cloud sends when it refuses a draft."""

    TOKEN = "token"
    FULL_LAW = "full_law"
    LOSSLESS_SPARSE = "lossless_sparse"
    TOP_K = "top_k"
    """PicoSpec's: the most likely entries alone. Lossy: the tail of the residual cannot come."""


class Predraft(StrEnum):
    """Where the outcomes come from for which the edge drafts ahead of the verdict."""

    OFF = "off"
    LIKELY_OUTCOMES = "likely_outcomes"
    """The draft model's own laws: what else it might have drawn."""
    EARLY_EXITS = "early_exits"
    """The cloud's early verdicts (FSD)."""


class Control(StrEnum):
    """Who decides how far ahead the edge drafts; the schedule's window and chunk are the limits."""

    FIXED = "fixed"
    LATENCY_AWARE = "latency_aware"
    """PicoSpec: a chunk ends where it stops paying for itself, or takes too long."""
    WINDOW = "window"
    """The window of DESIGN §4, fitted to draft time, verify time, RTT and acceptance."""


class PredraftOrder(StrEnum):
    """Which outcome is drafted for first (FSD, Table 7)."""

    CONFIDENCE = "confidence"
    FIFO = "fifo"
    RANDOM = "random"


@dataclass(frozen=True, slots=True)
class Schedule:
    """When tokens travel and when they are judged (DESIGN §4).

    `window`: tokens that may be in flight; 0 means the edge drafts nothing. `chunk`: tokens sent
    at once. `token_by_token`: send each token of a chunk as soon as it is drafted.
    `verify_on_arrival`: judge what has come, not whole chunks. `bonus`: after full
    acceptance with nothing in flight the cloud adds a token of its own. `decode_when_idle`: the
    cloud goes on by itself while no draft is waiting.
    """

    window: int
    chunk: int
    verify_on_arrival: bool = False
    bonus: bool = True
    decode_when_idle: bool = False
    token_by_token: bool = False

    @property
    def stop_and_wait(self) -> bool:
        """Whether a verdict speaks of everything that is in flight."""
        alone = self.window == self.chunk and not self.verify_on_arrival
        return alone and not self.decode_when_idle
