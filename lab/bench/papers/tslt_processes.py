"""TSLT's Figures 5 and 6 with measured computation: as fast as the models compute here."""

from __future__ import annotations

from functools import partial

from lab.bench.harness.texts import prompts
from lab.bench.papers.paper_table import Basis, Figures, Labels, PaperRow, PaperTable
from lab.bench.papers.process_columns import none_of
from lab.bench.papers.process_runs import (
    ProcessRun,
    Questions,
    RunResult,
    real_pair,
    run_processes,
    shared_distributions,
)
from lab.bench.papers.testbed import Testbed
from lab.bench.papers.tslt_figures import KEPT, LAYERS, RATES_MBPS, VOCABULARY
from tandem.core.probs import SamplingParams

ANSWERS = 2
QUICK_ANSWERS = 1
TOKENS = 32
QUICK_TOKENS = 12
CHAIN = "tslt"
TREE = "mc-dsd"
SC = "SC, chain of 3"
MC = "MC ⟨2,2,2⟩"
RATIO = "MC ÷ SC"
OF_CHAIN = f"{SC}, ÷ virtual time"
OF_TREE = f"{MC}, ÷ virtual time"
CHAIN_REST = "SC, gRPC and the rest, ms"
TREE_REST = "MC, gRPC and the rest, ms"
FIGURES = (
    *(SC, MC, RATIO, "SC, virtual time", "MC, virtual time", OF_CHAIN, OF_TREE),
    *(CHAIN_REST, TREE_REST, "draft step, ms", "pass of a chain, ms", "pass of a tree, ms"),
)


def tables() -> tuple[PaperTable, ...]:
    return (
        PaperTable(
            key="tslt-processes",
            paper="TSLT",
            place="Figures 5 and 6, by processes",
            title="Speedup over the target alone by uplink rate and K, computation measured",
            labels=("K of 32,000", "uplink, Mbit/s"),
            figures=FIGURES,
            rows=tuple(
                PaperRow((float(kept), rate), none_of(FIGURES))
                for kept in KEPT
                for rate in RATES_MBPS
            ),
            basis=Basis.PROCESSES,
            declared="SmolLM2-135M-Instruct and its draft model (int8) by verifier, drafter and "
            "aggregator as processes, one core a side, with nothing paced; a TCP link emulator "
            "with the uplink's rate both ways and no delay. K is the same number of tokens, of "
            f"49,152; K = {VOCABULARY:,} stands for all. SC is `tslt` (for all, `dsd`), MC "
            f"`mc-dsd`; {ANSWERS} answers of {TOKENS} tokens at temperature 1. Virtual time has "
            "the mean draft step and pass that the services measured in the same run.",
            printed="The paper says: “MC-DSD consistently outperforms SC-DSD” (section 5.3).",
            compute=_measured,
        ),
    )


def _measured(testbed: Testbed, labels: Labels) -> Figures:
    kept = int(float(labels[0]))
    results = testbed.once(("tslt processes", kept), partial(_results, testbed, kept))
    if results is None:
        return none_of(FIGURES)
    alone = results[alone_run()]
    chain, tree = (results[run] for run in runs_of(kept, float(labels[1])))
    faster = [alone.tpot_s / one.tpot_s for one in (chain, tree)]
    virtual = [alone.virtual_s / one.virtual_s for one in (chain, tree)]
    return (
        *faster,
        faster[1] / faster[0],
        *virtual,
        chain.tpot_s / chain.virtual_s,
        tree.tpot_s / tree.virtual_s,
        1e3 * chain.rest_s,
        1e3 * tree.rest_s,
        1e3 * (chain.draft_step_s or 0.0),
        1e3 * chain.pass_s,
        1e3 * tree.pass_s,
    )


def alone_run() -> ProcessRun:
    return ProcessRun("ar", 0.0, None)


def runs_of(kept: int, mbps: float) -> tuple[ProcessRun, ProcessRun]:
    """Return the runs of a chain and of a tree; with whole distributions where all of the
    vocabulary is kept."""
    if kept == VOCABULARY:
        whole = ("uplink=full_distributions", "truncation.top_k=0")
        return (
            ProcessRun("dsd", 0.0, mbps, LAYERS),
            ProcessRun(TREE, 0.0, mbps, overrides=whole),
        )
    cut = (f"truncation.top_k={kept}",)
    return (
        ProcessRun(CHAIN, 0.0, mbps, LAYERS, cut),
        ProcessRun(TREE, 0.0, mbps, overrides=cut),
    )


def _results(testbed: Testbed, kept: int) -> dict[ProcessRun, RunResult] | None:
    models = real_pair()
    if models is None:
        return None
    count, tokens = (QUICK_ANSWERS, QUICK_TOKENS) if testbed.quick else (ANSWERS, TOKENS)
    runs = [alone_run(), *(run for rate in RATES_MBPS for run in runs_of(kept, rate))]
    return run_processes(
        models,
        shared_distributions(testbed, models, SamplingParams()),
        None,
        runs,
        Questions(tuple(prompts(count)), tokens, testbed.seed),
    )
