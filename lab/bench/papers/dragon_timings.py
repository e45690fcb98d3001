"""DRAGON's figures of time: latency a token, time to the first token, and where is aggregated."""

from __future__ import annotations

from statistics import fmean

from lab.bench.harness.report import Row
from lab.bench.harness.texts import PEPS
from lab.bench.papers import dragon_findings
from lab.bench.papers.paper_table import Basis, Figures, Labels, PaperRow, PaperTable, Plot
from lab.bench.papers.testbed import Testbed
from lab.bench.two_sided import dragon_latency, scheduler
from lab.bench.two_sided.dragon_latency import BASE_RTT_S, PACINGS, Pacing, answer, ask_questions
from lab.bench.two_sided.dragon_prediction import Times
from lab.bench.two_sided.dragon_probs import Question
from lab.bench.two_sided.scheduler_replay import Record
from tandem.two_sided.protocol.presets import AGGREGATION_PRESETS

HARDWARE, EVEN_STEPS = (one.name for one in PACINGS)
LONGEST_S = 0.3
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
            PaperRow(
                ("crcg-device", HARDWARE),
                (None, None),
                "paper: 15.6% to 20.3% longer, mean over latencies",
            ),
            *(
                PaperRow((name, EVEN_STEPS), (None, None), "not in the paper")
                for name in ("drdg-sw", "drdg-tw", "crcg-device")
            ),
        ),
        basis=Basis.VIRTUAL_TIME,
        declared="As `tandem bench dragon-latency`: 24 tokens, two documents a side, the demo "
        "pair's distributions, declared steps (those of the first rows after the paper's "
        "OPT-1.3B). `crcg-device` is the device alone, with its own documents.",
        printed="`drdg-sw` sends its tokens once at the end without distributions here; what the "
        "paper saved over it was the transfer of all its distributions. What it tells of the "
        "device alone is a mean over added latencies; ours is at the longest.",
        finding=dragon_findings.saved,
        compute=_saved,
    )


def _saved(testbed: Testbed, labels: Labels) -> Figures:
    other, steps = map(str, labels)
    base_s = _token_s(testbed, other, steps)
    return tuple(
        100 * (1 - _token_s(testbed, name, steps) / base_s) for name in ("dragon", "dragon-coupled")
    )


def _token_s(testbed: Testbed, preset: str, steps: str) -> float:
    """Of whole answers at the longest added latency."""

    def measured() -> float:
        pacing = _pacing(steps)
        times = Times(pacing.device_s, pacing.cloud_s, BASE_RTT_S + LONGEST_S)
        questions = testbed.once("latency questions", lambda: _questions(testbed))
        answers = [
            answer(AGGREGATION_PRESETS[preset], one, times, LONGEST_S, testbed.seed + number)
            for number, one in enumerate(questions)
        ]
        return fmean(one.commits[-1][0] / len(one.token_ids) for one in answers)

    return testbed.once(("latency", preset, steps), measured)


def _questions(testbed: Testbed) -> list[Question]:
    count = dragon_latency.QUICK_QUESTIONS if testbed.quick else dragon_latency.QUESTIONS
    return ask_questions(testbed.models, PEPS, testbed.seed, count)


def _pacing(steps: str) -> Pacing:
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
            PaperRow(("crcg-device",), (None, None), "“negligible overhead” over it"),
        ),
        basis=Basis.VIRTUAL_TIME,
        declared="`tandem bench dragon-ttft`: hardware declared after the paper's testbed, 114 "
        "MB of keys and values at 100 Mbit/s, prompts of 32 tokens.",
        printed="The ratios depend on the declared speed of the device's prefill and of the link. "
        "The paper's abstract has 8.9 times for `drcg-text`, its section 7.3 has 8.6.",
        finding=dragon_findings.first_tokens,
        compute=_first_tokens,
    )


def _first_tokens(testbed: Testbed, labels: Labels) -> Figures:
    rows = testbed.experiment("lab.bench.two_sided.dragon_ttft", peps=PEPS)
    at = {(row["preset"], row["added_s"]): row["ttft_s"] for row in rows}
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
            PaperRow((pacing, added_s), (None,) * 4, "plotted only")
            for pacing in (HARDWARE, EVEN_STEPS)
            for added_s in ADDED_S
        ),
        basis=Basis.VIRTUAL_TIME,
        declared="As `tandem bench scheduler`: acceptance recorded along answers of the demo pair "
        "and replayed, declared steps, added latency that varies as a sine; means over which "
        "side's documents are relevant. How much steps vary is measured while recording, so its "
        "seconds differ by a few percent from run to run.",
        finding=dragon_findings.scheduler,
        compute=_totals,
        plots=(
            Plot("added, s", "dragon", False, "s for 100 tokens", ("device", "cloud", "random")),
        ),
    )


def _totals(testbed: Testbed, labels: Labels) -> Figures:
    steps, added_s = str(labels[0]), float(labels[1])
    records = testbed.once("scheduler records", lambda: _records(testbed))
    rows: list[Row] = []
    for relevant_side, recorded in records.items():
        cell = scheduler.Cell(_pacing(steps), relevant_side, added_s)
        rows += scheduler.compared(cell, recorded, testbed.seed)
    names = ("dragon", "dragon-device", "dragon-cloud", "dragon-random")
    return tuple(fmean(row["total_s"] for row in rows if row["preset"] == name) for name in names)


def _records(testbed: Testbed) -> dict[str, list[Record]]:
    count = scheduler.QUICK_QUESTIONS if testbed.quick else scheduler.QUESTIONS
    rotations = scheduler.QUICK_ROTATIONS if testbed.quick else scheduler.ROTATIONS
    return scheduler.record_all(testbed.models, PEPS, testbed.seed, count, rotations)
