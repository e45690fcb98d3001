"""FSD's averages of Table 6 by real processes, with exits that were trained."""

from __future__ import annotations

from functools import partial

from lab.bench.harness.models import Models, Pacing
from lab.bench.harness.texts import prompts
from lab.bench.papers.fsd_printed import TABLE_5, TABLE_6_AVERAGES, HardwareTimes
from lab.bench.papers.paper_table import Basis, Figures, Labels, PaperRow, PaperTable
from lab.bench.papers.process_columns import COLUMNS, columns_of, none_of
from lab.bench.papers.process_runs import (
    ProcessRun,
    Questions,
    RunResult,
    real_pair,
    run_processes,
    shared_distributions,
)
from lab.bench.papers.testbed import Testbed
from tandem.backends.torch.loading import find_exits
from tandem.core.probs import SamplingParams

DRAFT_LENGTH = 4
MBPS = 100.0
ANSWERS = 3
QUICK_ANSWERS = 1
TOKENS = 32
QUICK_TOKENS = 12
SD = "AR → SD"
FSD = "SD → FSD"
FIGURES = (SD, f"{SD}, virtual time", FSD, f"{FSD}, virtual time", "r, %", "r, virtual time, %")


def tables() -> tuple[PaperTable, ...]:
    return (
        PaperTable(
            key="fsd-processes",
            paper="FSD",
            place="Table 6, averages by processes",
            title="The papers' clients by processes, with trained exits",
            labels=("pair", "client"),
            figures=(*FIGURES, *COLUMNS),
            rows=tuple(
                PaperRow(where, (*_printed(line), *none_of(COLUMNS)))
                for where, line in TABLE_6_AVERAGES.items()
            ),
            basis=Basis.PROCESSES,
            declared="Verifier, drafter and aggregator as processes, one core a side, over a TCP "
            f"link emulator with Table 5's round trip and {MBPS:g} Mbit/s; steps are paced to "
            "Table 5's times, and an exit's token comes at its depth of the pass. The pair is "
            "SmolLM2 with its draft model (int8) where exits for SmolLM2 are there, else the "
            "pair that the report is made with. SD is `dssd`, FSD `fsd` with all exits, both with "
            f"γ = {DRAFT_LENGTH}; {ANSWERS} answers of {TOKENS} tokens at temperature 1. The last "
            "columns are FSD's.",
            printed="The paper's exits are 31 to 39; its clients follow 7 to 30 of them.",
            compute=_measured,
        ),
    )


def _printed(line: tuple[float, ...]) -> Figures:
    """Return the printed averages of a client, with a None after each for our figure in virtual
    time."""
    faster, gain, _, missed = line
    return faster, None, gain, None, missed, None


def exits_pair(testbed: Testbed) -> Models:
    """Return SmolLM2 where it has exits, else the report's pair."""
    real = real_pair()
    if real is not None and find_exits(real.target, "auto") is not None:
        return real
    return testbed.models


def _measured(testbed: Testbed, labels: Labels) -> Figures:
    client = TABLE_5[str(labels[0]), str(labels[1])]
    results = testbed.once(("fsd processes", client), partial(_results, testbed, client))
    if results is None:
        return (*none_of(FIGURES), *none_of(COLUMNS))
    alone, plain, fast = results
    return (
        alone.tpot_s / plain.tpot_s,
        alone.virtual_s / plain.virtual_s,
        plain.tpot_s / fast.tpot_s,
        plain.virtual_s / fast.virtual_s,
        _percent(fast.miss_rate),
        _percent(fast.virtual_miss_rate),
        *columns_of(fast),
    )


def _percent(rate: float | None) -> float | None:
    return None if rate is None else 100 * rate


def _results(testbed: Testbed, client: HardwareTimes) -> tuple[RunResult, ...] | None:
    """Return the results of the target alone, SD and FSD; None where no target has exits."""
    models = exits_pair(testbed)
    pair = shared_distributions(testbed, models, SamplingParams())
    if not (exits := len(pair.exit_distributions)):
        return None
    runs = runs_of(client, exits)
    count, tokens = (QUICK_ANSWERS, QUICK_TOKENS) if testbed.quick else (ANSWERS, TOKENS)
    results = run_processes(
        models,
        pair,
        Pacing(client.drafting_ms / DRAFT_LENGTH / 1e3, client.verify_ms / 1e3, 0.0),
        runs,
        Questions(tuple(prompts(count)), tokens, testbed.seed),
    )
    return tuple(results[run] for run in runs)


def runs_of(client: HardwareTimes, exits: int) -> tuple[ProcessRun, ProcessRun, ProcessRun]:
    """Return the runs of the target alone, of SD, and of FSD with all exits, over the client's
    link."""
    rtt_s = 2 * client.link_ms / 1e3
    return (
        ProcessRun("ar", rtt_s, MBPS),
        ProcessRun("dssd", rtt_s, MBPS, DRAFT_LENGTH),
        ProcessRun("fsd", rtt_s, MBPS, DRAFT_LENGTH, (f"exits={exits}",)),
    )
