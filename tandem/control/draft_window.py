"""Windows and chunks of the presets that do not choose between schedules: PicoSpec's truncation
(`latency_aware`, its §3.3 and eqs. 8-10) and the window of `stream` (`window_for`), which fits
drafts that are verified as they arrive to a cloud that goes on alone meanwhile. Pure."""

from __future__ import annotations

from dataclasses import replace
from math import ceil, floor, log

from tandem.control.conditions import Conditions
from tandem.control.config import DEFAULT_CONFIG, TINY, ControllerConfig
from tandem.control.schedule import Control, Schedule


def schedule_for(
    control: Control,
    limits: Schedule,
    conditions: Conditions,
    idle_weight: float,
    config: ControllerConfig = DEFAULT_CONFIG,
) -> Schedule:
    """Return the schedule to go on with; never beyond the window and chunk of `limits`."""
    match control:
        case Control.FIXED:
            return limits
        case Control.LATENCY_AWARE:
            return latency_aware(limits, conditions)
        case Control.WINDOW | Control.LEAST_COST:
            return window_for(limits, conditions, idle_weight, config)


def latency_aware(schedule: Schedule, conditions: Conditions) -> Schedule:
    """Return the chunk that takes as long to draft as the chunk before it takes to be answered, and
    as many chunks in the window as before. (PicoSpec's eq. 8 has no gap there.)"""
    wanted = ceil(chunk_budget_s(conditions) / max(conditions.pair.draft_s, TINY))
    length = max(1, min(schedule.chunk, wanted))
    return replace(schedule, chunk=length, window=schedule.window // schedule.chunk * length)


def chunk_budget_s(conditions: Conditions) -> float:
    """Return how many seconds a chunk may take before the cloud idles and the rest is left out
    (PicoSpec §3.3)."""
    return conditions.rtt_s + conditions.pair.verify_first_s


def window_for(
    schedule: Schedule,
    conditions: Conditions,
    idle_weight: float,
    config: ControllerConfig = DEFAULT_CONFIG,
) -> Schedule:
    """Return a schedule with window and chunk for drafts that are verified as they arrive.

    A draft at depth k is of use with probability a^k. In a pass it costs `verify_further_s`, and if
    it stands it saves a pass of its own; so it goes in while a^k·verify_first ≥ verify_further.
    Beyond what is drafted in a round trip and two passes more drafts could only wait. After a
    correction the cloud waits for the next draft if that takes about what it saves:
    a^1·verify_first. Tokens that are drafted faster than a message is processed go in pieces."""
    pair = conditions.pair
    rate = min(conditions.acceptance_rate, config.surest)
    if (
        schedule.decode_when_idle
        and idle_weight >= 1
        and not _can_lead(conditions, config.negligible)
    ):
        return replace(schedule, window=0, chunk=0)
    step_s = max(pair.draft_s, config.message_s / 4)
    flight_s = conditions.rtt_s + 2 * pair.verify_first_s
    depth = min(schedule.window, 1 + ceil(flight_s / step_s))
    if rate <= 0:
        depth = 1
    elif pair.verify_further_s > 0:
        worth = log(pair.verify_further_s / pair.verify_first_s) / log(rate)
        depth = min(depth, max(1, floor(worth)))
    piece = max(1, min(depth, ceil(config.message_s / step_s)))
    chunk = max(piece, min(schedule.chunk, depth))
    soon = conditions.rtt_s + pair.draft_s <= config.wait_worth * rate * pair.verify_first_s
    return replace(
        schedule,
        window=depth,
        chunk=chunk,
        token_by_token=piece == 1,
        decode_when_idle=schedule.decode_when_idle and not soon,
    )


def _can_lead(conditions: Conditions, negligible: float) -> bool:
    """Return whether drafts can get ahead of a cloud that decodes alone. After a correction the
    i-th draft reaches the cloud rtt + i·draft_s later, when the cloud has made (rtt +
    i·draft_s)/verify_first tokens itself: drafts lead from i = rtt/(verify - draft) on, if all
    before agree."""
    pair = conditions.pair
    if pair.draft_s >= pair.verify_first_s:
        return False
    lead = conditions.rtt_s / (pair.verify_first_s - pair.draft_s)
    return bool(conditions.acceptance_rate**lead >= negligible)


def decodes_alone(idle_weight: float, tokens_per_pass: float) -> bool:
    """Return whether a token is worth its own pass, rather than a wait for drafts. `idle_weight` 1
    wants the answer soon, 0 with few passes; `tokens_per_pass` is what a pass over drafts yields
    (at least 1).

    Alone, a token costs one pass at once. Left to drafts it costs 1/tokens_per_pass of one, later,
    when that much time is spent as well. With w for time and 1 - w for passes the token is worth
    its own pass iff (1 - w)·(1 - 1/tokens_per_pass) ≤ w/tokens_per_pass, that is w ≥ 1 -
    1/tokens_per_pass."""
    return idle_weight >= 1 - 1 / max(1.0, tokens_per_pass)
