"""`bench dragon-ttft`: time to the first token of two-sided answers (DRAGON Figure 7).

From the question to the first token that is final. Virtual time: the machines and the demo pair's
distributions are real, the hardware is declared after the paper's testbed (§7.2, §7.3), where 1.3
billion parameters run on a laptop's processor at the device. The keys and values of each document
by itself are at hand where it is. In a joined sequence only those at its beginning can be used: the
first document's, or those that came from the cloud (drcg-kv). All others are computed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import ceil
from pathlib import Path
from statistics import fmean

from lab.bench.harness.plots import grouped_lines
from lab.bench.harness.report import Goal, Report, Row, counted, make_row
from lab.bench.harness.suite import Models
from lab.bench.two_sided.dragon_latency import (
    BASE_RTT_S,
    DOCUMENTS,
    PACINGS,
    answer,
    ask_questions,
)
from lab.bench.two_sided.dragon_prediction import Times
from lab.bench.two_sided.dragon_probs import Question
from lab.bench.two_sided.dragon_real import Pass
from lab.bench.two_sided.dragon_ttft_real import COLUMNS as REAL_COLUMNS
from lab.bench.two_sided.dragon_ttft_real import DEVICE_ONLY, LIMIT, measure_real, real_goals
from tandem.two_sided.protocol.mixture import Side
from tandem.two_sided.protocol.presets import (
    AGGREGATION_PRESETS,
    AggregationPreset,
    DocumentContext,
    DocumentTransfer,
)

ADDED_S = (0.0, 0.05, 0.1, 0.2, 0.3)
QUICK_ADDED_S = (0.0, 0.3)
QUESTIONS = 8
QUICK_QUESTIONS = 2
PRESETS = (
    *("crcg-device", "crcg-cloud", "drcg-text", "drcg-kv"),
    *("drdg-tw", "dragon", "dragon-coupled"),
)
APART = tuple(name for name in PRESETS if name.startswith(("crcg", "drcg")))
"""Those that join documents, of which the other form is measured too."""
COLUMNS = ("preset", "added_s", "ttft_s", "over_device_only")
TOKENS = 2


@dataclass(frozen=True, slots=True)
class Hardware:
    """Declared. A 1.3B model at 47 GB/s decodes in 110 ms in float32; at some 200 GFLOP/s a prompt
    takes 13 ms a token and sequence. The cloud's GPU takes 0.2 ms. Both retrieve in the paper's
    52.6 ms; the link is its Wi-Fi; the keys and values of two documents are its 114 MB."""

    device_prompt_token_s: float = 0.013
    cloud_prompt_token_s: float = 0.0002
    retrieve_s: float = 0.0526
    bytes_per_s: float = 12.5e6
    kv_bytes: float = 114e6
    document_tokens: int = 64


def run(report: Report, models: Models, peps: Path, real: bool = False) -> None:
    """Report one row per preset and added latency; with `real` some rows of real processes too."""
    hardware, pacing = Hardware(), PACINGS[0]
    questions = ask_questions(
        models, peps, report.seed, QUICK_QUESTIONS if report.quick else QUESTIONS
    )
    rows: list[Row] = []
    added = QUICK_ADDED_S if report.quick else ADDED_S
    for added_s in counted(added, lambda added_s: f"{added_s * 1e3:g} ms added"):
        times = Times(pacing.device_s, pacing.cloud_s, BASE_RTT_S + added_s)
        measured = {
            preset.name: fmean(
                first_token_s(preset, one, times, hardware, report.seed + number)
                for number, one in enumerate(questions)
            )
            for preset in _presets()
        }
        rows += [
            make_row(
                preset=name,
                pacing=pacing.name,
                rtt_s=times.rtt_s,
                seed=report.seed,
                ttft_s=ttft_s,
                added_s=added_s,
                over_device_only=ttft_s / measured[DEVICE_ONLY],
            )
            for name, ttft_s in measured.items()
        ]
    report.add(
        f"{len(questions)} questions of 32 tokens, {DOCUMENTS} documents a side", COLUMNS, rows
    )
    report.goals += _goals(rows)
    if real:
        ran = measure_by_processes(models, report.seed)
        report.add("Real processes, paced, no jitter", REAL_COLUMNS, ran)
        report.notes.append(
            "drcg-kv, real: the draft model at both sides, whose keys and values are far smaller"
            " than the declared ones."
        )
        report.goals += real_goals(ran)
    report.notes += [
        f"The first token waits for the cloud where a question has fewer than"
        f" {waits_below(rows[-1]['rtt_s'], hardware)} tokens (at the longest link here).",
        "Step, prompt and retrieval times, link and KV size are declared, not measured.",
        "drcg: what travels is added to a device-only run; the rest goes through the machines.",
        f"{DEVICE_ONLY}: with one sequence a document, whose keys and values are all at hand.",
    ]


def _presets() -> list[AggregationPreset]:
    """Return all presets, and those that join documents also with one sequence a document."""
    return [
        *(AGGREGATION_PRESETS[name] for name in PRESETS),
        *(
            replace(
                AGGREGATION_PRESETS[name],
                name=f"{name}, separate",
                context=DocumentContext.SEPARATE,
            )
            for name in APART
        ),
    ]


def measure_by_processes(models: Models, seed: int) -> list[Row]:
    """Return the rows of real processes, paced like the declared hardware: every token of a pass
    takes its time, of whichever sequence."""
    hardware = Hardware()
    device = Pass(PACINGS[0].device_s, *[hardware.device_prompt_token_s] * 2)
    cloud = Pass(PACINGS[0].cloud_s, *[hardware.cloud_prompt_token_s] * 2)
    mbps = hardware.bytes_per_s * 8 / 1e6
    return measure_real(models, device, cloud, QUICK_ADDED_S, BASE_RTT_S, mbps, seed)


def first_token_s(
    preset: AggregationPreset, question: Question, times: Times, hardware: Hardware, seed: int
) -> float:
    """Return the seconds until the first final token. The device retrieves before it opens the
    stream, as h of its documents travels with it; so the cloud's first draft comes after both
    retrievals."""
    fed = computed_tokens(preset, len(question.prompt_ids), hardware)
    first = {
        Side.DEVICE: hardware.retrieve_s + fed * hardware.device_prompt_token_s,
        Side.CLOUD: 2 * hardware.retrieve_s + fed * hardware.cloud_prompt_token_s,
    }
    first[Side.DEVICE] += _fetched_s(preset, times, hardware)
    ran = answer(preset, question, times, 0.0, seed, tokens=TOKENS, first_s=first)
    return ran.commits[0][0]


def computed_tokens(preset: AggregationPreset, prompt: int, hardware: Hardware) -> int:
    """Return how many tokens are fed before the first draft where a side decodes: the prompt, once
    for each sequence, and the documents whose keys and values are not there."""
    all_documents = DOCUMENTS * (1 if preset.transfer is DocumentTransfer.NONE else 2)
    if preset.context is DocumentContext.SEPARATE:
        missing = DOCUMENTS if preset.transfer is DocumentTransfer.TEXT else 0
        return all_documents * prompt + missing * hardware.document_tokens
    there = {DocumentTransfer.NONE: 1, DocumentTransfer.TEXT: 0, DocumentTransfer.KV: DOCUMENTS}
    missing = all_documents - there[preset.transfer]
    return prompt + missing * hardware.document_tokens


def waits_below(rtt_s: float, hardware: Hardware) -> int:
    """Return how many tokens of a question keep the device busy as long as the cloud's first draft
    takes."""
    behind_s = rtt_s + hardware.retrieve_s + PACINGS[0].cloud_s - PACINGS[0].device_s
    gained_s = DOCUMENTS * (hardware.device_prompt_token_s - hardware.cloud_prompt_token_s)
    return max(0, ceil(behind_s / gained_s))


def _fetched_s(preset: AggregationPreset, times: Times, hardware: Hardware) -> float:
    """Return the seconds until the cloud's documents can be used at the device."""
    asked_s = times.rtt_s + hardware.retrieve_s
    match preset.transfer:
        case DocumentTransfer.NONE:
            return 0.0
        case DocumentTransfer.TEXT:
            return asked_s
    # The device hears what was found before it asks for what it has not: one round trip more.
    return asked_s + times.rtt_s + hardware.kv_bytes / hardware.bytes_per_s


def _goals(rows: Sequence[Row]) -> list[Goal]:
    worst = {
        name: max(row["over_device_only"] for row in rows if row["preset"] == name)
        for name in ("dragon", "dragon-coupled")
    }
    return [
        Goal(f"TTFT of {name} ÷ device only, worst added latency", ratio, LIMIT, "at most")
        for name, ratio in worst.items()
    ]


def draw(report: Report, folder: Path) -> None:
    grouped_lines(
        folder / "ttft.png",
        [row for row in report.rows if row.get("part") != "real"],
        x="added_s",
        y="ttft_s",
        title="Time to the first token over added round trip (virtual time)",
    )
