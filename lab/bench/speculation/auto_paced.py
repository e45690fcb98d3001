"""`bench auto --paced`: cells of the grid as processes, with scripted models paced by declared
times, behind the link emulator, one core a side.

A pair of runs asks the same questions of `ar` and of `auto`, one right after the other and in turn
the one or the other first, so what else the machine does hits both. The figure of a cell is the
median of its pairs' ratios, with quartiles. Beside it the same pair of models in virtual time, and
what was counted: where the ratio is off and the counts are not, the machine was busy.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from statistics import median, quantiles

from lab.bench.harness.plots import bars
from lab.bench.harness.report import Goal, Report, Row, make_row, progress
from lab.bench.harness.suite import Models, Suite, running_suite
from lab.bench.harness.texts import prompts
from lab.bench.harness.workload import all_at_once, requests, summary_of, total
from lab.bench.speculation.auto_cases import PACINGS, Cell
from lab.bench.speculation.auto_rows import ALONE, CHOSEN
from tandem.core.probs import SamplingParams
from tandem.generation.client import Generated
from tandem.net.process import run_loop
from tandem.specdec.presets import PRESETS
from tandem.testing.scripted import scripted_pair
from tandem.testing.simulation.answer import Conditions, Question, SimulatedAnswer, simulate_answers
from tandem.testing.simulation.model_pair import simulated_pair

PAIRS = 5
QUICK_PAIRS = 2
TOKENS = 32
PROMPT = 12
"""Of an answer, and characters of its prompt: a long one, which both compute alike, would hide what
they differ in."""
NEVER_SLOWER = 0.98
NOISES = {0.05: 0.95, 0.6: 0.4, 0.9: 0.1}
"""Of the scripted draft model, by the acceptance that it has with coupling, about."""
LINKS = ((0.030, 100.0), (0.300, 10.0))
CELLS = [Cell("server", *link, rate, n) for rate, link, n in product(NOISES, LINKS, (1, 4))]
QUICK_CELLS = [cell for cell in CELLS if (cell.rate, cell.sessions) in ((0.05, 1), (0.6, 4))]
COLUMNS = (
    *("rtt_s", "mbps", "declared", "sessions", "speedup_over_ar", "low", "high", "virtual"),
    *("acceptance_rate", "target_passes_per_token", "drafted_per_token", "chosen", "same_text"),
)


@dataclass(frozen=True, slots=True)
class PairOfRuns:
    """The answers to the same questions by both presets."""

    alone: Sequence[Generated]
    chosen: Sequence[Generated]

    @property
    def ratio(self) -> float:
        """Of the cloud alone's time to the other's, from the first token of all to the last."""
        return _lasts_s(self.alone) / _lasts_s(self.chosen)

    @property
    def same(self) -> int:
        """How many texts are equal."""
        both = zip(self.alone, self.chosen, strict=True)
        return sum(one.token_ids == other.token_ids for one, other in both)


def measure_paced(report: Report, pairs: int | None = None) -> None:
    """Fill the report: a row and a goal for each cell. Takes about half a minute a cell."""
    chosen = QUICK_CELLS if report.quick else CELLS
    pairs = pairs or (QUICK_PAIRS if report.quick else PAIRS)
    rows: list[Row] = []
    for rate in dict.fromkeys(cell.rate for cell in chosen):
        cells = [cell for cell in chosen if cell.rate == rate]
        rows += _rows(cells, report.seed, pairs)
    report.add(f"Paced processes, {pairs} pairs of runs a cell", COLUMNS, rows)
    report.goals += goals(rows)
    report.notes.append(
        "speedup_over_ar: median over the pairs of runs; low and high: quartiles. virtual: the same"
        " models and links in virtual time, an edge's first request."
    )


def _rows(cells: Sequence[Cell], seed: int, pairs: int) -> Iterator[Row]:
    """Yield the row of each cell. All cells are of one pair of models and one declared hardware."""
    name = f"1:{NOISES[cells[0].rate]:g}"
    models = Models(name, name, draft_engine="scripted", target_engine="scripted")
    virtual = [_virtual(cell, seed) for cell in cells]
    with running_suite(models, PACINGS[cells[0].hardware], with_link=True) as suite:
        assert suite.link is not None, "a link was asked for"
        for cell, expected in zip(cells, virtual, strict=True):
            progress(f"paced processes, {cell}")
            suite.link.set(cell.rtt_s, cell.mbps)
            _pair(suite, cell, seed, 0)  # both know the link then
            runs = [_pair(suite, cell, seed, number) for number in range(1, pairs + 1)]
            yield row_of(cell, runs, expected)


def _pair(suite: Suite, cell: Cell, seed: int, number: int) -> PairOfRuns:
    """Answer the same questions with both presets. Each `number` has different seeds, and every
    second one asks `auto` first."""
    answers: dict[str, list[Generated]] = {}
    texts = _texts(cell.sessions)
    for preset in (ALONE, CHOSEN) if number % 2 else (CHOSEN, ALONE):
        wanted = requests(texts, preset, None, TOKENS, seed + number * cell.sessions)
        answers[preset] = run_loop(all_at_once(suite, wanted))
    return PairOfRuns(answers[ALONE], answers[CHOSEN])


def _virtual(cell: Cell, seed: int) -> float:
    """Return the time of `ar` ÷ that of `auto` for the same questions in virtual time."""
    pair = simulated_pair(*scripted_pair(NOISES[cell.rate]), SamplingParams())
    conditions = Conditions(cell.times, cell.rtt_s, cell.mbps)
    questions = [
        Question(
            tuple(ord(character) % pair.vocabulary_size for character in text),
            TOKENS,
            seed + number,
        )
        for number, text in enumerate(_texts(cell.sessions))
    ]
    alone, chosen = (
        simulate_answers(PRESETS[preset], pair, conditions, questions) for preset in (ALONE, CHOSEN)
    )
    return _lasts_s(alone) / _lasts_s(chosen)


def row_of(cell: Cell, pairs: Sequence[PairOfRuns], virtual: float) -> Row:
    """Return the row of a cell: the ratios of its pairs of runs, and counts over all answers of
    `auto`."""
    ratios = [pair.ratio for pair in pairs]
    low, _, high = quantiles(ratios, n=4, method="inclusive") if len(ratios) > 1 else 3 * ratios
    answers = [answer for pair in pairs for answer in pair.chosen]
    tokens, drafted = total(answers, "tokens"), total(answers, "drafted")
    schedules = [summary_of(answer).choice.schedule for answer in answers]
    return make_row(
        preset=CHOSEN,
        pacing=cell.hardware,
        rtt_s=cell.rtt_s,
        mbps=cell.mbps,
        tokens_per_s=tokens / sum(_lasts_s(pair.chosen) for pair in pairs),
        speedup_over_ar=median(ratios),
        acceptance_rate=total(answers, "accepted") / drafted if drafted else None,
        target_passes_per_token=total(answers, "target_passes") / tokens,
    ) | {
        "declared": cell.rate,
        "sessions": cell.sessions,
        "low": low,
        "high": high,
        "ratios": ratios,
        "virtual": virtual,
        "drafted_per_token": drafted / tokens,
        "chosen": max(set(schedules), key=schedules.count),
        "same_text": sum(pair.same for pair in pairs) / len(answers),
    }


def goals(rows: Sequence[Row]) -> list[Goal]:
    """Return the goals: `auto` is never slower than the cloud alone, and writes the same texts."""
    slowest = min(row["speedup_over_ar"] for row in rows)
    same = min(row["same_text"] for row in rows)
    words = f"of {len(rows)} cells as processes"
    return [
        Goal(f"auto / ar, worst median {words}", slowest, NEVER_SLOWER, "at least"),
        Goal(f"share of texts equal to ar's, least {words}", same, 1.0, "at least"),
    ]


def draw_paced(rows: Sequence[Row], folder: Path) -> None:
    """Draw a bar for each cell."""
    heights = {
        f"{row['declared']:g}\n{row['rtt_s'] * 1e3:g} ms\n{row['sessions']}": row["speedup_over_ar"]
        for row in rows
    }
    title = "auto / ar as processes, by acceptance, round trip and sessions"
    bars(folder / "auto_paced.png", heights, ylabel="auto / ar", title=title, limit=1.0)


def _lasts_s(answers: Sequence[Generated | SimulatedAnswer]) -> float:
    first_s = min(answer.ttft_s or 0.0 for answer in answers)
    return max(answer.last_commit_s for answer in answers) - first_s


def _texts(sessions: int) -> list[str]:
    return [text[:PROMPT] for text in prompts(sessions)]
