"""DRAGON's Figure 6 by real processes with SmolLM2 at both sides."""

from __future__ import annotations

from collections.abc import Sequence
from math import sqrt
from statistics import fmean, stdev

from lab.bench.harness.models import Models
from lab.bench.harness.texts import PEPS
from lab.bench.harness.workload import measured_tpot_s
from lab.bench.papers.paper_table import Basis, Figures, Labels, PaperRow, PaperTable
from lab.bench.papers.process_columns import none_of
from lab.bench.papers.real_pairs import SMOLLM2
from lab.bench.papers.testbed import Testbed
from lab.bench.two_sided.dragon_latency import (
    BASE_RTT_S,
    Times,
    answer,
    answer_tpot_s,
    ask_questions,
)
from lab.bench.two_sided.dragon_real import PRESETS, QUESTIONS, acceptance_of, answers_of_sides
from tandem.generation.client import Generated
from tandem.two_sided.protocol.mixture import Side
from tandem.two_sided.protocol.presets import AGGREGATION_PRESETS

STEP_S = 0.150
"""What SmolLM2 on one core of a build machine keeps to with two documents' sequences."""
ADDED_S = 0.3
TOKENS = 24
QUICK_TOKENS = 8
SYNCHRONOUS = "drdg-tw"
FIGURES = (
    *("saved over drdg-tw, %", "standard error", "saved, virtual time, %"),
    *("ms a token", "virtual time, ms"),
    *("accepted of the device's, %", "accepted of the cloud's, %"),
)
PRINTED_SAVED = 42.4


def tables() -> tuple[PaperTable, ...]:
    return (
        PaperTable(
            key="dragon-figure-6-smollm2",
            paper="DRAGON",
            place="Figure 6, section 7.3, by processes with SmolLM2",
            title="Latency a token by processes on two sides of an emulated link, 300 ms added",
            labels=("method",),
            figures=FIGURES,
            rows=tuple(
                PaperRow(
                    (name,),
                    (PRINTED_SAVED if name == "dragon" else None, *none_of(FIGURES[1:])),
                )
                for name in PRESETS
            ),
            basis=Basis.PROCESSES,
            declared="Retriever, decoder and aggregator of each side as processes, a core a side, "
            "over a TCP link emulator; SmolLM2-135M-Instruct at both sides, as the paper has one "
            f"model at both, paced to {STEP_S * 1e3:g} ms a step; the demo's documents, "
            f"{len(QUESTIONS)} questions, {TOKENS} tokens, no jitter, each question by every "
            "method in turn. Virtual time has the same model and steps, but excerpts of PEPs as "
            "documents and questions.",
            printed="The paper's 42.4 % is over its own testbed's steps at 300 ms.",
            compute=_latency,
            downloads=True,
        ),
    )


def _latency(testbed: Testbed, labels: Labels) -> Figures:
    if not SMOLLM2.is_dir():
        return none_of(FIGURES)
    models = Models(str(SMOLLM2), str(SMOLLM2))
    tokens = QUICK_TOKENS if testbed.quick else TOKENS
    done = testbed.once(
        "dragon processes",
        lambda: answers_of_sides(models, BASE_RTT_S + ADDED_S, tokens, testbed.seed, STEP_S),
    )
    virtual_s = testbed.once("dragon virtual", lambda: _virtual_s(testbed, models, tokens))
    name = str(labels[0])
    accepted = (acceptance_of(done[name], side) for side in (Side.DEVICE, Side.CLOUD))
    return (
        *saved(done[name], done[SYNCHRONOUS]),
        100 * (1 - virtual_s[name] / virtual_s[SYNCHRONOUS]),
        1e3 * measured_tpot_s(done[name]),
        1e3 * virtual_s[name],
        *(None if rate is None else 100 * rate for rate in accepted),
    )


def saved(done: Sequence[Generated], others: Sequence[Generated]) -> tuple[float, float]:
    """Return the percent of time a token saved over the others, and the standard error by pairs of
    answers to one question."""

    def share(some: Sequence[Generated], same: Sequence[Generated]) -> float:
        return 100 * (1 - measured_tpot_s(some) / measured_tpot_s(same))

    shares = [share([one], [other]) for one, other in zip(done, others, strict=True)]
    error = stdev(shares) / sqrt(len(shares)) if len(shares) > 1 else 0.0
    return share(done, others), error


def _virtual_s(testbed: Testbed, models: Models, tokens: int) -> dict[str, float]:
    """Return the seconds a token after the first in virtual time by preset, without jitter."""
    questions = ask_questions(models, PEPS, testbed.seed, len(QUESTIONS))
    times = Times(STEP_S, STEP_S, BASE_RTT_S + ADDED_S)
    return {
        name: fmean(
            answer_tpot_s(
                answer(
                    AGGREGATION_PRESETS[name], one, times, 0.0, testbed.seed + number, tokens=tokens
                )
            )
            for number, one in enumerate(questions)
        )
        for name in PRESETS
    }
