"""The draw that a rejection leaves to the edge, as the cloud awaits it. Invariant: what comes back
is a token that the target distribution can draw, for the position and the text of the rejection;
the distribution itself is sent once at most."""

from __future__ import annotations

from tandem.core.errors import InvalidArgument
from tandem.core.probs import Array
from tandem.core.tokens import PrefixedTokens
from tandem.specdec.messages import NeedFullDistribution, Recovered


class AwaitedRecovery:
    """Reads `committed`, which its owner alone appends to. Raises InvalidArgument or
    PrefixMismatch, and is then as it was before."""

    def __init__(self, committed: PrefixedTokens, vocabulary_size: int) -> None:
        self._committed, self._vocabulary_size = committed, vocabulary_size
        self._target_probs: Array | None = None
        self._sent_in_full = False

    @property
    def due(self) -> bool:
        """Whether nothing goes on before the edge has drawn."""
        return self._target_probs is not None

    def begin(self, target_probs: Array) -> None:
        """The edge is to draw from this distribution [V], after the committed text."""
        self._target_probs, self._sent_in_full = target_probs, False

    def token(self, message: Recovered) -> int:
        """What the edge drew, which ends the wait."""
        if self._target_probs is None:
            raise InvalidArgument("recovered", "no verdict left a token to be drawn")
        if message.base != len(self._committed):
            raise InvalidArgument("base", f"{message.base} is not the rejected position")
        if not 0 <= message.token_id < self._vocabulary_size:
            raise InvalidArgument("token_id", f"{message.token_id} is outside the vocabulary")
        if not self._target_probs[message.token_id] > 0:
            raise InvalidArgument("token_id", "the target distribution cannot draw this token")
        self._committed.check(message.base, message.prefix)
        self._target_probs = None
        return message.token_id

    def in_full(self, message: NeedFullDistribution) -> Array:
        """The distribution [V], for an edge that cannot draw from what it was sent."""
        if self._target_probs is None or message.base != len(self._committed):
            why = "no distribution is being drawn from at this position"
            raise InvalidArgument("need_full_distribution", why)
        if self._sent_in_full:  # it is large, and the question is not
            raise InvalidArgument("need_full_distribution", "it has been sent for this rejection")
        self._sent_in_full = True
        return self._target_probs
