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
    """What one session measured, as of now. Times are in seconds.

    `acceptance_rate`: of drafts, a share of 1. `sharing`: sessions a pass. `alone_s`: a token of
    the cloud alone, with the drafts that it makes itself, as it was measured; None: not measured.
    `cloud_drafts`: how many drafts of its own
    such a pass judges. `slowdown`: how many times as long a pass takes beside the edge's drafting.
    `message_s`: what the processors spend on a message."""

    pair: PairTimes
    rtt_s: float
    acceptance_rate: float
    sharing: float = 1.0
    alone_s: float | None = None
    cloud_drafts: float = 0.0
    slowdown: float = 1.0
    message_s: float = 0.0

    @property
    def shared(self) -> bool:
        """True if other sessions share the passes."""
        return several(self.sharing)


def several(mean: float) -> bool:
    """Return whether a mean of counts is nearer to two than to one."""
    return round(mean) >= 2


def check_duration(field: str, number: float) -> None:
    """Raise InvalidArgument naming `field` unless the number is finite and not negative."""
    if not (isfinite(number) and number >= 0):
        raise InvalidArgument(field, f"must be finite and not negative, is {number}")
