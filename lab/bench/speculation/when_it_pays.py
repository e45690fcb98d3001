"""`bench when-it-pays`: where drafting at the edge is faster than all that a cloud does alone.

A map over round trip, sessions that share one verifier, and how often a draft is right. Each cell
compares the fastest preset that drafts at the edge with the fastest of a cloud without an edge: one
token at a time (`ar`), with its own draft model (`cloud-draft`), or with drafts looked up in the
text (`cloud-lookup`); and with the last two only, where the cloud has no room for a draft model.

In virtual time, through the state machines of the services: step times, link and acceptance are
declared. Edge and cloud have the same draft model, and every session has an edge to itself. In the
cloud a draft step takes all sessions at once, and as long for many as for one; a pass begins when
all of them have drafted, as in a server that drafts for its whole batch and then verifies it. The
declared texts repeat nothing, so lookup finds nothing in them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import lru_cache
from itertools import product
from pathlib import Path
from statistics import fmean

from lab.bench.harness.baselines import ALONE, CLOUD_DRAFT, CLOUD_LOOKUP
from lab.bench.harness.report import Report, Row, counted, make_row
from lab.bench.harness.suite import Models
from lab.bench.speculation.auto_rows import keep_row, read_rows
from lab.bench.speculation.pays_page import picture, write_page
from lab.simulation.answer import Conditions, Question, simulate_answers
from lab.simulation.answer_figures import steady_tokens_per_s
from lab.simulation.declared_pair import declared_pair
from lab.simulation.model_pair import SimulatedPair
from lab.simulation.simulator import ModelTimes
from tandem.specdec.presets import PRESETS, Preset

RTTS_S, QUICK_RTTS_S = (0.0, 0.030, 0.100, 0.300), (0.0, 0.100)
SESSIONS, QUICK_SESSIONS = (1, 4, 16, 64), (1, 16)
RATES, QUICK_RATES = (0.3, 0.6, 0.9), (0.6, 0.9)
MBPS = 100.0
TOKENS = {1: 240, 4: 160, 16: 112, 64: 64}
"""Of each answer, by sessions; fewer would count bursts for speed."""
CLOUD_TOKENS = 200
"""Of each answer that the cloud drafts itself."""
WARM = 0.25
"""The share of an answer's tokens that is not counted, while what is measured settles."""
SEEDS = {1: 2, 4: 1, 16: 1, 64: 1}
"""How many texts, by sessions; many sessions write many texts with one seed."""
WORDS = 256
"""Vocabulary of the declared pair: small ones draw sooner."""
LONG_CLOUD_DRAFT = 8
BOTH = "stream-cloud-draft"
COLUMNS = (
    *("declared", "rtt_s", "sessions", "edge", "cloud", "over_cloud"),
    *("cloud_without_draft", "over_cloud_without_draft", "both_over_cloud"),
)


@dataclass(frozen=True, slots=True)
class Cell:
    """A place on the map. `rate`: how often a draft is right."""

    rate: float
    rtt_s: float
    sessions: int

    def __str__(self) -> str:
        link = f"{self.rtt_s * 1e3:g} ms"
        return f"acceptance {self.rate:g}, {link}, {self.sessions} sessions"


def edge_presets() -> dict[str, Preset]:
    """Return those that draft at the edge alone."""
    return {name: PRESETS[name] for name in ("stream", "coupled")}


def cloud_draft_presets() -> dict[str, Preset]:
    """Return those of a cloud with a draft model: it drafts as many tokens as it finds worth their
    time, up to these numbers."""
    longer = PRESETS[CLOUD_DRAFT].with_draft_length(LONG_CLOUD_DRAFT)
    return {CLOUD_DRAFT: PRESETS[CLOUD_DRAFT], f"{CLOUD_DRAFT} {LONG_CLOUD_DRAFT}": longer}


def plain_cloud_presets() -> dict[str, Preset]:
    """Return those of a cloud without a draft model."""
    return {name: PRESETS[name] for name in (ALONE, CLOUD_LOOKUP)}


def run(
    report: Report,
    models: Models,
    page: Path | None = None,
    kept: Path | None = None,
    draft_ms: float = 24.0,
    cloud_draft_ms: float | None = None,
    verify_ms: float = 72.0,
    verify_further_ms: float = 0.5,
) -> None:
    """Fill the report, a row for each cell; `models` are not used, since distributions are
    declared. `page`: also write map, picture and rows there. With `kept` a run that was ended goes
    on."""
    times = ModelTimes(
        draft_ms / 1e3,
        verify_ms / 1e3,
        verify_further_ms / 1e3,
        cloud_draft_s=None if cloud_draft_ms is None else cloud_draft_ms / 1e3,
        gathers_drafts=True,
    )
    made = {"seed": report.seed, "times": asdict(times), "commit": report.machine.commit}
    known = read_rows(kept, made)
    simulations = Simulations(times, report.seed)
    cells = cells_of(report.quick)
    for cell in counted([cell for cell in cells if str(cell) not in known], str):
        known[str(cell)] = row = cell_row(cell, simulations.tokens_per_s)
        if kept is not None:
            keep_row(kept, cell, made, row)
    rows = [known[str(cell)] | {"seed": report.seed} for cell in cells]
    report.add("Drafts of the edge ÷ the best of the cloud, tokens/s together", COLUMNS, rows)
    report.notes += [
        f"Virtual time: a draft step at the edge {draft_ms:g} ms, in the cloud"
        f" {times.cloud_step_s * 1e3:g} ms for all sessions at once, a pass {verify_ms:g} ms and"
        f" {verify_further_ms:g} ms for each further token of any session, {MBPS:g} Mbit/s.",
        "over_cloud_without_draft: the cloud has no room for a draft model. both_over_cloud:"
        f" {BOTH}, drafts of both, over the best of the cloud.",
    ]
    if page is not None:
        write_page(page, rows, times, report.command)


def cells_of(quick: bool) -> list[Cell]:
    """Return the map's cells; of a quick run those of its corners."""
    rates = QUICK_RATES if quick else RATES
    rtts_s = QUICK_RTTS_S if quick else RTTS_S
    sessions = QUICK_SESSIONS if quick else SESSIONS
    return [Cell(rate, rtt_s, count) for rate, rtt_s, count in product(rates, rtts_s, sessions)]


def cell_row(cell: Cell, tokens_per_s: Callable[[Preset, Cell], float]) -> Row:
    """Return what is fastest in a cell, at the edge and in the cloud, and how they compare.
    `tokens_per_s`: of all sessions together."""

    def speeds(presets: Mapping[str, Preset]) -> dict[str, float]:
        return {name: tokens_per_s(preset, cell) for name, preset in presets.items()}

    edge = speeds(edge_presets())
    plain = speeds(plain_cloud_presets())
    cloud = plain | speeds(cloud_draft_presets())
    both = tokens_per_s(PRESETS[BOTH], cell)
    fastest = _fastest(edge)
    best = _fastest(cloud)
    best_plain = _fastest(plain)
    return make_row(
        preset=fastest,
        rtt_s=cell.rtt_s,
        mbps=MBPS,
        tokens_per_s=edge[fastest],
        speedup_over_ar=edge[fastest] / cloud[ALONE],
        declared=cell.rate,
        sessions=cell.sessions,
        edge=fastest,
        cloud=best,
        over_cloud=edge[fastest] / cloud[best],
        cloud_without_draft=best_plain,
        over_cloud_without_draft=edge[fastest] / plain[best_plain],
        both_over_cloud=both / cloud[best],
        speeds=edge | cloud | {BOTH: both},
    )


def _fastest(speeds: Mapping[str, float]) -> str:
    return max(speeds, key=lambda name: speeds[name])


@dataclass(slots=True)
class Simulations:
    """Speeds in virtual time, each simulated once. What crosses the link when the cloud drafts for
    itself are tokens, which nobody waits for: its speed is the same at any round trip."""

    times: ModelTimes
    seed: int
    _known: dict[tuple[Preset, Cell], float] = field(default_factory=dict)

    def tokens_per_s(self, preset: Preset, cell: Cell) -> float:
        """Return the tokens per second of all sessions together, over several texts."""
        at = cell if preset.drafts else replace(cell, rtt_s=0.0)
        if not (preset.drafts or preset in cloud_draft_presets().values()):
            at = replace(at, rate=RATES[0])  # nothing that it does depends on the draft model
        if (preset, at) not in self._known:
            seeds = range(self.seed, self.seed + SEEDS[at.sessions])
            self._known[preset, at] = fmean(self.simulate(preset, at, seed) for seed in seeds)
        return self._known[preset, at]

    def simulate(self, preset: Preset, cell: Cell, seed: int) -> float:
        """Return the tokens per second with one seed."""
        tokens = TOKENS[cell.sessions] if preset.drafts else CLOUD_TOKENS
        first_s = 4 * self.times.pass_s(1)
        questions = [
            # Not all at once: how sessions fall into step with each other is part of the matter.
            Question((number, seed % WORDS), tokens, seed, start_s=number * 0.618 % 1 * first_s)
            for number in range(cell.sessions)
        ]
        conditions = Conditions(self.times, cell.rtt_s, MBPS)
        answers = simulate_answers(preset, _pair(cell.rate, seed), conditions, questions)
        return steady_tokens_per_s(answers, int(WARM * tokens))


@lru_cache(maxsize=max(SEEDS.values()))
def _pair(rate: float, seed: int) -> SimulatedPair:
    """Return one for all presets, which ask for mostly the same distributions: drafts are right at
    the same places for all of them."""
    return declared_pair(rate, seed=seed, vocabulary_size=WORDS)


def draw(report: Report, folder: Path) -> None:
    """Draw the map."""
    folder.mkdir(parents=True, exist_ok=True)
    drawn = picture(report.rows)
    (folder / "when-it-pays.svg").write_text(drawn, encoding="utf-8")
