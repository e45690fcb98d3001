"""DRAGON's figures of time: latency a token, time to the first token, and where is aggregated."""

from __future__ import annotations

from statistics import fmean

from lab.bench.harness.texts import PEPS
from lab.bench.papers.paper_table import Basis, Figures, Labels, PaperRow, PaperTable
from lab.bench.papers.testbed import Testbed
from lab.bench.two_sided import dragon_latency, dragon_ttft, scheduler
from lab.bench.two_sided.dragon_latency import (
    BASE_RTT_S,
    PACINGS,
    Pacing,
    Times,
    answer,
    ask_questions,
)
from lab.bench.two_sided.dragon_probs import Question
from lab.bench.two_sided.scheduler_replay import Record
from tandem.two_sided.protocol.presets import AGGREGATION_PRESETS

HARDWARE, EVEN_STEPS = (one.name for one in PACINGS)
DEVICE_ONLY = "crcg-device"
METHODS = ("dragon", "dragon-coupled", "drdg-tw", "drdg-sw")
"""Of Figure 6, but for those of one side alone."""
LONGEST_S = 0.3
QUESTIONS = 4
"""Of each seed."""
RECORDED = 1
ROTATIONS = 2
ADDED_S = (0.0, 0.2, 0.5)


def latency_table() -> PaperTable:
    return PaperTable(
        key="dragon-figure-6",
        paper="DRAGON",
        place="Figure 6, section 7.3",
        title="Latency a token saved at 300 ms, %",
        labels=("saved over", "steps"),
        figures=("dragon", "dragon-coupled"),
        rows=(
            PaperRow(("drdg-sw", HARDWARE), (49.5, None)),
            PaperRow(("drdg-tw", HARDWARE), (42.4, None)),
            PaperRow((DEVICE_ONLY, HARDWARE), (None, None)),
            *(
                PaperRow((name, EVEN_STEPS), (None, None))
                for name in ("drdg-sw", "drdg-tw", DEVICE_ONLY)
            ),
        ),
        basis=Basis.VIRTUAL_TIME,
        declared=f"{QUESTIONS} questions of each seed, 24 tokens, two documents a side, the demo "
        "pair's distributions, declared steps (those of the first rows after the paper's "
        "OPT-1.3B). `crcg-device` is the device alone, with its own documents.",
        printed="`drdg-sw` sends its tokens once at the end without distributions here; what the "
        "paper saved over it was the transfer of all its distributions.",
        compute=_saved,
    )


def _saved(testbed: Testbed, labels: Labels) -> Figures:
    other, steps = map(str, labels)
    base_s = latency_s(testbed, other, steps)
    return tuple(
        100 * (1 - latency_s(testbed, name, steps) / base_s)
        for name in ("dragon", "dragon-coupled")
    )


def overhead_table() -> PaperTable:
    """Return the table of latency over that of the device alone: means over added latencies, which
    are in the paper's text."""
    return PaperTable(
        key="dragon-figure-6-mean",
        paper="DRAGON",
        place="Figure 6, section 7.3, means",
        title="Latency a token over that of the device alone, mean over added latencies",
        labels=("method", "steps"),
        figures=("longer, %", "without any added, %", "at 300 ms, %"),
        rows=(
            PaperRow(("dragon", HARDWARE), (15.6, None, None)),
            *(
                PaperRow((name, steps), (None,) * 3)
                for steps in (HARDWARE, EVEN_STEPS)
                for name in METHODS
                if (name, steps) != ("dragon", HARDWARE)
            ),
        ),
        basis=Basis.VIRTUAL_TIME,
        declared=f"As the table before, with {len(dragon_latency.ADDED_S)} added latencies of 0 to "
        "300 ms (quick: the first and the last). Whole answers by their tokens, over the same of "
        f"`{DEVICE_ONLY}`, at each latency.",
        printed="15.6 with one of its models, 20.3 with the other; it does not say which.",
        compute=_overhead,
    )


def _overhead(testbed: Testbed, labels: Labels) -> Figures:
    method, steps = map(str, labels)
    added = dragon_latency.QUICK_ADDED_S if testbed.quick else dragon_latency.ADDED_S
    longer = []
    for added_s in added:
        alone_s = latency_s(testbed, DEVICE_ONLY, steps, added_s)
        longer.append(100 * (latency_s(testbed, method, steps, added_s) / alone_s - 1))
    return fmean(longer), longer[0], longer[-1]


def latency_s(testbed: Testbed, preset: str, steps: str, added_s: float = LONGEST_S) -> float:
    """Return seconds a token of whole answers, at the longest added latency if none is given."""

    def measured() -> float:
        pacing = pacing_of(steps)
        times = Times(pacing.device_s, pacing.cloud_s, BASE_RTT_S + added_s)
        answers = [
            answer(AGGREGATION_PRESETS[preset], one, times, added_s, testbed.seed + number)
            for number, one in enumerate(latency_questions(testbed))
        ]
        return fmean(one.commits[-1][0] / len(one.token_ids) for one in answers)

    return testbed.once(("latency", preset, steps, added_s), measured)


def latency_questions(testbed: Testbed) -> list[Question]:
    """Return the questions of Figure 6, with both sides' distributions."""

    def asked() -> list[Question]:
        return ask_questions(testbed.models, PEPS, testbed.seed, QUESTIONS)

    return testbed.once("latency questions", asked)


def pacing_of(steps: str) -> Pacing:
    return next(one for one in PACINGS if one.name == steps)


def first_token_table() -> PaperTable:
    return PaperTable(
        key="dragon-figure-7",
        paper="DRAGON",
        place="Figure 7, section 7.3",
        title="Time to the first token, times DRAGON's, mean over added latency",
        labels=("method",),
        figures=("÷ dragon", "÷ dragon-coupled"),
        rows=(
            PaperRow(("drcg-text",), (8.6, None)),
            PaperRow(("drcg-kv",), (15.3, None)),
            PaperRow((DEVICE_ONLY,), (None, None)),
            PaperRow((dragon_ttft.DEVICE_ONLY,), (None, None)),
            PaperRow(("drcg-text, separate",), (None, None)),
            PaperRow(("drcg-kv, separate",), (None, None)),
        ),
        basis=Basis.VIRTUAL_TIME,
        declared="Hardware declared after the paper's testbed, 114 "
        "MB of keys and values at 100 Mbit/s, prompts of 32 tokens. `crcg` and `drcg` join their "
        "documents in one sequence, in which only the keys and values at its beginning can be used "
        "again; all others are computed.",
        printed="The paper does not say how it uses keys and values of single documents again in "
        "one context. The ratios depend on the declared speed of the device's prefill and of the "
        "link. The paper's abstract has 8.9 times for `drcg-text`, its section 7.3 has 8.6.",
        compute=_first_tokens,
    )


def _first_tokens(testbed: Testbed, labels: Labels) -> Figures:
    at = testbed.once(
        "first tokens",
        lambda: dragon_ttft.first_tokens(testbed.models, testbed.seed, testbed.quick),
    )
    added = sorted({added_s for _, added_s in at})
    return tuple(
        fmean(at[str(labels[0]), one] / at[method, one] for one in added)
        for method in ("dragon", "dragon-coupled")
    )


def strategies_table() -> PaperTable:
    return PaperTable(
        key="dragon-figure-8",
        paper="DRAGON",
        place="Figure 8, section 7.4",
        title="Seconds for 100 tokens by where is aggregated",
        labels=("steps", "added, s"),
        figures=("dragon", "device", "cloud", "random"),
        rows=tuple(
            PaperRow((pacing, added_s), (None,) * 4)
            for pacing in (HARDWARE, EVEN_STEPS)
            for added_s in ADDED_S
        ),
        basis=Basis.VIRTUAL_TIME,
        declared="Acceptance recorded along answers of the demo pair and replayed, declared steps, "
        "added latency that varies as a sine; means over which side's documents are relevant.",
        compute=_totals,
    )


def _totals(testbed: Testbed, labels: Labels) -> Figures:
    steps = str(labels[0])
    added_s = float(labels[1])
    totals = [
        scheduler.seconds_by_strategy(
            scheduler.Cell(pacing_of(steps), relevant_side, added_s), recorded, testbed.seed
        )
        for relevant_side, recorded in scheduler_records(testbed).items()
    ]
    return tuple(fmean(one[name] for one in totals) for name in ("dragon", *scheduler.FIXED))


def scheduler_records(testbed: Testbed) -> dict[str, list[Record]]:
    """Return the recorded acceptance, by whose documents are more relevant."""
    return testbed.once("scheduler records", lambda: _records(testbed))


def _records(testbed: Testbed) -> dict[str, list[Record]]:
    return scheduler.record_all(testbed.models, PEPS, testbed.seed, RECORDED, ROTATIONS)
