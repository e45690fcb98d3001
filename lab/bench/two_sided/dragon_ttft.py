"""Time to the first token of two-sided answers (DRAGON Figure 7), in virtual time.

From the question to the first token that is final. The machines and the pair's distributions are
real, the hardware is declared after the paper's testbed (§7.2, §7.3), where 1.3 billion parameters
run on a laptop's processor at the device; the time of what travels from the cloud is a formula. The
keys and values of each document by itself are at hand where it is. In a joined sequence only those
at its beginning can be used: the first document's, or those that came from the cloud (drcg-kv). All
others are computed.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from statistics import fmean

from lab.bench.harness.models import Models
from lab.bench.harness.report import counted
from lab.bench.harness.texts import PEPS
from lab.bench.two_sided.dragon_latency import (
    ADDED_S,
    BASE_RTT_S,
    DOCUMENTS,
    PACINGS,
    QUICK_ADDED_S,
    Times,
    answer,
    ask_questions,
)
from lab.bench.two_sided.dragon_probs import Question
from tandem.two_sided.protocol.mixture import Side
from tandem.two_sided.protocol.presets import (
    AGGREGATION_PRESETS,
    AggregationPreset,
    DocumentContext,
    DocumentTransfer,
)

DEVICE_ONLY = "crcg-device, separate"
"""The device alone with one sequence a document, whose keys and values are all at hand."""
QUESTIONS = 8
QUICK_QUESTIONS = 2
PRESETS = (
    *("crcg-device", "crcg-cloud", "drcg-text", "drcg-kv"),
    *("drdg-tw", "dragon", "dragon-coupled"),
)
APART = tuple(name for name in PRESETS if name.startswith(("crcg", "drcg")))
"""Those that join documents, of which the other form is measured too."""
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


def first_tokens(models: Models, seed: int, quick: bool) -> dict[tuple[str, float], float]:
    """Return the mean seconds to the first token by preset and added latency."""
    hardware, pacing = Hardware(), PACINGS[0]
    questions = ask_questions(models, PEPS, seed, QUICK_QUESTIONS if quick else QUESTIONS)
    found = {}
    for added_s in counted(
        QUICK_ADDED_S if quick else ADDED_S, lambda added_s: f"{added_s * 1e3:g} ms added"
    ):
        times = Times(pacing.device_s, pacing.cloud_s, BASE_RTT_S + added_s)
        for preset in _presets():
            found[preset.name, added_s] = fmean(
                first_token_s(preset, one, times, hardware, seed + number)
                for number, one in enumerate(questions)
            )
    for question in questions:
        question.close()
    return found


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
