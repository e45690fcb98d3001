"""DSSD's Tables 2 and 3 by real processes, with its prompts of 128 tokens and top-k sampling."""

from __future__ import annotations

from functools import partial

from lab.bench.harness.models import Pacing
from lab.bench.papers.dssd_tables import (
    PAIRS,
    TARGET_WORDS,
    TOP_K,
    printed_speedups,
)
from lab.bench.papers.paper_table import Basis, Figures, Labels, PaperRow, PaperTable
from lab.bench.papers.process_columns import COLUMNS, columns_of, none_of
from lab.bench.papers.process_runs import (
    ProcessRun,
    Questions,
    RunResult,
    long_prompts,
    run_processes,
)
from lab.bench.papers.real_pairs import real_pair, shared_distributions
from lab.bench.papers.testbed import Testbed
from tandem.backends.model_description import load_tokenizer
from tandem.core.probs import SamplingParams

PROMPT_TOKENS = 128
ANSWERS = 4
QUICK_ANSWERS = 2
TOKENS = 24
QUICK_TOKENS = 8
CELLS = {("2", 0.0, 100.0, 8.0), ("2", 50.0, 10.0, 8.0), ("3", 20.0, 100.0, 4.0)}
"""Of the printed ones: the best link and the worst, and the shortest drafts."""
SAMPLING = SamplingParams(top_k=TOP_K)
SPEEDUP = "speedup"
VIRTUAL_SPEEDUP = "speedup, virtual time"
FIGURES = (SPEEDUP, "standard error", VIRTUAL_SPEEDUP, *COLUMNS)


def tables() -> tuple[PaperTable, ...]:
    return (
        PaperTable(
            key="dssd-processes",
            paper="DSSD",
            place="Tables 2 and 3, cells by processes",
            title="Speedup over the target alone, by processes over an emulated link",
            labels=("table", "NTT, ms", "Mbit/s", "γ", "method"),
            figures=FIGURES,
            rows=_rows(),
            basis=Basis.PROCESSES,
            declared="SmolLM2-135M-Instruct and its draft model (int8) by verifier, drafter and "
            "aggregator as processes, one core a side, over a TCP link emulator with the same "
            "bandwidth both ways. "
            f"Steps are paced to the paper's pair: a target pass of {TARGET_WORDS}, drafts in c "
            f"times that. {ANSWERS} prompts of {PROMPT_TOKENS} tokens, {TOKENS} tokens an answer, "
            f"temperature 1, top-k {TOP_K}, the target alone before the others at each prompt; the "
            "pair's own acceptance, not the paper's. `dssd` sends what is left of a distribution "
            "after top-k. Virtual time answers the same questions with the same models.",
            printed="The paper's models accept 0.61 (6.7B) and 0.53 (13B) of their drafts.",
            compute=_measured,
            downloads=True,
        ),
    )


def _rows() -> tuple[PaperRow, ...]:
    return tuple(
        PaperRow(labels, (figure, None, None, *none_of(COLUMNS)))
        for labels, figure in printed_speedups().items()
        if labels[:-1] in CELLS
    )


def _measured(testbed: Testbed, labels: Labels) -> Figures:
    method = str(labels[-1])
    size = method.split()[1]
    results = testbed.once(("dssd processes", size), partial(_results, testbed, size))
    if results is None:
        return none_of(FIGURES)
    result = results[run_of(method, labels)]
    alone = results[_alone()]
    return *result.over(alone), alone.virtual_s / result.virtual_s, *columns_of(result)


def run_of(method: str, labels: Labels) -> ProcessRun:
    """Return the run of a row. DSD's distributions are in half precision, as in the paper."""
    ntt_ms, mbps, length = (float(one) for one in labels[1:4])
    kind = method.split()[0].lower()
    return ProcessRun(kind, ntt_ms / 1e3, mbps, int(length))


def _alone() -> ProcessRun:
    return ProcessRun("ar", 0.0, None)


def _results(testbed: Testbed, size: str) -> dict[ProcessRun, RunResult] | None:
    """Return the results of all runs with one target's times; None where the real pair is not
    there. The target alone has no link to wait for."""
    models = real_pair()
    if models is None:
        return None
    times = PAIRS[size].times
    pacing = Pacing(times.draft_s, times.verify_first_s, times.verify_further_s)
    count, tokens = (QUICK_ANSWERS, QUICK_TOKENS) if testbed.quick else (ANSWERS, TOKENS)
    texts = long_prompts(load_tokenizer(models.target), count, PROMPT_TOKENS)
    wanted = [row.labels for row in _rows() if str(row.labels[-1]).endswith(size)]
    runs = dict.fromkeys([_alone(), *(run_of(str(one[-1]), one) for one in wanted)])
    return run_processes(
        models,
        shared_distributions(testbed, models, SAMPLING),
        pacing,
        list(runs),
        Questions(texts, tokens, testbed.seed, SAMPLING),
    )
