"""Cells of PicoSpec's four tables by real processes over an emulated link, beside virtual time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

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
    shared_distributions,
)
from lab.bench.papers.testbed import Testbed
from tandem.core.probs import SamplingParams
from tandem.specdec.presets import PRESETS, Preset
from tandem.testing.simulation.model_times import ModelTimes

FIGURES = ("speedup over AR", "tokens/s", "tokens/s, virtual time", *COLUMNS)
ANSWERS = 6
QUICK_ANSWERS = 2
TOKENS = 64
QUICK_TOKENS = 24
DEMO_HIDDEN_SIZE = 320
"""Of the demo target."""
LEFT_OUT = {
    "w/o Para-draft": ("schedule.window=4",),
    "w/o Fast-verify": ("schedule.verify_on_arrival=false", "schedule.token_by_token=false"),
    "w/o Split-rej": ("uplink=full_distributions", "rejection_payload=token"),
}
"""What `picospec_variants` changes, as a request says it."""


@dataclass(frozen=True, slots=True)
class Cell:
    """A method with a pair's times. `tables`: those that it stands for."""

    tables: str
    method: str
    pair: str
    preset: str = "picospec"
    draft_length: int = DRAFT_LENGTH
    overrides: tuple[str, ...] = ()

    @property
    def run(self) -> ProcessRun:
        length = self.draft_length if PRESETS[self.preset].drafts else None
        return ProcessRun(self.preset, PAIRS[self.pair].rtt_s, MBPS, length, self.overrides)

    @property
    def composed(self) -> Preset:
        return self.run.composed


ALONE = "Autoregressive"
SPLIT = "Split Inf."
HALF = ("uplink_precision=float16",)
"""States of two bytes a number, as the paper's models have."""
_QWEN = "1 and 2, Qwen"
_LLAMA = "1 and 3, Llama"
CELLS = (
    Cell(_QWEN, ALONE, "Qwen", "ar"),
    Cell(_QWEN, "Vanilla Spec.", "Qwen", "dsd"),
    *(Cell(_QWEN, name, "Qwen", overrides=overrides) for name, overrides in LEFT_OUT.items()),
    Cell(_QWEN, "PicoSpec", "Qwen"),
    Cell(_QWEN, SPLIT, "Qwen", "split", overrides=HALF),
    Cell(_LLAMA, ALONE, "Llama", "ar"),
    *(Cell(_LLAMA, name, "Llama", overrides=overrides) for name, overrides in LEFT_OUT.items()),
    Cell(_LLAMA, "PicoSpec", "Llama"),
    Cell(_LLAMA, SPLIT, "Llama", "split", overrides=HALF),
    *(Cell("4, Qwen", f"γ = {n}", "Qwen", draft_length=n) for n in (3, 5, 6)),
)


def tables() -> tuple[PaperTable, ...]:
    return (
        PaperTable(
            key="picospec-processes",
            paper="PicoSpec",
            place="Tables 1 to 4, cells by processes",
            title="Verifier, drafter and aggregator as processes, with the pairs' step times",
            labels=("tables", "method"),
            figures=FIGURES,
            rows=tuple(PaperRow((cell.tables, cell.method), none_of(FIGURES)) for cell in CELLS),
            basis=Basis.PROCESSES,
            declared="The demo pair's own acceptance. Real gRPC between processes over a TCP link "
            "emulator with the pair's round "
            f"trip and {MBPS:g} Mbit/s; steps of the demo pair are paced to its times. γ = "
            f"{DRAFT_LENGTH} but in Table 4. Distributions have the demo pair's 4,096 entries, in "
            "virtual time too, which answers the same questions. Split inference runs the demo "
            "target's first three layers at the edge, paced as the paper's, and sends states of "
            f"{DEMO_HIDDEN_SIZE} numbers in float16.",
            compute=_measured,
        ),
    )


def _measured(testbed: Testbed, labels: Labels) -> Figures:
    cell = next(one for one in CELLS if (one.tables, one.method) == labels)
    cells = [one for one in CELLS if one.pair == cell.pair]
    results = testbed.once(("processes", cell.pair), lambda: _results(testbed, cells))
    alone = next(one for one in cells if one.method == ALONE)
    result = results[cell.run]
    speedup = results[alone.run].tpot_s / result.tpot_s
    return speedup, 1 / result.tpot_s, 1 / result.virtual_s, *columns_of(result)


def _results(testbed: Testbed, cells: Sequence[Cell]) -> dict[ProcessRun, RunResult]:
    """Return the results of all cells of one pair, which are asked for one after another; those of
    split inference come from another suite."""
    pair = PAIRS[cells[0].pair]
    whole = [cell for cell in cells if cell.method != SPLIT]
    split = [cell for cell in cells if cell.method == SPLIT]
    cut = pair.split_times
    layers = Pacing(cut.layers_s, cut.verify_first_s, cut.verify_further_s)
    times = pair.times
    pacing = Pacing(times.draft_s, times.verify_first_s, times.verify_further_s)
    return _run(testbed, whole, pacing) | _run(
        testbed,
        split,
        layers,
        times=replace(cut, hidden_size=DEMO_HIDDEN_SIZE),
        drafter_options=("--split-model", testbed.models.target),
    )


def _run(
    testbed: Testbed,
    cells: Sequence[Cell],
    pacing: Pacing,
    *,
    times: ModelTimes | None = None,
    drafter_options: Sequence[str] = (),
) -> dict[ProcessRun, RunResult]:
    sampling = SamplingParams()
    return run_processes(
        testbed.models,
        shared_distributions(testbed, testbed.models, sampling),
        pacing,
        list(dict.fromkeys(cell.run for cell in cells)),
        Questions(
            tuple(prompts(QUICK_ANSWERS if testbed.quick else ANSWERS)),
            QUICK_TOKENS if testbed.quick else TOKENS,
            testbed.seed,
            sampling,
        ),
        times=times,
        drafter_options=drafter_options,
    )
