"""PicoSpec's control (its §3.3 and eqs. 8-10; its eq. 8 has no gap there): a chunk takes as long to
draft as the one before takes to be answered, with the bytes of drafts and verdicts on the link, and
as many chunks are in flight as before."""

from __future__ import annotations

from dataclasses import replace
from math import ceil

from tandem.control.conditions import Conditions
from tandem.control.config import DEFAULT_CONFIG, TINY, ControllerConfig
from tandem.control.controller import AdaptiveController, Answer
from tandem.control.estimates import NO_WARM_START, Recent, WarmStart
from tandem.control.schedule import Schedule


class LatencyAware(AdaptiveController):
    """Cuts chunks to what their answers take."""

    def __init__(
        self,
        limits: Schedule,
        warm_start: WarmStart = NO_WARM_START,
        config: ControllerConfig = DEFAULT_CONFIG,
        now: float = 0.0,
    ) -> None:
        super().__init__(limits, warm_start, config, now)
        self._answered_in = Recent(config)

    def on_rtt(self, rtt_s: float, now: float) -> None:
        super().on_rtt(rtt_s, now)
        self._answered_in.add(rtt_s, now)

    def on_committed(self, answer: Answer, now: float) -> None:
        super().on_committed(answer, now)
        if answer.verify_s <= 0 or answer.reads_prompt:
            return
        self.estimates.passed(answer.verify_s, answer.rows, now)
        conditions = self.estimates.conditions()
        answered_in_s = self._answered_in.value
        if conditions is None or answered_in_s is None:
            return
        conditions = replace(conditions, rtt_s=answered_in_s)
        self.schedule = latency_aware(self._limits, conditions)
        self.chunk_budget_s = chunk_budget_s(conditions)


def latency_aware(limits: Schedule, conditions: Conditions) -> Schedule:
    """Return the schedule whose chunk takes as long to draft as the one before to be answered, and
    which has as many chunks in its window."""
    wanted = ceil(chunk_budget_s(conditions) / max(conditions.pair.draft_s, TINY))
    length = max(1, min(limits.chunk, wanted))
    return replace(limits, chunk=length, window=limits.window // limits.chunk * length)


def chunk_budget_s(conditions: Conditions) -> float:
    """Return how many seconds a chunk may take before the cloud idles and the rest is left out
    (PicoSpec §3.3)."""
    return conditions.rtt_s + conditions.pair.verify_first_s
