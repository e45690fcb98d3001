"""What estimating relevances anew costs: DRAGON's documents weigh by the text so far."""

from __future__ import annotations

from dataclasses import replace
from statistics import fmean

from lab.bench.harness.texts import PEPS
from lab.bench.papers.paper_table import Basis, Figures, Labels, PaperRow, PaperTable, Plot
from lab.bench.papers.testbed import Testbed
from lab.bench.two_sided.dragon_latency import (
    BASE_RTT_S,
    PACINGS,
    QUICK_QUESTIONS,
    TOKENS,
    answer,
    ask_questions,
)
from lab.bench.two_sided.dragon_prediction import Times
from tandem.two_sided.protocol.presets import AGGREGATION_PRESETS

NEVER = float(TOKENS)
"""As long as the answer."""
EVERY = (4.0, 8.0, 16.0, NEVER)
ADDED_S = (0.0, 0.1, 0.3)
PACING = PACINGS[1]


def tables() -> tuple[PaperTable, ...]:
    return (
        PaperTable(
            key="dragon-reweigh",
            paper="DRAGON",
            place="Section 3, relevances along the answer",
            title="Cost of estimating the documents' relevances anew",
            labels=("every, tokens", "added, s"),
            figures=("s a token", "more a stretch, ms", "way between the sides, ms"),
            rows=tuple(
                PaperRow(
                    (every, added_s), (None,) * 3, "never" if every == NEVER else "not printed"
                )
                for every in EVERY
                for added_s in ADDED_S
            ),
            basis=Basis.VIRTUAL_TIME,
            declared=f"`dragon-coupled`, {TOKENS} tokens, two documents a side, steps of "
            f"{1e3 * PACING.device_s:g} ms at both, round trip {1e3 * BASE_RTT_S:g} ms and what is "
            "added. The re-ranker's own time is not counted, as it runs beside decoding.",
            compute=_cost,
            printed=f"{NEVER:g} tokens are the answer: never. At the beginning of a stretch both "
            "sides' drafts are sent and waited for, with their new h.",
            plots=(Plot("every, tokens", "s a token"),),
        ),
    )


def _cost(testbed: Testbed, labels: Labels) -> Figures:
    every, added_s = (float(one) for one in labels)
    token_s = _token_s(testbed, int(every), added_s)
    way_ms = 1e3 * (BASE_RTT_S + added_s) / 2
    if every == NEVER:
        return token_s, None, way_ms
    return token_s, 1e3 * every * (token_s - _token_s(testbed, int(NEVER), added_s)), way_ms


def _token_s(testbed: Testbed, every: int, added_s: float) -> float:
    def measured() -> float:
        questions = testbed.once(
            "reweigh questions",
            lambda: ask_questions(testbed.models, PEPS, testbed.seed, QUICK_QUESTIONS),
        )
        preset = replace(
            AGGREGATION_PRESETS["dragon-coupled"], reweigh_every=0 if every == NEVER else every
        )
        times = Times(PACING.device_s, PACING.cloud_s, BASE_RTT_S + added_s)
        return fmean(
            answered.duration_s / len(answered.token_ids)
            for number, one in enumerate(questions)
            for answered in [answer(preset, one, times, added_s, testbed.seed + number)]
        )

    return testbed.once(("reweigh", every, added_s), measured)
