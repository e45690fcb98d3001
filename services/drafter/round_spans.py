"""Rounds of one request as spans: from the first draft after a verdict to the next verdict.

With a window of drafts in flight there are no rounds apart; a span then covers what led to one
verdict since the one before it. Costs nothing where the request is not traced.
"""

from __future__ import annotations

import time

from tandem.protocol.messages import CloudMessage, Verdict
from tandem.telemetry.tracing import Span


class RoundSpans:
    """Told what happens, in order."""

    def __init__(self, span: Span) -> None:
        self._span = span
        self._began_s: float | None = None

    def drafting(self) -> None:
        """A draft was begun."""
        if self._began_s is None:
            self._began_s = time.monotonic()

    def heard(self, message: CloudMessage) -> None:
        """The cloud said something."""
        if not isinstance(message, Verdict) or self._began_s is None:
            return
        self._span.record(
            "draft round",
            time.monotonic() - self._began_s,
            epoch=message.epoch,
            accepted=message.accepted,
            verify_s=message.work.verify_s,
            queue_s=message.work.queue_s,
        )
        self._began_s = None
