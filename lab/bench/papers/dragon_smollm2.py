"""DRAGON's Figures 6 and 7 by real processes with SmolLM2 at both sides."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import fmean

from lab.bench.harness.models import Models
from lab.bench.harness.report import Row
from lab.bench.harness.texts import PEPS
from lab.bench.papers.paper_table import Basis, Figures, Labels, PaperRow, PaperTable
from lab.bench.papers.process_columns import none_of
from lab.bench.papers.process_runs import SMOLLM2
from lab.bench.papers.testbed import Testbed
from lab.bench.two_sided import dragon_latency, dragon_real
from lab.bench.two_sided.dragon_latency import BASE_RTT_S, Times, answer, ask_questions
from tandem.two_sided.protocol.presets import AGGREGATION_PRESETS

STEP_S = 0.150
"""What SmolLM2 on one core of a build machine keeps to with two documents' sequences."""
ADDED_S = (0.0, 0.3)
TOKENS = 24
QUICK_TOKENS = 8
QUESTIONS = 6
QUICK_QUESTIONS = 2
SYNCHRONOUS = "drdg-tw"
LATENCY = ("ms a token", "virtual time, ms")
SAVED = ("saved over drdg-tw, %", "saved, virtual time, %")
ACCEPTED = ("accepted of the device's, %", "accepted of the cloud's, %")
FIGURES = (*SAVED, *LATENCY, *ACCEPTED)
PRINTED_SAVED = 42.4


def tables() -> tuple[PaperTable, ...]:
    return (_latency_table(),)


def _latency_table() -> PaperTable:
    return PaperTable(
        key="dragon-figure-6-smollm2",
        paper="DRAGON",
        place="Figure 6, section 7.3, by processes with SmolLM2",
        title="Latency a token by processes on two sides of an emulated link",
        labels=("method", "added, s"),
        figures=FIGURES,
        rows=tuple(
            PaperRow(
                (name, added_s),
                (
                    PRINTED_SAVED if (name, added_s) == ("dragon", ADDED_S[-1]) else None,
                    *none_of(FIGURES[1:]),
                ),
            )
            for added_s in ADDED_S
            for name in dragon_real.PRESETS
        ),
        basis=Basis.PROCESSES,
        declared="Retriever, decoder and aggregator of each side as processes, a core a side, over "
        "a TCP link emulator; SmolLM2-135M-Instruct at both sides, as the paper has one model at "
        f"both, paced to {STEP_S * 1e3:g} ms a step; the demo's documents and questions, {TOKENS} "
        "tokens, no jitter. Virtual time has the same model and steps, but excerpts of "
        "PEPs as documents and questions.",
        printed="The paper's 42.4 % is over its own testbed's steps at 300 ms.",
        compute=_latency,
    )


def _models() -> Models | None:
    return Models(str(SMOLLM2), str(SMOLLM2)) if SMOLLM2.is_dir() else None


def _latency(testbed: Testbed, labels: Labels) -> Figures:
    models = _models()
    if models is None:
        return none_of(FIGURES)
    rows = testbed.once("dragon processes", lambda: _latency_rows(testbed, models))
    virtual_s = testbed.once("dragon processes, virtual", lambda: _virtual_s(testbed, models))
    added_s = float(labels[1])
    at: Mapping[str, Row] = {row["preset"]: row for row in rows if row["added_s"] == added_s}
    name = str(labels[0])
    row = at[name]
    synchronous = at[SYNCHRONOUS]
    return (
        100 * (1 - row["tpot_s"] / synchronous["tpot_s"]),
        100 * (1 - virtual_s[name, added_s] / virtual_s[SYNCHRONOUS, added_s]),
        1e3 * row["tpot_s"],
        1e3 * virtual_s[name, added_s],
        _percent(row["device_acceptance"]),
        _percent(row["cloud_acceptance"]),
    )


def _percent(rate: float | None) -> float | None:
    return None if rate is None else 100 * rate


def _latency_rows(testbed: Testbed, models: Models) -> list[Row]:
    tokens = QUICK_TOKENS if testbed.quick else TOKENS
    return dragon_real.measure_real(
        models, ADDED_S, BASE_RTT_S, tokens, testbed.seed, step_s=STEP_S
    )


def _virtual_s(testbed: Testbed, models: Models) -> dict[tuple[str, float], float]:
    """Return the seconds a token after the first in virtual time, by preset and added latency,
    without jitter."""
    count = QUICK_QUESTIONS if testbed.quick else QUESTIONS
    questions = ask_questions(models, PEPS, testbed.seed, count)
    tokens = QUICK_TOKENS if testbed.quick else TOKENS
    found = {}
    for added_s in ADDED_S:
        times = Times(STEP_S, STEP_S, BASE_RTT_S + added_s)
        for name in dragon_real.PRESETS:
            preset = AGGREGATION_PRESETS[name]
            answers = [
                answer(preset, one, times, 0.0, testbed.seed + number, tokens=tokens)
                for number, one in enumerate(questions)
            ]
            found[name, added_s] = fmean(dragon_latency.answer_tpot_s(one) for one in answers)
    for question in questions:
        question.close()
    return found
