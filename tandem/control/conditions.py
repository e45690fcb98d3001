"""The measurements of a session, as one value that costs are computed from. Times in seconds."""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite

from tandem.core.errors import InvalidArgument


@dataclass(frozen=True, slots=True)
class PairTimes:
    """Step times of a model pair, in seconds. `draft_s`: one draft step (T_SLM). `verify_first_s`:
    a target pass over one token; it is also one step of the target alone. `verify_further_s`: what
    each further token of the same pass adds. The paper's T_LLM does not depend on the draft length:
    `verify_further_s = 0`."""

    draft_s: float
    verify_first_s: float
    verify_further_s: float = 0.0

    def __post_init__(self) -> None:
        check_duration("draft_s", self.draft_s)
        check_duration("verify_first_s", self.verify_first_s)
        check_duration("verify_further_s", self.verify_further_s)
        if self.verify_first_s == 0:
            raise InvalidArgument("verify_first_s", "must be above 0")

    def verify_s(self, draft_length: int) -> float:
        """Return the duration of the pass that judges `draft_length` drafts and yields the
        distribution after each. It feeds draft_length + 1 tokens: the last committed one and the
        drafts."""
        return self.verify_first_s + draft_length * self.verify_further_s


@dataclass(frozen=True, slots=True)
class Conditions:
    """What one session measured, as of now.

    Times are in seconds, rates are shares of 1. `pair`: step times while the other model rests.
    `wait_s`: how long work waits for a pass under way; `sharing`: sessions a pass; `hit_rate`: how
    often a correction had been drafted for; `branching`: how many times as long a draft step takes
    with branches in it; `pass_slowdown`, `draft_slowdown`: how many times as long a pass and a
    draft step take beside each other; `later_acceptance_rate`: of drafts after the first of an
    epoch, where it differs; `alone_s`: a token of the cloud alone, if it was measured, without
    drafts of its own. Of a pass of a cloud that goes on by itself `cloud_drafts`: how many drafts
    of its own it judges, `cloud_draft_s`: what it took to make each, `cloud_tokens`: how many
    tokens it brings.
    """

    pair: PairTimes
    rtt_s: float
    acceptance_rate: float
    wait_s: float = 0.0
    sharing: float = 1.0
    hit_rate: float = 0.0
    branching: float = 1.0
    pass_slowdown: float = 1.0
    draft_slowdown: float = 1.0
    later_acceptance_rate: float | None = None
    alone_s: float | None = None
    message_s: float = 0.0
    cloud_drafts: float = 0.0
    cloud_draft_s: float = 0.0
    cloud_tokens: float = 1.0

    @property
    def shared(self) -> bool:
        """True if other sessions share the passes: the cloud then waits for nobody's drafts."""
        return several(self.sharing)

    def pass_s(self, drafts: int, *, busy: bool) -> float:
        """Return the seconds that a pass over one token and `drafts` drafts takes by the session's
        clock, with the messages that belong to it. `busy`: while the edge drafts."""
        slowdown = self.pass_slowdown if busy else 1.0
        return slowdown * self.pair.verify_s(drafts) + self.overhead_s

    def cloud_pass_s(self, *, busy: bool) -> float:
        """Return the seconds from one pass of a cloud that goes on by itself to the next, with
        those that making its drafts takes; the pass brings `cloud_tokens` tokens."""
        slowdown = self.pass_slowdown if busy else 1.0
        draft_s = self.cloud_draft_s + slowdown * self.pair.verify_further_s
        return self.pass_s(0, busy=busy) + self.cloud_drafts * draft_s

    def draft_s(self, *, busy: bool) -> float:
        return self.pair.draft_s * (self.draft_slowdown if busy else 1.0)

    @property
    def overhead_s(self) -> float:
        """Seconds that a pass of the cloud alone takes beyond its computing."""
        if self.alone_s is None:
            return self.message_s
        return max(0.0, self.alone_s - self.pair.verify_first_s)

    @property
    def later_rate(self) -> float:
        """Acceptance of a draft after one that stood."""
        later = self.later_acceptance_rate
        return self.acceptance_rate if later is None else later


def several(mean: float) -> bool:
    """Return whether a mean of counts is nearer to two than to one."""
    return round(mean) >= 2


def check_duration(field: str, number: float) -> None:
    """Raise InvalidArgument naming `field` unless the number is finite and not negative."""
    if not (isfinite(number) and number >= 0):
        raise InvalidArgument(field, f"must be finite and not negative, is {number}")
