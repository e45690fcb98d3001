"""The expected time of a token under each schedule, in closed form.

A cloud that goes on alone takes `alone` seconds for a token. A correction voids all drafts, and the
next ones come a round trip later, one every `spacing` seconds; meanwhile the cloud goes on. Draft
number i is there in time if rtt + i·spacing ≤ (i - 1)·alone, so the edge leads after
(rtt + alone)/(alone - spacing) - 1 tokens, if all of its drafts stood until then. From there on a
pass takes the n drafts that come while the one before runs, as far as they pay, and yields
(1 - a^(n+1))/(1 - a) tokens. The edge leads with probability a^lead.

Pure arithmetic; tested against the state machines in virtual time."""

from __future__ import annotations

from dataclasses import replace
from math import ceil, inf

from tandem.control.cloud_draft_budget import tokens_per_pass, worth_drafting
from tandem.control.conditions import Conditions
from tandem.control.config import DEFAULT_CONFIG, ControllerConfig
from tandem.control.schedule import Schedule


def stream_within(limits: Schedule, config: ControllerConfig = DEFAULT_CONFIG) -> Schedule:
    """Return the stream, whose window and chunk are those of `limits` at most."""
    window = min(config.window, limits.window)
    return replace(limits, window=window, chunk=min(limits.chunk, window))


def expected_tpot_s(
    schedule: Schedule, conditions: Conditions, config: ControllerConfig = DEFAULT_CONFIG
) -> float:
    """Return the expected seconds of one token: of the cloud alone (window 0), or of a stream."""
    pass_s = conditions.pair.verify_first_s + conditions.message_s
    alone_s = conditions.alone_s or pass_s
    if not schedule.window:
        return alone_s
    alone_s *= conditions.slowdown
    pass_s *= conditions.slowdown
    rate: float = min(conditions.acceptance_rate, config.surest)
    step_s = conditions.pair.draft_s + conditions.message_s
    away_s = conditions.rtt_s + pass_s + step_s
    spacing_s = max(step_s, away_s / schedule.window)
    leads = rate ** _lead(conditions.rtt_s, alone_s, spacing_s)
    row_s = conditions.slowdown * conditions.pair.verify_further_s
    come = (pass_s - spacing_s) / (spacing_s - row_s) if spacing_s > row_s else schedule.window
    pay = worth_drafting(rate, schedule.window, row_s / pass_s, config)
    count = max(0.0, min(come, pay))
    led_s = (pass_s + count * row_s) / tokens_per_pass(rate, count)
    cost_s: float = (1 - leads) * alone_s + leads * led_s
    return cost_s


def _lead(rtt_s: float, alone_s: float, spacing_s: float) -> float:
    """Return after how many tokens of the cloud the edge leads; infinite where it never does."""
    if spacing_s >= alone_s:
        return inf
    return ceil((rtt_s + alone_s) / (alone_s - spacing_s)) - 1
