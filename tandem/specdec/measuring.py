"""What the controller of a request hears of its conversation: drafts, what was committed, and round
trips. What metrics count of the same is kept beside it."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from math import inf

from tandem.control.controller import Answer, Controller
from tandem.control.latency_aware import LatencyAware
from tandem.control.least_cost import LeastCost
from tandem.control.schedule import Control
from tandem.specdec.choices import CloudDrafts
from tandem.specdec.events import Drafted, EdgeRequest
from tandem.specdec.messages import Committed, Drafts, Opened, Work
from tandem.specdec.observers import EdgeObserver, Settled
from tandem.specdec.proposers import DraftSource

_NO_STEPS = DraftSource.MEMORY, DraftSource.GRAMMAR
"""Proposers whose drafts say nothing of the draft model. A prediction's are counted with its own:
an answer has it from beginning to end, and starts with what others that had one measured."""

TRIPS_TOLD = 1024
"""Round trips that one answer tells of: it may take any number."""
MOST_FRAMES = 128
"""Frames of drafts that wait for an answer and are timed."""


def controller_of(request: EdgeRequest, now: float) -> Controller:
    """Return the controller that the request's preset asks for, with no measurements of this
    answer."""
    limits, warm_start = request.preset.schedule, request.warm_start
    match request.preset.control if limits.window else Control.FIXED:
        case Control.FIXED:
            return Controller(limits, warm_start, now=now)
        case Control.LATENCY_AWARE:
            return LatencyAware(limits, warm_start, now=now)
        case Control.LEAST_COST:
            return LeastCost(
                limits,
                warm_start,
                now=now,
                max_tokens=request.max_tokens,
                prompt_tokens=len(request.prompt_ids),
            )


class Measuring(EdgeObserver):
    """Makes `controller`'s calls of what happens on a request's streams."""

    def __init__(self, request: EdgeRequest, now: float) -> None:
        self.controller = controller_of(request, now)
        self.trips_s = deque[float](maxlen=TRIPS_TOLD)
        """The last round trips."""
        self.spent: dict[str, tuple[int, float]] = {}
        """Tokens and seconds by each kind of schedule."""
        self._heard_s: float | None = None
        self._pings_at = now if self.controller.ping_every_s < inf else inf
        # The first position of each frame that waits for an answer, and when it left.
        self._sent: deque[tuple[int, float]] = deque(maxlen=MOST_FRAMES)

    def on_connected(self, now: float) -> None:
        """Begin a stream: what was sent on the one before will not be answered."""
        self._sent.clear()
        self._heard_s = None

    def on_opened(self, opened: Opened) -> None:
        may_draft = opened.cloud_drafts is not CloudDrafts.NONE
        self.controller.on_opened(
            row_share=opened.row_share,
            may_draft=may_draft,
            drafts_never_pay=opened.drafts_never_pay,
        )

    def ping_wanted(self, now: float) -> bool:
        """Return whether a ping should measure the round trip."""
        return now >= self._pings_at

    def on_pinged(self, now: float) -> None:
        self._pings_at = now + self.controller.ping_every_s

    def on_ponged(self, trip_s: float | None, now: float) -> None:
        if trip_s is not None:
            self._trip(trip_s, now)

    def on_drafted(
        self,
        drafts: Sequence[Drafted],
        positions: int,
        draft_s: float,
        now: float,
        *,
        pure_decode: bool,
    ) -> None:
        if not (pure_decode and self.controller.on):
            return
        if steps := positions - _took_step(drafts).count(False):
            self.controller.on_drafted(steps, draft_s, now)

    def on_sent(self, frame: Drafts, now: float) -> None:
        self._sent.append((frame.base, now))

    def on_discarded(self) -> None:
        self._sent.clear()

    def on_committed(
        self, message: Committed, settled: Settled, drafts: Sequence[Drafted], now: float
    ) -> None:
        work, count = message.work, settled.count
        tokens = message.accepted + max(len(message.token_ids), settled.refused)  # one is drawn
        gap_s = None if self._heard_s is None else now - self._heard_s
        self._heard_s = now
        if gap_s is not None:
            kind = self._kind
            before_tokens, before_s = self.spent.get(kind, (0, 0.0))
            self.spent[kind] = before_tokens + tokens, before_s + gap_s
        if (judged := message.accepted + settled.refused) > 0:
            self._answered(message.base + judged, work, now)
        if not (count or self.controller.on):
            return
        took_step = _took_step(drafts[:count])
        accepted, rejected = sum(took_step[: settled.right]), sum(took_step[settled.right :])
        if not self.controller.on:
            self.controller.on_judged(accepted, rejected)
            return
        answer = Answer(
            tokens=tokens,
            accepted=accepted,
            rejected=rejected,
            undrafted=max(0, tokens - count),
            gap_s=gap_s,
            verify_s=work.verify_s,
            sessions=work.batch_size,
            rows=work.drafts + work.cloud_drafts,
            reads_prompt=work.target_passes == 1,
        )
        self.controller.on_committed(answer, now)

    def _answered(self, end: int, work: Work, now: float) -> None:
        """Time the last of the frames that are answered, of drafts before position `end`."""
        left_s = None
        while self._sent and self._sent[0][0] < end:
            left_s = self._sent.popleft()[1]
        if left_s is not None:
            self._trip(max(0.0, now - left_s - work.verify_s - work.queue_s), now)

    def _trip(self, trip_s: float, now: float) -> None:
        self.trips_s.append(trip_s)
        self.controller.on_rtt(trip_s, now)

    @property
    def _kind(self) -> str:
        schedule = self.controller.schedule
        if not schedule.window:
            return "cloud_alone"
        return "rounds" if schedule.stop_and_wait else "stream"


def _took_step(drafts: Sequence[Drafted]) -> list[bool]:
    """Return for each of these whether the draft model took a step."""
    return [drafted.source not in _NO_STEPS for drafted in drafts]
