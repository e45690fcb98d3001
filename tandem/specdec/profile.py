"""What one session's edge has measured: draft steps, verify passes, round trips, acceptance.
Invariant: times are differences of one clock; estimates start from stated guesses."""

from __future__ import annotations

from collections import deque

from tandem.core.line_fit import LineFit
from tandem.specdec.messages import Draft, Work
from tandem.specdec.scheduling import Measured, PairTimes

_RECENT = 32
_KEEP = 0.9
_PRIOR_ACCEPTANCE, _PRIOR_TOKENS = 0.7, 4.0
_KEEP_PER_TOKEN = 0.97


class Profile:
    """Moving estimates of one request; `measured` is None until every time was seen once."""

    def __init__(self) -> None:
        self._draft_s: float | None = None
        self._verify = LineFit(_KEEP)
        self._trips_s: deque[float] = deque(maxlen=_RECENT)
        self._sent: deque[tuple[int, float]] = deque(maxlen=4 * _RECENT)
        self._accepted = _PRIOR_ACCEPTANCE * _PRIOR_TOKENS
        self._judged = _PRIOR_TOKENS
        self._wait_s = 0.0
        self._sharing = 1.0
        self._hit_rate = 0.0

    @property
    def measured(self) -> Measured | None:
        if self._draft_s is None or not self._verify.weight or not self._trips_s:
            return None
        first_s, further_s = self._verify.fit()
        pair = PairTimes(self._draft_s, max(first_s, 1e-6), further_s)
        return Measured(
            pair,
            max(0.0, min(self._trips_s)),
            self._accepted / self._judged,
            self._wait_s,
            self._sharing,
            self._hit_rate,
        )

    def drafted(self, count: int, draft_s: float) -> None:
        step_s = draft_s / count
        self._draft_s = step_s if self._draft_s is None else _follow(self._draft_s, step_s)

    def connected(self) -> None:
        """What was sent before will not be answered."""
        self._sent.clear()

    def sent(self, frame: Draft, now: float) -> None:
        self._sent.append((frame.base + len(frame.token_ids), now))

    def answered(self, end: int, work: Work, now: float) -> None:
        """An answer came that judged drafts before position `end`, after `work`. How long its last
        frame was away, but for the work, is a round trip or more: it may have waited for a pass."""
        sent_s = None
        while self._sent and self._sent[0][0] <= end:
            sent_s = self._sent.popleft()[1]
        if sent_s is not None:
            self._trips_s.append(now - sent_s - work.verify_s - work.queue_s)
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
