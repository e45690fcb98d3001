"""The frames of rounds: of recovered tokens, early exits and split layers (documented in
verifier.proto)."""

from __future__ import annotations

from tandem.core.frozen import frozen
from tandem.core.probs import Array
from tandem.core.sparse_payload import SparsePayload
from tandem.specdec.messages import CloudRoundFrame, EdgeRoundFrame


@frozen
class Recovered(EdgeRoundFrame):
    token_id: int


@frozen
class NeedFullDistribution(EdgeRoundFrame):
    pass


@frozen
class HiddenStates(EdgeRoundFrame):
    """The outputs of the target's first layers for the tokens from `base` on, float32 [n, hidden
    size] as they arrive."""

    states: Array


@frozen
class EarlyVerdict(CloudRoundFrame):
    """Prediction of what is committed of the drafts from `base` on, by early exit `exit_index`:
    how many are `accepted`, whether the one after them is `rejected`, and the token that comes
    then, or a small payload to draw it from. Nothing is committed. `confidence`: the exit's
    largest probability where its token lies (FSD, equation 4), in [0, 1]."""

    exit_index: int
    accepted: int
    rejected: bool
    outcome: int | SparsePayload
    confidence: float


@frozen
class FullDistribution(CloudRoundFrame):
    target_probs: Array
