"""How far ahead to draft, chosen from what was measured. Two controllers, both pure:
`latency_aware` is PicoSpec's truncation (its §3.3 and eqs. 8-10), `window_for` fits the streaming
window to a cloud that goes on alone meanwhile."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import ceil, floor, isfinite, log

from tandem.core.errors import InvalidArgument
from tandem.specdec.choices import Control, Schedule
from tandem.specdec.presets import Preset
from tandem.specdec.seen_times import Kind, kind_of

MESSAGE_S = 0.0005
"""What a message costs the edge in processing; tokens drafted faster than this go in pieces."""
WORTH_A_TRY = 0.02
"""A window that would be of use less often than this is not opened."""
WAIT_WORTH = 1.3
"""Waiting for a draft pays up to so many times what that draft saves by itself, since more come
after it. Simulated on the demo pair: 1 to 1.6 cost as much time, 1 up to a tenth more passes."""
_SURE = 0.999
_TINY_S = 1e-9


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
        """Duration of the pass that judges `draft_length` drafts and yields the distribution after
        each. It feeds draft_length + 1 tokens: the last committed one and the drafts."""
        return self.verify_first_s + draft_length * self.verify_further_s


@dataclass(frozen=True, slots=True)
class Measured:
    """Of one session: step times, round trip and acceptance as of now; how long its work waits for
    a pass, how many sessions share one, how often a correction had been drafted for, how many times
    as long a draft step takes with branches beside it, and whether acceptance is a mere guess.
    `pairs`: step times beside schedules of a kind, where they were measured; else `pair` holds.
    `slows`: whether drafting while the cloud judges makes its passes longer than it saves."""

    pair: PairTimes
    rtt_s: float
    acceptance_rate: float
    wait_s: float = 0.0
    sharing: float = 1.0
    hit_rate: float = 0.0
    branching: float = 1.0
    guesses_acceptance: bool = False
    pairs: Mapping[Kind, PairTimes] = field(default_factory=dict)
    slows: bool = False

    def pair_under(self, schedule: Schedule) -> PairTimes:
        """Step times while a schedule is in use: what runs beside a step may slow it."""
        return self.pairs.get(kind_of(schedule), self.pair)


def schedule_for(preset: Preset, measured: Measured) -> Schedule:
    """The schedule to go on with; never beyond the preset's own window and chunk."""
    match preset.control:
        case Control.FIXED:
            return preset.schedule
        case Control.LATENCY_AWARE:
            return latency_aware(preset.schedule, measured)
        case Control.WINDOW | Control.LEAST_COST:  # `schedule_choice` begins with it
            return window_for(preset.schedule, measured, preset.idle_weight)


def latency_aware(schedule: Schedule, measured: Measured) -> Schedule:
    """The chunk that takes as long to draft as the chunk before it takes to be answered, and as
    many chunks in the window as before. (PicoSpec's eq. 8 has no gap there.)"""
    wanted = ceil(chunk_budget_s(measured) / max(measured.pair.draft_s, _TINY_S))
    length = max(1, min(schedule.chunk, wanted))
    return replace(schedule, chunk=length, window=schedule.window // schedule.chunk * length)


def chunk_budget_s(measured: Measured) -> float:
    """How long a chunk may take before the cloud idles and the rest is left out (PicoSpec §3.3)."""
    return measured.rtt_s + measured.pair.verify_first_s


def window_for(schedule: Schedule, measured: Measured, idle_weight: float) -> Schedule:
    """Window and chunk for drafts that are verified as they arrive.

    A draft at depth k is of use with probability a^k. In a pass it costs `verify_further_s`, and
    if it stands it saves a pass of its own; so it goes in while a^k·verify_first ≥ verify_further.
    Beyond what is drafted in a round trip and two passes more drafts could only wait. After a
    correction the cloud waits for the next draft if that is about what it saves: a^1·verify_first.
    """
    pair, rate = measured.pair, min(measured.acceptance_rate, _SURE)
    if schedule.decode_when_idle and idle_weight >= 1 and not _can_lead(measured):
        return replace(schedule, window=0, chunk=0)
    step_s = max(pair.draft_s, MESSAGE_S / 4)
    flight_s = measured.rtt_s + 2 * pair.verify_first_s
    depth = min(schedule.window, 1 + ceil(flight_s / step_s))
    if rate <= 0:
        depth = 1
    elif pair.verify_further_s > 0:
        worth = log(pair.verify_further_s / pair.verify_first_s) / log(rate)
        depth = min(depth, max(1, floor(worth)))
    piece = max(1, min(depth, ceil(MESSAGE_S / step_s)))
    chunk = max(piece, min(schedule.chunk, depth))
    soon = measured.rtt_s + pair.draft_s <= WAIT_WORTH * rate * pair.verify_first_s
    return replace(
        schedule,
        window=depth,
        chunk=chunk,
        token_by_token=piece == 1,
        decode_when_idle=schedule.decode_when_idle and not soon,
    )


def _can_lead(measured: Measured) -> bool:
    """Whether drafts can get ahead of a cloud that decodes alone. After a correction the i-th draft
    reaches the cloud rtt + i·draft_s later, when the cloud has made (rtt + i·draft_s)/verify_first
    tokens itself: drafts lead from i = rtt/(verify - draft) on, if all before agree."""
    pair = measured.pair
    if pair.draft_s >= pair.verify_first_s:
        return False
    lead = measured.rtt_s / (pair.verify_first_s - pair.draft_s)
    return bool(measured.acceptance_rate**lead >= WORTH_A_TRY)


def check_duration(field: str, number: float) -> None:
    """Raise InvalidArgument naming `field` unless the number is finite and not negative."""
    if not (isfinite(number) and number >= 0):
        raise InvalidArgument(field, f"must be finite and not negative, is {number}")


def decodes_alone(idle_weight: float, tokens_per_pass: float) -> bool:
    """`idle_weight` 1 wants the answer soon, 0 with few passes; `tokens_per_pass` is what a pass
    over drafts yields (at least 1).

    Alone, a token costs one pass at once. Left to drafts it costs 1/tokens_per_pass of one, later,
    when that much time is spent as well. With w for time and 1 - w for passes the token is worth
    its own pass iff (1 - w)·(1 - 1/tokens_per_pass) ≤ w/tokens_per_pass, that is w ≥ 1 -
    1/tokens_per_pass."""
    return idle_weight >= 1 - 1 / max(1.0, tokens_per_pass)
