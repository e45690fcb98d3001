"""The choices in which methods differ; a preset is one of each."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Acceptance(StrEnum):
    """How a draft is judged. Greedy needs no third rule: its distributions are one-hot."""

    REJECTION = "rejection"
    GUMBEL = "gumbel"


class Uplink(StrEnum):
    """What travels with each draft token."""

    FULL_DISTRIBUTIONS = "full_distributions"
    SPARSE_DISTRIBUTIONS = "sparse_probs"
    PROBABILITIES = "probabilities"
    IDS = "ids"

    @property
    def carries_probs(self) -> bool:
        """Whether the cloud learns the distributions the drafts were drawn from."""
        return self in (Uplink.FULL_DISTRIBUTIONS, Uplink.SPARSE_DISTRIBUTIONS)


class RejectionPayload(StrEnum):
    """What the cloud sends when it rejects a draft."""

    TOKEN = "token"
    FULL_DISTRIBUTION = "full_distribution"
    LOSSLESS_SPARSE = "lossless_sparse"
    TOP_K = "top_k"
    """PicoSpec's: the most likely entries alone. Lossy: the residual's tail is never drawn."""


class Predraft(StrEnum):
    """Which source of likely outcomes the edge drafts ahead for, before the verdict."""

    OFF = "off"
    LIKELY_OUTCOMES = "likely_outcomes"
    """The draft model's own distributions: the other tokens it might have drawn."""
    EARLY_EXITS = "early_exits"
    """The cloud's early verdicts (FSD)."""


class Control(StrEnum):
    """Who decides how far ahead the edge drafts; the schedule's window and chunk are the limits."""

    FIXED = "fixed"
    LATENCY_AWARE = "latency_aware"
    """PicoSpec: a chunk ends where it stops paying for itself, or takes too long."""
    WINDOW = "window"
    """The streaming window, fitted to draft time, verify time, RTT and acceptance."""
    LEAST_COST = "least_cost"
    """Whatever is expected to cost least: the cloud alone, rounds, or a window."""


class PredraftOrder(StrEnum):
    """Which outcome is drafted for first (FSD, Table 7)."""

    CONFIDENCE = "confidence"
    FIFO = "fifo"
    RANDOM = "random"


@dataclass(frozen=True, slots=True)
class Schedule:
    """When tokens travel and when they are judged.

    `window`: tokens that may be in flight; 0 means the edge drafts nothing. `chunk`: tokens sent at
    once. `token_by_token`: send each token of a chunk as soon as it is drafted.
    `verify_on_arrival`: judge what has come, not whole chunks. `bonus`: after full acceptance with
    nothing in flight the cloud adds a token of its own. `decode_when_idle`: the cloud goes on while
    no draft waits."""

    window: int
    chunk: int
    verify_on_arrival: bool = False
    bonus: bool = True
    decode_when_idle: bool = False
    token_by_token: bool = False

    @property
    def stop_and_wait(self) -> bool:
        """Whether a verdict judges everything that is in flight."""
        alone = self.window == self.chunk and not self.verify_on_arrival
        return alone and not self.decode_when_idle
