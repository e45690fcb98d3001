"""Split inference at the edge: which hidden states the cloud has, and which are to be computed.

The edge runs the target's first layers over every token of the text, prompt included, and the cloud
the others (PicoSpec's baseline, §4.2). Invariant: a stream is sent each position's hidden state
once, in order; a fresh stream is sent all of them again, since the cloud keeps nothing."""

from __future__ import annotations

from tandem.core.tokens import PrefixedTokens
from tandem.specdec.events import LayersTask

TASK_TOKENS = 128
"""Most tokens of a task, and of the frame that brings their hidden states: a message stays within
its limits, and a prompt is cut where attention's blocks end."""


class SplitUplink:
    """The hidden states of one request."""

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
