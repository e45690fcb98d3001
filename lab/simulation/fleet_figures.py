"""Figures of a simulated fleet, and how many verifiers a load needs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from lab.simulation.fleet_plan import FleetPlan


@dataclass(frozen=True, slots=True)
class FleetAnswer:
    """One answer, by its edge's clock; times in seconds."""

    edge: int
    ttft_s: float
    tpot_s: float
    tokens: int


@dataclass(frozen=True, slots=True)
class FleetFigures:
    """The figures of the time after warming up. `rounds`: shares of a session in a pass;
    `simulated_rounds` counts those before too; `verifiers`: the mean number that served or started;
    `jain`: fairness of the edges' speeds; quantiles in seconds, None without answers."""

    answers: int
    refused: int
    rounds: int
    tokens_per_s: float
    tokens_per_round: float
    sessions_per_pass: float
    verifiers: float
    ttft_p50_s: float | None
    ttft_p95_s: float | None
    ttft_p99_s: float | None
    tpot_p50_s: float | None
    tpot_p95_s: float | None
    tpot_p99_s: float | None
    jain: float | None
    simulated_rounds: int
    moves: Mapping[str, int]
    drafting_share: float
    """Of the time that verifiers compute: what their own draft steps take."""
    busy: float
    """The share of their time that verifiers compute."""

    def keeps(self, tpot_s: float, ttft_s: float) -> bool:
        """Return whether 95 % of the answers keep to these limits, and none was refused."""
        if self.tpot_p95_s is None or self.ttft_p95_s is None or self.refused:
            return False
        return self.tpot_p95_s <= tpot_s and self.ttft_p95_s <= ttft_s


def fleet_figures(
    plan: FleetPlan,
    answers: Sequence[FleetAnswer],
    totals: Sequence[float],
    moves: Mapping[str, int],
    refused: int,
    simulated: int,
) -> FleetFigures:
    """Return the figures of a simulated fleet. `totals`: rounds, tokens and passes; seconds of
    verifiers, of passes, and of draft steps in the cloud."""
    rounds, tokens, passes, verifier_s, passing_s, drafting_s = totals
    computing_s = passing_s + drafting_s
    ttfts, tpots = sorted(a.ttft_s for a in answers), sorted(a.tpot_s for a in answers)
    return FleetFigures(
        answers=len(answers),
        refused=refused,
        rounds=int(rounds),
        tokens_per_s=tokens / plan.lasts_s,
        tokens_per_round=tokens / rounds if rounds else 0.0,
        sessions_per_pass=rounds / passes if passes else 0.0,
        verifiers=verifier_s / plan.lasts_s,
        ttft_p50_s=_quantile(ttfts, 0.5),
        ttft_p95_s=_quantile(ttfts, 0.95),
        ttft_p99_s=_quantile(ttfts, 0.99),
        tpot_p50_s=_quantile(tpots, 0.5),
        tpot_p95_s=_quantile(tpots, 0.95),
        tpot_p99_s=_quantile(tpots, 0.99),
        jain=_jain(answers),
        simulated_rounds=simulated,
        moves=moves,
        drafting_share=drafting_s / computing_s if computing_s else 0.0,
        busy=computing_s / verifier_s if verifier_s else 0.0,
    )


def _quantile(ranked: Sequence[float], share: float) -> float | None:
    return ranked[min(len(ranked) - 1, int(share * len(ranked)))] if ranked else None


def _jain(answers: Sequence[FleetAnswer]) -> float | None:
    """Return Jain's index, (Σx)²/(n·Σx²), over the edges' tokens per second."""
    tokens = dict[int, int]()
    seconds = dict[int, float]()
    for answer in answers:
        tokens[answer.edge] = tokens.get(answer.edge, 0) + answer.tokens - 1
        seconds[answer.edge] = seconds.get(answer.edge, 0.0) + answer.tpot_s * (answer.tokens - 1)
    speeds = [tokens[edge] / seconds[edge] for edge in tokens if seconds[edge]]
    squares = sum(speed * speed for speed in speeds)
    return sum(speeds) ** 2 / (len(speeds) * squares) if squares else None
