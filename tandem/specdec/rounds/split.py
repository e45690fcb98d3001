"""Split inference: the hidden states that go up, which the edge computes and the cloud feeds.

The edge runs the target's first layers over every token of the text, prompt included, and the cloud
the others (PicoSpec's baseline, §4.2). Invariant: a stream is sent each position's hidden state
once, in order; a fresh stream is sent all of them again, since the cloud keeps nothing."""

from __future__ import annotations

import numpy as np

from tandem.core.errors import InvalidArgument
from tandem.core.probs import Array
from tandem.core.tokens import PrefixedTokens
from tandem.specdec.events import LayersTask
from tandem.specdec.rounds.messages import HiddenStates

TASK_TOKENS = 128
"""Most tokens of a task, and of the frame that brings their hidden states: a message stays within
its limits, and a prompt is cut where attention's blocks end."""


class SplitUplink:
    """The hidden states of one request at the edge: which the cloud has, and which are to be
    computed."""

    def __init__(self, on: bool, committed: PrefixedTokens) -> None:
        """Start with nothing sent. `on`: whether the request is split at all."""
        self.on = on
        self.sent = 0
        """Positions whose hidden states are on the stream that is open now."""
        self._committed = committed
        self._task: LayersTask | None = None

    def begin_stream(self) -> None:
        """Begin anew: what is being computed counts no more."""
        self.sent = 0
        self._task = None

    def due(self) -> LayersTask | None:
        """Return the next task to start; it stays under way until `take`."""
        if not self.on or self._task is not None or self.sent >= len(self._committed):
            return None
        token_ids = self._committed.since(self.sent)[:TASK_TOKENS]
        self._task = LayersTask(self.sent, token_ids)
        return self._task

    def take(self, task: LayersTask) -> bool:
        """Take the outcome of a task; False where it is of a stream that is gone."""
        if task is not self._task:
            return False
        self._task = None
        self.sent += len(task.token_ids)
        return True


class HiddenUplink:
    """The hidden states of one session at the cloud that came and are not fed yet: of contiguous
    positions."""

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
