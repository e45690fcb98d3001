"""The choices in which methods differ; a preset is one of each."""

from __future__ import annotations

from enum import StrEnum

from tandem.control.schedule import Control, Schedule
from tandem.core.hashing import hash_words, unit

__all__ = [
    "Acceptance",
    "CloudDrafts",
    "Control",
    "Predraft",
    "PredraftOrder",
    "RejectionPayload",
    "Schedule",
    "Uplink",
]


class Acceptance(StrEnum):
    """Acceptance rule of drafts. Greedy needs no third rule: its distributions are one-hot."""

    REJECTION = "rejection"
    GUMBEL = "gumbel"


class Uplink(StrEnum):
    """The payload of each draft token."""

    FULL_DISTRIBUTIONS = "full_distributions"
    SPARSE_DISTRIBUTIONS = "sparse_probs"
    PROBABILITIES = "probabilities"
    IDS = "ids"
    HIDDEN_STATES = "hidden_states"
    """No drafts: of every token what the target's first layers, which run at the edge, put out."""

    @property
    def carries_probs(self) -> bool:
        """True if the cloud learns the distributions the drafts were drawn from."""
        return self in (Uplink.FULL_DISTRIBUTIONS, Uplink.SPARSE_DISTRIBUTIONS)


class RejectionPayload(StrEnum):
    """The payload that the cloud sends when it rejects a draft."""

    TOKEN = "token"
    """The cloud draws the token itself."""
    FULL_DISTRIBUTION = "full_distribution"
    """DSSD: the whole target distribution, from which the edge draws."""
    LOSSLESS_SPARSE = "lossless_sparse"
    """Top entries, tail mass, tail draws: the edge draws, exactly."""
    TOP_K = "top_k"
    """PicoSpec's: the most likely entries alone. Lossy: the residual's tail is never drawn."""

    @property
    def exact(self) -> bool:
        """True if the recovered token's distribution is the residual's."""
        return self is not RejectionPayload.TOP_K


class Predraft(StrEnum):
    """The source of the likely outcomes that the edge drafts ahead for, before the verdict."""

    OFF = "off"
    LIKELY_OUTCOMES = "likely_outcomes"
    """The draft model's own distributions: the other tokens it might have drawn."""
    EARLY_EXITS = "early_exits"
    """The cloud's early verdicts (FSD)."""


class CloudDrafts(StrEnum):
    """What the cloud drafts itself, where it would decode alone."""

    NONE = "none"
    MODEL = "model"
    """With a draft model of its own."""
    LOOKUP = "lookup"
    """What followed the end of the text where that stood in it before (prompt lookup)."""
    ANY = "any"
    """Both of these as far as the cloud has them, and of them in each place what its measurements
    say is fastest, which may be none. Nothing is demanded: where nothing can be drafted, or another
    choice leaves no room for it, the cloud decodes alone."""


class PredraftOrder(StrEnum):
    """The order in which likely outcomes are drafted for (FSD, Table 7)."""

    CONFIDENCE = "confidence"
    FIFO = "fifo"
    RANDOM = "random"

    def rank(self, confidence: float, *words: int) -> float:
        """Return what is ordered by, the smaller first and of equal ones the first to come. `words`
        key the random number."""
        match self:
            case PredraftOrder.CONFIDENCE:
                return -confidence
            case PredraftOrder.FIFO:
                return 0.0
            case PredraftOrder.RANDOM:
                return unit(hash_words(*words))
