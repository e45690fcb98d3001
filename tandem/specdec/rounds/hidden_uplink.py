"""Split inference at the cloud: the hidden states that the edge's layers put out."""

from __future__ import annotations

import numpy as np

from tandem.core.errors import InvalidArgument
from tandem.core.probs import Array
from tandem.core.tokens import PrefixedTokens
from tandem.specdec.rounds.messages import HiddenStates


class HiddenUplink:
    """The hidden states that came and are not fed yet: of contiguous positions."""

    def __init__(self, on: bool, hidden_size: int) -> None:
        """Begin with none. `on`: whether the session is split at all."""
        self._on = on
        self._hidden_size = hidden_size
        self._end = 0  # of the positions that came, fed or not
        self._states: list[Array] = []

    def receive(self, message: HiddenStates, committed: PrefixedTokens) -> None:
        """Take those of the next positions, which are committed. Raises InvalidArgument naming the
        field, or PrefixMismatch."""
        if not self._on:
            raise InvalidArgument("hidden_states", "the session is not split")
        count, size = message.states.shape
        if count < 1 or size != self._hidden_size:
            raise InvalidArgument("hidden_states", f"shape {message.states.shape}")
        if message.base != self._end:
            raise InvalidArgument("base", f"{message.base}; {self._end} is due")
        if message.base + count > len(committed):
            raise InvalidArgument("hidden_states", "of tokens that are not committed")
        committed.check(message.base, message.prefix_hash)
        if not np.isfinite(message.states).all():
            raise InvalidArgument("hidden_states", "are not all finite")
        self._states.append(message.states)
        self._end += count

    def complete(self, length: int) -> bool:
        """Return whether a pass over the first `length` tokens can begin."""
        return not self._on or self._end == length

    def take(self) -> Array | None:
        """Return those that are to be fed, which are complete; None where nothing is split."""
        if not self._on:
            return None
        states, self._states = self._states, []
        return np.concatenate(states)
