"""The schedule that a simulated session goes on with: what the real choosers find for what its edge
would have measured, in steps coarse enough to be found once."""

from __future__ import annotations

from functools import lru_cache
from math import exp, log

from lab.analysis.cost_of_preset import schedule_of
from lab.simulation.fleet_cloud import FleetCloud, FleetSession
from lab.simulation.fleet_plan import FleetPlan
from tandem.control.conditions import Conditions, PairTimes
from tandem.specdec.choices import Control, Schedule

_STEP = 0.25
"""Of the logarithms of times: a quarter more or less is another schedule's case."""
_RATE_STEP = 0.1
_TINY_S = 1e-4


class FleetSchedules:
    """The schedules of one plan's preset."""

    def __init__(self, plan: FleetPlan) -> None:
        self._plan = plan
        self._schedule_for_steps = lru_cache(maxsize=65_536)(self._choose)

    def of(self, session: FleetSession, cloud: FleetCloud, now: float) -> Schedule:
        preset = self._plan.preset
        if preset.control is Control.FIXED or not preset.drafts:
            return preset.schedule
        pass_s = max(cloud.recent.pass_s(now), self._plan.verify_first_s)
        sharing = max(1, len(cloud.sessions))
        times = (session.draft_s, session.rtt_s, pass_s, cloud.recent.queue_s(now), sharing)
        steps = tuple(round(log(max(_TINY_S, time_s)) / _STEP) for time_s in times)
        return self._schedule_for_steps(steps, round(session.acceptance_rate / _RATE_STEP))

    def _choose(self, steps: tuple[int, ...], rate: int) -> Schedule:
        plan = self._plan
        draft_s, rtt_s, pass_s, wait_s, sharing = (exp(step * _STEP) for step in steps)
        conditions = Conditions(
            PairTimes(draft_s, pass_s, plan.verify_further_s),
            rtt_s=rtt_s,
            acceptance_rate=rate * _RATE_STEP,
            wait_s=wait_s,
            sharing=sharing,
        )
        return schedule_of(plan.preset, conditions)
