"""DRAGON's Figures 9 to 13: what both sides do over time, as numbers and as drawn pipelines."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from random import Random

from lab.bench.papers.dragon_timings import EVEN_STEPS, pacing_of
from lab.bench.papers.paper_table import Basis, Figures, Labels, PaperRow, PaperTable, Plot
from lab.bench.papers.testbed import Testbed
from lab.bench.two_sided.pipeline import Decision, draw_cases, draw_pipeline
from lab.bench.two_sided.scheduler import Cell, one_answer
from lab.bench.two_sided.scheduler_replay import Record, replay
from tandem.netem.link_model import LinkPair, LinkSettings
from tandem.testing.simulation.two_sided_answer import TwoSidedAnswer
from tandem.two_sided.protocol.mixture import Side
from tandem.two_sided.protocol.placement import PlacementPolicy
from tandem.two_sided.protocol.presets import AGGREGATION_PRESETS

SNAPSHOT_TOKENS = 15
SNAPSHOT_ADDED_S = 0.5
SNAPSHOT_SEED = 2
SNAPSHOT_RATES = {Side.DEVICE: 0.7, Side.CLOUD: 0.5}
"""How often drafts of each side are accepted there, drawn at random."""
UNIT_S = 0.1
"""What stands for the paper's unit of time; the machines know seconds."""
CASE_TOKENS = 40
SETTLED = 8
SHOWN_UNITS = 16.0


@dataclass(frozen=True, slots=True)
class Case:
    """A pipeline of appendix A.3: what becomes of the drafts of the aggregating side, the device,
    and of the other; transfers from each side, and steps, in the paper's units."""

    figure: int
    local_accepted: bool
    remote_accepted: bool
    local_way: float
    remote_way: float
    local_step: float
    remote_step: float

    @property
    def words(self) -> str:
        local, remote = (
            "accepted" if accepted else "rejected"
            for accepted in (self.local_accepted, self.remote_accepted)
        )
        return f"{self.figure}: local {local}, remote {remote}"

    @property
    def formula(self) -> float:
        """Latency a token by the paper: a rejected remote draft costs both ways."""
        ways = 0.0 if self.remote_accepted else self.local_way + self.remote_way
        return max(self.local_step, self.remote_step + ways)


CASES = (
    Case(10, False, True, 1.2, 1.8, 1.0, 1.5),
    Case(11, True, False, 1.5, 1.0, 2.0, 2.0),
    Case(12, True, True, 1.5, 1.8, 1.0, 1.5),
    Case(13, False, False, 1.5, 1.8, 2.0, 1.0),
)


def pipelines_table() -> PaperTable:
    return PaperTable(
        key="dragon-figures-10-13",
        paper="DRAGON",
        place="Figures 10 to 13, appendix A.3",
        title="Latency a token where each acceptance case repeats, in the figures' unit",
        labels=("figure",),
        figures=("units a token", "by the paper's formula"),
        rows=tuple(PaperRow((case.words,), (None, None), "drawn only") for case in CASES),
        basis=Basis.VIRTUAL_TIME,
        declared="The transfers and steps of each figure; drafts accepted and rejected as it says, "
        f"the device aggregates. Mean of {CASE_TOKENS - SETTLED} tokens after the first {SETTLED}.",
        compute=_case_latency,
        draw=_draw_cases,
    )


def _case_latency(testbed: Testbed, labels: Labels) -> Figures:
    case = next(one for one in CASES if one.words == labels[0])
    moments = [at_s for at_s, commit in case_answer(case).commits for _ in commit.token_ids]
    took_s = moments[-1] - moments[SETTLED - 1]
    return took_s / (len(moments) - SETTLED) / UNIT_S, case.formula


def case_answer(case: Case) -> TwoSidedAnswer:
    """Return an answer in which the case repeats."""
    accepted = {
        Side.DEVICE: (case.local_accepted,) * CASE_TOKENS,
        Side.CLOUD: (case.remote_accepted,) * CASE_TOKENS,
    }
    always = dict.fromkeys(Side, (1.0,))
    up, down = (LinkSettings(UNIT_S * way) for way in (case.local_way, case.remote_way))

    def at_device(side: Side) -> tuple[PlacementPolicy, None]:
        return lambda position, aggregating: Side.DEVICE, None

    return replay(
        Record(accepted, always, always),
        AGGREGATION_PRESETS["dragon-device"],
        {Side.DEVICE: UNIT_S * case.local_step, Side.CLOUD: UNIT_S * case.remote_step},
        LinkPair.of(up, down, seed=1),
        at_device,
        CASE_TOKENS,
        traced=True,
    )


def _draw_cases(folder: Path) -> list[str]:
    name = "dragon-figures-10-13-pipelines.svg"
    answers = {f"Figure {case.words}": case_answer(case) for case in CASES}
    draw_cases(folder / name, answers, SHOWN_UNITS * UNIT_S)
    return [name]


def snapshot_table() -> PaperTable:
    return PaperTable(
        key="dragon-figure-9",
        paper="DRAGON",
        place="Figure 9, section 7.4",
        title=f"A snapshot of {SNAPSHOT_TOKENS} tokens with {1e3 * SNAPSHOT_ADDED_S:g} ms added",
        labels=("token",),
        figures=("ΔZ, ms", "round trip, ms", "α device", "α cloud", "at the cloud next"),
        rows=tuple(
            PaperRow((float(token),), (None,) * 5, "plotted only")
            for token in range(1, SNAPSHOT_TOKENS + 1)
        ),
        basis=Basis.VIRTUAL_TIME,
        declared=f"One answer, {EVEN_STEPS}, of whose drafts {SNAPSHOT_RATES[Side.DEVICE]:.0%} "
        f"(device) and {SNAPSHOT_RATES[Side.CLOUD]:.0%} (cloud) are accepted, at random; the link "
        "as for Figure 8. ΔZ as the device sees it, whichever side decided: where it is above 0, "
        "the cloud is to aggregate.",
        printed="The paper's acceptance rates are accumulated; ours forget old drafts.",
        compute=_snapshot,
        plots=(Plot("token", "ΔZ, ms"), Plot("token", "α device", words="α", also=("α cloud",))),
        draw=_draw_snapshot,
    )


@cache
def _decided() -> tuple[TwoSidedAnswer, list[Decision]]:
    source = Random(SNAPSHOT_SEED)
    accepted = {
        side: tuple(source.random() < rate for _ in range(SNAPSHOT_TOKENS + 10))
        for side, rate in SNAPSHOT_RATES.items()
    }
    always = dict.fromkeys(Side, (1.0,))
    cell = Cell(pacing_of(EVEN_STEPS), "", SNAPSHOT_ADDED_S)
    decisions: list[Decision] = []
    recorded = Record(accepted, always, always)
    answer = one_answer("dragon", cell, recorded, SNAPSHOT_SEED, decisions, SNAPSHOT_TOKENS + 10)
    return answer, decisions


def _snapshot(testbed: Testbed, labels: Labels) -> Figures:
    """Return the figures of the decision at the token; all None where nothing had been measured
    yet."""
    _, decisions = _decided()
    decision = next((one for one in decisions if one.position == int(float(labels[0]))), None)
    if decision is None:
        return (None,) * 5
    at_device = decision.side is Side.DEVICE
    return (
        1e3 * (decision.gain_s if at_device else -decision.gain_s),
        1e3 * decision.round_trip_s,
        decision.device_acceptance,
        decision.cloud_acceptance,
        float(decision.moves == at_device),
    )


def _draw_snapshot(folder: Path) -> list[str]:
    name = "dragon-figure-9-pipeline.svg"
    answer, decisions = _decided()
    draw_pipeline(folder / name, answer, decisions, SNAPSHOT_TOKENS)
    return [name]
