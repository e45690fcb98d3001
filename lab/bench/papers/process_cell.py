"""Cells of PicoSpec's tables by real processes over an emulated link, beside virtual time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from lab.bench.harness.models import Pacing
from lab.bench.harness.texts import prompts
from lab.bench.papers.paper_table import Basis, Figures, Labels, PaperRow, PaperTable
from lab.bench.papers.picospec_tables import DRAFT_LENGTH, MBPS, PAIRS
from lab.bench.papers.process_columns import COLUMNS, columns_of, none_of
from lab.bench.papers.process_runs import (
    ProcessRun,
    Questions,
    RunResult,
    run_processes,
)
from lab.bench.papers.real_pairs import shared_distributions
from lab.bench.papers.testbed import Testbed
from tandem.core.probs import SamplingParams
from tandem.specdec.presets import PRESETS, Preset

FIGURES = (
    *("speedup over AR", "standard error", "tokens/s", "tokens/s, virtual time"),
    *COLUMNS,
)
ANSWERS = 6
QUICK_ANSWERS = 2
TOKENS = 48
QUICK_TOKENS = 12
LEFT_OUT = {
    "w/o Para-draft": ("schedule.window=4",),
    "w/o Fast-verify": ("schedule.verify_on_arrival=false", "schedule.token_by_token=false"),
    "w/o Split-rej": ("uplink=full_distributions", "rejection_payload=token"),
}
"""What `picospec_variants` changes, as a request says it."""


@dataclass(frozen=True, slots=True)
class Cell:
    """A method with a pair's times."""

    pair: str
    method: str
    preset: str = "picospec"
    overrides: tuple[str, ...] = ()

    @property
    def run(self) -> ProcessRun:
        length = DRAFT_LENGTH if PRESETS[self.preset].drafts else None
        return ProcessRun(self.preset, PAIRS[self.pair].rtt_s, MBPS, length, self.overrides)

    @property
    def composed(self) -> Preset:
        return self.run.composed


ALONE = "Autoregressive"
CELLS = (
    Cell("Qwen", ALONE, "ar"),
    Cell("Qwen", "Vanilla Spec.", "dsd"),
    *(Cell("Qwen", name, overrides=overrides) for name, overrides in LEFT_OUT.items()),
    Cell("Qwen", "PicoSpec"),
    Cell("Llama", ALONE, "ar"),
    Cell("Llama", "PicoSpec"),
)


def tables() -> tuple[PaperTable, ...]:
    return (
        PaperTable(
            key="picospec-processes",
            paper="PicoSpec",
            place="Tables 1 to 3, cells by processes",
            title="Verifier, drafter and aggregator as processes, with the pairs' step times",
            labels=("pair", "method"),
            figures=FIGURES,
            rows=tuple(PaperRow((cell.pair, cell.method), none_of(FIGURES)) for cell in CELLS),
            basis=Basis.PROCESSES,
            declared="The demo pair's own acceptance. Real gRPC between processes over a TCP link "
            f"emulator with the pair's round trip and {MBPS:g} Mbit/s; steps of the demo pair are "
            f"paced to its times, γ = {DRAFT_LENGTH}; {ANSWERS} answers of {TOKENS} tokens, each "
            "by every method in turn. Distributions have the demo pair's 4,096 entries, in virtual "
            "time too, which answers the same questions.",
            compute=_measured,
        ),
    )


def _measured(testbed: Testbed, labels: Labels) -> Figures:
    cell = next(one for one in CELLS if (one.pair, one.method) == labels)
    cells = [one for one in CELLS if one.pair == cell.pair]
    results = testbed.once(("processes", cell.pair), lambda: _results(testbed, cells))
    alone = next(one for one in cells if one.method == ALONE)
    result = results[cell.run]
    return (
        *result.over(results[alone.run]),
        1 / result.tpot_s,
        1 / result.virtual_s,
        *columns_of(result),
    )


def _results(testbed: Testbed, cells: Sequence[Cell]) -> dict[ProcessRun, RunResult]:
    """Return the results of all cells of one pair."""
    times = PAIRS[cells[0].pair].times
    sampling = SamplingParams()
    count, tokens = (QUICK_ANSWERS, QUICK_TOKENS) if testbed.quick else (ANSWERS, TOKENS)
    return run_processes(
        testbed.models,
        shared_distributions(testbed, testbed.models, sampling),
        Pacing(times.draft_s, times.verify_first_s, times.verify_further_s),
        [cell.run for cell in cells],
        Questions(tuple(prompts(count)), tokens, testbed.seed, sampling),
    )
