"""Sessions that have measured something of their pair and their link."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from tandem.specdec.choices import Control
from tandem.specdec.messages import Draft, Tokens, Verdict, Work
from tandem.specdec.pacing import Pacing
from tandem.specdec.presets import PRESETS
from tandem.specdec.profile import Profile
from tandem.specdec.scheduling import Measured


def frame(base: int, count: int = 2, hold: bool = False) -> Draft:
    return Draft(1, 0, base, 9, tuple(range(count)), end_of_chunk=True, hold=hold)


def measured(profile: Profile) -> Measured:
    found = profile.measured
    assert found is not None
    return found


def seen(draft_s: float = 0.02, verify_s: float = 0.05, rtt_s: float = 0.03) -> Profile:
    """A profile in which everything was seen once."""
    profile = Profile()
    profile.drafted(2, 2 * draft_s)
    profile.sent(frame(5), 1.0)
    profile.answered(7, Work(verify_s=verify_s, drafts=2), 1.0 + rtt_s + verify_s)
    return profile


def paced(control: Control = Control.LATENCY_AWARE) -> Pacing:
    """Something was drafted and sent; an answer to it is missing."""
    pacing = Pacing(replace(PRESETS["stream"], control=control))
    pacing.connected()
    pacing.drafted(2, 0.04)
    pacing.sent([frame(5)], 1.0)
    return pacing


def verdict(accepted: int = 2, rejected: bool = False, base: int = 5) -> Verdict:
    work = Work(verify_s=0.07, drafts=2)
    return Verdict(1, 0, base, 9, accepted, rejected, 3 if rejected else None, work)


def answered(pacing: Pacing, count: int, clock: Iterator[int], every_s: float = 0.05) -> None:
    for _, number in zip(range(count), clock, strict=False):
        message = Tokens(1, 0, 7 + number, 9, (4,), Work(verify_s=every_s))
        pacing.take_tokens(message, 2.0 + every_s * number)
