"""What one session's edge has measured: draft steps, verify passes, round trips, acceptance.
Invariant: times are differences of one clock; estimates start from what `earlier` requests of the
same pair and preset measured, else from stated guesses, and what this one measures takes over."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from tandem.core.line_fit import LineFit
from tandem.specdec.messages import Draft, Work
from tandem.specdec.scheduling import Measured, PairTimes

_RECENT = 32
_KEEP = 0.9
_PRIOR_ACCEPTANCE, _PRIOR_TOKENS = 0.7, 4.0
_EARLIER_TOKENS = 16.0
"""What earlier acceptance counts for: more than a guess, less than half a sentence of this text."""
_KEEP_PER_TOKEN = 0.97


@dataclass(frozen=True, slots=True)
class Earlier:
    """What is known of a pair and preset before a request begins, in seconds; None: nothing.
    `verify_s` is a pass of the target, `acceptance_rate` the share of judged drafts that stood,
    `queue_s` the wait for a pass."""

    draft_s: float | None = None
    verify_s: float | None = None
    rtt_s: float | None = None
    acceptance_rate: float | None = None
    queue_s: float | None = None


NOTHING_EARLIER = Earlier()


class Profile:
    """Moving estimates of one request; `measured` is None while a time is known neither from
    `earlier` nor from this request."""

    def __init__(self, earlier: Earlier = NOTHING_EARLIER) -> None:
        self._earlier = earlier
        self._draft_s: float | None = None
        self._verify = LineFit(_KEEP)
        self.trips_s: list[float] = []
        self.judged_tokens = self.agreed_tokens = 0
        self._sent: deque[tuple[int, float]] = deque(maxlen=4 * _RECENT)
        known = earlier.acceptance_rate
        self._judged = _PRIOR_TOKENS if known is None else _EARLIER_TOKENS
        self._accepted = self._judged * (_PRIOR_ACCEPTANCE if known is None else known)
        self._wait_s = earlier.queue_s or 0.0
        self._sharing = 1.0
        self._hit_rate = 0.0

    @property
    def measured(self) -> Measured | None:
        own, earlier = self.own, self._earlier
        draft_s = earlier.draft_s if own.draft_s is None else own.draft_s
        first_s, further_s = self._verify.fit() if self._verify.weight else (earlier.verify_s, 0.0)
        rtt_s = earlier.rtt_s if own.rtt_s is None else own.rtt_s
        if draft_s is None or first_s is None or rtt_s is None:
            return None
        return Measured(
            PairTimes(draft_s, max(first_s, 1e-6), further_s),
            rtt_s,
            self._accepted / self._judged,
            self._wait_s,
            self._sharing,
            self._hit_rate,
        )

    @property
    def own(self) -> Earlier:
        """What this request has measured itself."""
        return Earlier(
            self._draft_s,
            self._verify.mean if self._verify.weight else None,
            min(self.trips_s[-_RECENT:]) if self.trips_s else None,
            self.agreed_tokens / self.judged_tokens if self.judged_tokens else None,
            self._wait_s if self._verify.weight else None,
        )

    def drafted(self, count: int, draft_s: float) -> None:
        step_s = draft_s / count
        self._draft_s = step_s if self._draft_s is None else _follow(self._draft_s, step_s)

    def connected(self) -> None:
        """What was sent before will not be answered."""
        self._sent.clear()

    def sent(self, frame: Draft, now: float) -> None:
        self._sent.append((frame.base, now))

    def answered(self, end: int, work: Work, now: float) -> None:
        """An answer came that judged drafts before position `end`, after `work`. How long its last
        frame was away, but for the work, is a round trip or more: it may have waited for a pass."""
        sent_s = None
        while self._sent and self._sent[0][0] < end:
            sent_s = self._sent.popleft()[1]
        if sent_s is not None:
            self.trips_s.append(max(0.0, now - sent_s - work.verify_s - work.queue_s))
        self.passed(work)

    def passed(self, work: Work) -> None:
        """A frame reported what a pass cost."""
        if work.verify_s > 0:
            self._verify.add(work.drafts, work.verify_s)
            self._sharing = _follow(self._sharing, work.batch_size)
            if work.drafts:  # the cloud's own passes follow one another, and do not wait
                self._wait_s = _follow(self._wait_s, work.queue_s)

    def resolved(self, hit: bool) -> None:
        """A correction came; `hit`: it had been drafted for."""
        self._hit_rate = _follow(self._hit_rate, float(hit))

    def discarded(self) -> None:
        """What was sent will not be judged."""
        self._sent.clear()

    def judged(self, accepted: int, rejected: int) -> None:
        """Drafts were accepted (or equal to the cloud's token), or rejected."""
        self.judged_tokens += accepted + rejected
        self.agreed_tokens += accepted
        keep = _KEEP_PER_TOKEN ** (accepted + rejected)
        self._accepted = keep * self._accepted + accepted
        self._judged = keep * self._judged + accepted + rejected

    def unjudged(self, tokens: int) -> None:
        """Tokens came for which there was no draft: the acceptance estimate ages."""
        keep = _KEEP_PER_TOKEN**tokens
        self._accepted = keep * self._accepted + (1 - keep) * _PRIOR_ACCEPTANCE * _PRIOR_TOKENS
        self._judged = keep * self._judged + (1 - keep) * _PRIOR_TOKENS


def _follow(estimate: float, sample: float) -> float:
    return estimate + (1 - _KEEP) * (sample - estimate)
