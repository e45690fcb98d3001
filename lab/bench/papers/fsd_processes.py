"""FSD's averages of Table 6 by real processes, with exits that were trained."""

from __future__ import annotations

from functools import partial

from lab.bench.harness.models import Pacing
from lab.bench.harness.texts import prompts
from lab.bench.papers.fsd_printed import TABLE_5, TABLE_6_AVERAGES, HardwareTimes
from lab.bench.papers.paper_table import Basis, Figures, Labels, PaperRow, PaperTable
from lab.bench.papers.process_columns import COLUMNS, columns_of, none_of
from lab.bench.papers.process_runs import (
    ProcessRun,
    Questions,
    RunResult,
    run_processes,
)
from lab.bench.papers.real_pairs import exits_pair, shared_distributions
from lab.bench.papers.testbed import Testbed
from tandem.core.probs import SamplingParams

DRAFT_LENGTH = 4
MBPS = 100.0
ANSWERS = 3
QUICK_ANSWERS = 2
TOKENS = 20
QUICK_TOKENS = 8
CLIENTS = (("Vicuna-68m/Vicuna-7B", "RTX"), ("Vicuna-68m/Llama2-7B", "Jetson"))
"""Of the printed ones: a fast client, and the one of the paper's headline."""
SD = "AR → SD"
FSD = "SD → FSD"
FIGURES = (
    *(SD, "standard error of it", f"{SD}, virtual time"),
    *(FSD, "standard error of that", f"{FSD}, virtual time", "r, %", "r, virtual time, %"),
)


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
                PaperRow(where, (*_printed(TABLE_6_AVERAGES[where]), *none_of(COLUMNS)))
                for where in CLIENTS
            ),
            basis=Basis.PROCESSES,
            declared="Verifier, drafter and aggregator as processes, one core a side, over a TCP "
            f"link emulator with Table 5's round trip and {MBPS:g} Mbit/s; steps are paced to "
            "Table 5's times, and an exit's token comes at its depth of the pass. SmolLM2 with its "
            "draft model and ten exits, in float32: in int8 a pass over several branches rounds "
            "otherwise than one over one, so that drafts made ahead are others. SD is `dssd`, FSD "
            f"`fsd` with all exits, both with γ = {DRAFT_LENGTH}; {ANSWERS} answers of {TOKENS} "
            "tokens at temperature 1, each first by the target alone, then by SD and FSD. The "
            "last columns are FSD's.",
            printed="The paper's exits are 31 to 39; its clients follow 7 to 30 of them.",
            compute=_measured,
            downloads=True,
        ),
    )


def _printed(line: tuple[float, ...]) -> Figures:
    """Return the printed averages of a client, with None for what ours alone have."""
    faster, gain, _, missed = line
    return faster, None, None, gain, None, None, missed, None


def _measured(testbed: Testbed, labels: Labels) -> Figures:
    client = TABLE_5[str(labels[0]), str(labels[1])]
    results = testbed.once(("fsd processes", client), partial(_results, testbed, client))
    if results is None:
        return (*none_of(FIGURES), *none_of(COLUMNS))
    alone, plain, fast = results
    return (
        *plain.over(alone),
        alone.virtual_s / plain.virtual_s,
        *fast.over(plain),
        plain.virtual_s / fast.virtual_s,
        _percent(fast.miss_rate),
        _percent(fast.virtual_miss_rate),
        *columns_of(fast),
    )


def _percent(rate: float | None) -> float | None:
    return None if rate is None else 100 * rate


def _results(testbed: Testbed, client: HardwareTimes) -> tuple[RunResult, ...] | None:
    """Return the results of the target alone, SD and FSD; None without a pair with exits."""
    models = exits_pair()
    if models is None:
        return None
    pair = shared_distributions(testbed, models, SamplingParams())
    runs = runs_of(client, len(pair.exit_distributions))
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
