"""`bench when-it-pays`: where drafting at the edge is faster than all that a cloud does alone.

A map over round trip, sessions that share one verifier, and how often a draft is right. Each cell
compares the fastest preset that drafts at the edge with the fastest of a cloud without an edge: one
token at a time (`ar`), or with its own draft model (`cloud-draft`); and with `ar` alone, where the
cloud has no draft model.

Step times, link and acceptance are declared. Edge and cloud have the same draft model, and every
session has an edge to itself. In the cloud a draft step takes all sessions at once, and as long for
many as for one; a pass begins when all of them have drafted, as in a server that drafts for its
whole batch and then verifies it.

Cells are computed by the cost models of `tandem plan`, in which the timelines of all sessions run
together in virtual time with drafts that are right at random; with `--simulate` by the state
machines of the services, which takes a thousand times as long."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import lru_cache, partial
from itertools import product
from pathlib import Path
from statistics import fmean

from lab.analysis.cost_cloud_drafts import best_cloud_round
from lab.analysis.cost_models import LinkTimes
from lab.analysis.cost_of_preset import Sizes, predict
from lab.bench.harness.baselines import ALONE, CLOUD_DRAFT
from lab.bench.harness.report import Report, Row, counted, make_row
from lab.bench.harness.suite import Models
from lab.bench.speculation.auto_rows import keep_row, read_rows
from lab.bench.speculation.pays_page import WITH_DRAFT, WITHOUT_DRAFT, picture, write_page
from lab.simulation.answer_figures import steady_tokens_per_s
from tandem.control.conditions import PairTimes
from tandem.specdec.choices import CloudDrafts
from tandem.specdec.presets import PRESETS, Preset
from tandem.testing.simulation.answer import Conditions, Question, simulate_answers
from tandem.testing.simulation.declared_pair import declared_pair
from tandem.testing.simulation.model_pair import SimulatedPair
from tandem.testing.simulation.model_times import ModelTimes

RTTS_S = (0.0, 0.030, 0.100, 0.300)
QUICK_RTTS_S = (0.0, 0.100)
SESSIONS = (1, 4, 16, 64)
QUICK_SESSIONS = (1, 16)
RATES = (0.3, 0.5, 0.7, 0.9)
QUICK_RATES = (0.5, 0.9)
MBPS = 100.0
MOST_CLOUD_DRAFTS = 16
MISS_RATE = 0.4
"""How often the outcome of a verdict has not been drafted for, where a preset drafts ahead."""
VOCABULARY = 32_000
EDGE = "edge"
CLOUD = "cloud"
TOKENS = {1: 240, 4: 160, 16: 160, 64: 64}
"""Of each simulated answer, by sessions; fewer would count bursts for speed."""
CLOUD_TOKENS = 200
"""Of each simulated answer that the edge drafts nothing for."""
WARM = 0.25
"""The share of an answer's tokens that is not counted, while what is measured settles."""
SEEDS = {1: 3, 4: 1, 16: 1, 64: 1}
"""How many simulated texts, by sessions; many sessions write many texts with one seed."""
WORDS = 256
"""Vocabulary of the declared pair: small ones draw sooner."""
COLUMNS = (
    *("declared", "rtt_s", "sessions", EDGE, CLOUD, WITH_DRAFT),
    WITHOUT_DRAFT,
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


Speed = Callable[[Preset, Cell], float]
"""Tokens per second of all sessions together."""


def edge_presets() -> dict[str, Preset]:
    """Return the presets that draft at the edge alone."""
    return {name: PRESETS[name] for name in ("stream", "coupled")}


def cloud_presets() -> dict[str, Preset]:
    """Return the presets of a cloud without an edge; it drafts as many tokens as are worth their
    time."""
    longest = PRESETS[CLOUD_DRAFT].with_draft_length(MOST_CLOUD_DRAFTS)
    return {
        ALONE: PRESETS[ALONE],
        CLOUD_DRAFT: longest,
    }


def run(
    report: Report,
    models: Models,
    page: Path | None = None,
    simulate: bool = False,
    kept: Path | None = None,
    draft_ms: float = 24.0,
    cloud_draft_ms: float | None = None,
    verify_ms: float = 72.0,
    verify_further_ms: float = 0.5,
) -> None:
    """Fill the report, a row for each cell; `models` are not used, since distributions are
    declared. `page`: also write map, picture and rows there, and what other times would change.
    `simulate`: by the state machines; with `kept` a run that was ended goes on then."""
    times = ModelTimes(
        draft_ms / 1e3,
        verify_ms / 1e3,
        verify_further_ms / 1e3,
        cloud_draft_s=None if cloud_draft_ms is None else cloud_draft_ms / 1e3,
    )
    cells = cells_of(report.quick)
    if simulate:
        rows = _simulated_rows(report, cells, times, kept)
    else:
        rows = [cell_row(cell, partial(predicted_tokens_per_s, times)) for cell in cells]
    rows = [row | {"seed": report.seed, "simulated": simulate} for row in rows]
    report.add("Drafts of the edge ÷ the best of the cloud, tokens/s together", COLUMNS, rows)
    report.notes += [
        f"A draft step at the edge {draft_ms:g} ms, in the cloud {times.cloud_step_s * 1e3:g} ms"
        f" for all sessions at once, a pass {verify_ms:g} ms and {verify_further_ms:g} ms for each"
        f" further token of any session, {MBPS:g} Mbit/s.",
        f"{WITHOUT_DRAFT}: the cloud has no draft model.",
    ]
    if page is not None:
        others = {
            words: [cell_row(cell, partial(predicted_tokens_per_s, changed)) for cell in cells]
            for words, changed in other_times(times).items()
        }
        write_page(page, rows, others, times, report.command)


def cells_of(quick: bool) -> list[Cell]:
    """Return the map's cells; for a quick run those of its corners."""
    rates = QUICK_RATES if quick else RATES
    rtts_s = QUICK_RTTS_S if quick else RTTS_S
    sessions = QUICK_SESSIONS if quick else SESSIONS
    return [Cell(rate, rtt_s, count) for rate, rtt_s, count in product(rates, rtts_s, sessions)]


def other_times(times: ModelTimes) -> dict[str, ModelTimes]:
    """Return what the map is also computed for, by words: one time of it changed."""
    cloud_s = times.cloud_step_s
    draft_s = times.draft_s
    fixed = replace(times, cloud_draft_s=cloud_s)
    dear_s = times.verify_first_s / 24
    return {
        f"draft step in the cloud {draft_s * 1e3:g} ms, as at the edge": replace(
            times, cloud_draft_s=draft_s
        ),
        f"draft step at the edge {cloud_s * 1e3:g} ms, as in the cloud": replace(
            fixed, draft_s=cloud_s
        ),
        f"each further token of a pass {dear_s * 1e3:g} ms": replace(
            fixed, verify_further_s=dear_s
        ),
    }


def cell_row(cell: Cell, tokens_per_s: Speed) -> Row:
    """Return what is fastest in a cell, at the edge and in the cloud, and how they compare."""
    edge = {name: tokens_per_s(preset, cell) for name, preset in edge_presets().items()}
    cloud = {name: tokens_per_s(preset, cell) for name, preset in cloud_presets().items()}
    fastest = _fastest(edge)
    best = _fastest(cloud)
    return make_row(
        preset=fastest,
        rtt_s=cell.rtt_s,
        mbps=MBPS,
        tokens_per_s=edge[fastest],
        speedup_over_ar=edge[fastest] / cloud[ALONE],
        declared=cell.rate,
        sessions=cell.sessions,
        speeds=edge | cloud,
    ) | {
        EDGE: fastest,
        CLOUD: best,
        WITH_DRAFT: edge[fastest] / cloud[best],
        WITHOUT_DRAFT: edge[fastest] / cloud[ALONE],
    }


def _fastest(speeds: Mapping[str, float]) -> str:
    return max(speeds, key=lambda name: speeds[name])


def predicted_tokens_per_s(times: ModelTimes, preset: Preset, cell: Cell) -> float:
    """Return the tokens per second of all sessions together by the cost models."""
    pair = PairTimes(times.draft_s, times.verify_first_s, times.verify_further_s)
    if not preset.drafts:
        return best_cloud_round(
            pair,
            times.cloud_step_s,
            acceptance_rate=cell.rate if preset.cloud_drafts is CloudDrafts.MODEL else 0.0,
            sessions=cell.sessions,
            most=preset.cloud_draft_length if preset.drafts_in_cloud else 0,
        ).tokens_per_s
    bytes_per_s = MBPS * 1e6 / 8
    prediction = predict(
        preset,
        pair,
        LinkTimes(cell.rtt_s, bytes_per_s, bytes_per_s),
        acceptance_rate=cell.rate,
        sizes=Sizes(VOCABULARY),
        miss_rate=MISS_RATE,
        sessions=cell.sessions,
    )
    return cell.sessions / prediction.tpot_s


def _simulated_rows(
    report: Report, cells: list[Cell], times: ModelTimes, kept: Path | None
) -> list[Row]:
    """Return the rows of all cells by the state machines; rows that were kept are not computed
    again."""
    made = {"seed": report.seed, "times": asdict(times), "commit": report.machine.commit}
    known = read_rows(kept, made)
    simulations = Simulations(times, report.seed)
    for cell in counted([cell for cell in cells if str(cell) not in known], str):
        known[str(cell)] = row = cell_row(cell, simulations.tokens_per_s)
        if kept is not None:
            keep_row(kept, cell, made, row)
    return [known[str(cell)] for cell in cells]


@dataclass(slots=True)
class Simulations:
    """Speeds of the state machines in virtual time, each simulated once. What crosses the link when
    the cloud drafts for itself are tokens, which nobody waits for: its speed is the same at any
    round trip."""

    times: ModelTimes
    seed: int
    _known: dict[tuple[Preset, Cell], float] = field(default_factory=dict)

    def tokens_per_s(self, preset: Preset, cell: Cell) -> float:
        """Return the tokens per second of all sessions together, over several texts."""
        at = cell if preset.drafts else replace(cell, rtt_s=0.0)
        if not preset.drafts and preset.cloud_drafts is not CloudDrafts.MODEL:
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
    """Return one pair for all presets, which mostly ask for the same distributions: drafts are
    right at the same places for all of them."""
    return declared_pair(rate, seed=seed, vocabulary_size=WORDS)


def draw(report: Report, folder: Path) -> None:
    """Draw the map."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "when-it-pays.svg").write_text(picture(report.rows), encoding="utf-8")
