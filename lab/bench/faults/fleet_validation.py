"""The simulated fleet against real processes: 16 edges and 2 verifiers, paced by declared times.

What the simulation is told is declared, or computed from the pair without a clock (acceptance, and
how often a correction had been drafted for); nothing is fitted to what is measured.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lab.bench.faults.chat_load import Traffic, chats, load_figures
from lab.bench.faults.fleet_suite import FleetShape, fleet_suite
from lab.bench.harness.report import progress
from lab.bench.harness.suite import Pacing
from lab.simulation.answer_figures import undrafted_rate
from lab.simulation.fleet import simulate_fleet
from lab.simulation.fleet_plan import FleetPlan, FleetTraffic, Spread, TrafficKind
from tandem.core.probs import SamplingParams
from tandem.specdec.presets import PRESETS, Preset
from tandem.testing.scripted import scripted_pair
from tandem.testing.simulation.answer import (
    Conditions,
    Question,
    simulate_answers,
    verified_acceptance,
)
from tandem.testing.simulation.model_pair import simulated_pair
from tandem.testing.simulation.model_times import ModelTimes

EDGES = 16
VERIFIERS = 2
PACING = Pacing(draft_s=0.150, verify_first_s=0.400, verify_further_s=0.010)
"""Slow, so that the machine's own work counts little."""
RTT_S = 0.200
NOISE = 0.3
THINK_S = 3.0
MAX_TOKENS = 48
PROMPT_TOKENS = 24
VALIDATED = ("ar", "auto", "coupled")
SIMULATED_S = 2000.0
WARM_S = 20.0


@dataclass(frozen=True, slots=True)
class Validated:
    """Measured and simulated, of one preset."""

    preset: str
    answers: int
    failed: int
    tokens_per_s: tuple[float, float]
    tpot_p50_s: tuple[float, float]
    tpot_p95_s: tuple[float, float]
    acceptance_rate: float

    @staticmethod
    def ratio(pair: tuple[float, float]) -> float:
        """Return simulated ÷ measured; `pair` is (measured, simulated)."""
        return pair[1] / pair[0]


async def validated(place: Path, lasts_s: float, seed: int) -> list[Validated]:
    shape = FleetShape(PACING, EDGES, VERIFIERS, RTT_S, NOISE, keeps_prefixes=False, replicas=True)
    measured: dict[str, dict[str, Any]] = {}
    async with fleet_suite(place, shape) as suite:
        for name in VALIDATED:
            progress(f"{EDGES} edges by {name}")
            traffic = Traffic(name, MAX_TOKENS, PROMPT_TOKENS, THINK_S, seed)
            over = asyncio.Event()
            asking = asyncio.create_task(chats(suite.http, traffic, EDGES, over))
            await asyncio.sleep(WARM_S)
            began_s = time.monotonic()
            await asyncio.sleep(lasts_s)
            ended_s = time.monotonic()
            over.set()
            measured[name] = load_figures(await asking, began_s, ended_s, (1.0, 1.0))
    # Not before: the links are emulated on this very loop.
    return [_validated(name, figures, seed) for name, figures in measured.items()]


def _validated(name: str, figures: Mapping[str, Any], seed: int) -> Validated:
    rate, hits = pair_rates(PRESETS[name])
    simulated = simulate_fleet(plan_of(PRESETS[name], rate, hits, seed))
    assert simulated.tpot_p50_s is not None, "it answers"
    assert simulated.tpot_p95_s is not None, "it answers"
    return Validated(
        name,
        figures["answers"],
        figures["failed"],
        (figures["tokens_per_s"], simulated.tokens_per_s),
        (figures["tpot_p50_s"], simulated.tpot_p50_s),
        (figures["tpot_p95_s"], simulated.tpot_p95_s),
        rate,
    )


def plan_of(preset: Preset, acceptance_rate: float, hit_rate: float, seed: int) -> FleetPlan:
    """Return the plan that simulates the same fleet, for long enough that chance moves its figures
    little."""
    traffic = FleetTraffic(
        TrafficKind.CHATS,
        THINK_S,
        prompt_tokens=Spread.of(PROMPT_TOKENS),
        answer_tokens=Spread.of(MAX_TOKENS),
    )
    return FleetPlan(
        preset,
        EDGES,
        VERIFIERS,
        traffic,
        verify_first_s=PACING.verify_first_s,
        verify_further_s=PACING.verify_further_s,
        prompt_token_s=PACING.verify_further_s,
        draft_s=Spread.of(PACING.draft_s),
        rtt_s=Spread.of(RTT_S),
        acceptance_rate=Spread.of(acceptance_rate),
        hit_rate=hit_rate,
        lasts_s=SIMULATED_S,
        warm_s=20.0,
        seed=seed,
    )


def pair_rates(preset: Preset) -> tuple[float, float]:
    """Return how often a draft of the scripted pair is right, and how often a correction had been
    drafted for, both measured on answers of one session in virtual time."""
    if not preset.drafts:
        return 0.5, 0.0
    pair = simulated_pair(*scripted_pair(NOISE), SamplingParams())
    times = ModelTimes(PACING.draft_s, PACING.verify_first_s, PACING.verify_further_s)
    answers = [
        simulate_answers(
            preset,
            pair,
            Conditions(times, RTT_S),
            [Question(tuple(range(97, 97 + PROMPT_TOKENS)), MAX_TOKENS, seed)],
        )[0]
        for seed in range(12)
    ]
    missed = undrafted_rate(answers)
    return verified_acceptance(answers) or 0.0, 0.0 if missed is None else 1 - missed
