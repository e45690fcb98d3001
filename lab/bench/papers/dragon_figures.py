"""DRAGON's figures by formula, and its payload; the modules beside it have the rest."""

from __future__ import annotations

import json
from statistics import fmean

import numpy as np

from lab.analysis.dragon_equations import speedup_over_synchronous
from lab.bench.papers.dragon_gains import curve_table, quality_table
from lab.bench.papers.dragon_pipelines import pipelines_table, snapshot_table
from lab.bench.papers.dragon_timings import (
    EVEN_STEPS,
    HARDWARE,
    LONGEST_S,
    cloud_answer,
    first_token_table,
    latency_questions,
    latency_s,
    latency_table,
    overhead_table,
    pacing_of,
    strategies_table,
)
from lab.bench.papers.paper_table import Basis, Figures, Labels, PaperRow, PaperTable, Plot
from lab.bench.papers.testbed import Testbed
from lab.bench.two_sided.dragon_latency import BASE_RTT_S, TOKENS
from lab.bench.two_sided.dragon_ttft import Hardware
from lab.bench.two_sided.overridden import overridden
from tandem.core.codecs import probs_to_bytes, sparse_probs_to_bytes
from tandem.core.probs import Array, Truncation, truncate
from tandem.core.randomness import SeededRandom
from tandem.two_sided.protocol.local_drafting import local_draft
from tandem.two_sided.protocol.mixture import Side
from tandem.two_sided.protocol.placement import (
    BothSides,
    SideTimes,
    choose_side,
)
from tandem.two_sided.protocol.presets import AGGREGATION_PRESETS, LocalProbs
from tandem.two_sided.serving.decoder_codec import probs_to_payload

VOCABULARY = 50_272
CLOUD_S = 0.060
ROUND_TRIP_S = 0.100
DEVICE_MS = (10.0, 40.0, 80.0, 120.0, 160.0, 200.0, 240.0)
NOT_PRINTED = "plotted only"
BYTES_PER_S = Hardware().bytes_per_s


def tables() -> tuple[PaperTable, ...]:
    """Return the tables in the paper's order."""
    return (
        *(_side_gain(), _theorem(), _payload(), quality_table(), curve_table()),
        *(latency_table(), overhead_table(), sequence_wise_table(), first_token_table()),
        *(strategies_table(), snapshot_table(), pipelines_table()),
    )


def _side_gain() -> PaperTable:
    rates = ((0.2, 0.8), (0.5, 0.5), (0.8, 0.2))
    return PaperTable(
        key="dragon-figure-3",
        paper="DRAGON",
        place="Figure 3, section 5.1",
        title="ΔZ: what aggregating in the cloud would save a token, by the device's step",
        labels=("α device", "α cloud", "device step, ms"),
        figures=("ΔZ, ms", "by the printed eq. 8, ms"),
        rows=tuple(
            PaperRow((*pair, device_ms), (None, None), NOT_PRINTED)
            for pair in rates
            for device_ms in DEVICE_MS
        ),
        basis=Basis.COST_MODEL,
        declared=f"Cloud step {CLOUD_S * 1e3:g} ms, round trip {ROUND_TRIP_S * 1e3:g} ms, by the "
        "code that the services run.",
        printed="Equation 8, as its text at hand has it, does not follow from Table 1 and the case "
        "study of section 7.4: its first and third cases have the wrong side's rate, as equation "
        "7's weight has.",
        compute=_side_gains,
        plots=(Plot("device step, ms", "ΔZ, ms"),),
    )


def _side_gains(testbed: Testbed, labels: Labels) -> Figures:
    both = _both(labels)
    device = both.device
    cloud = both.cloud
    rtt_s = both.round_trip_s
    if device.decode_s <= cloud.decode_s - rtt_s:
        printed_s = (1 - device.acceptance) * rtt_s
    elif device.decode_s <= cloud.decode_s + rtt_s:
        apart_s = cloud.decode_s - device.decode_s
        printed_s = (1 - device.acceptance) * apart_s
        printed_s += (device.acceptance - cloud.acceptance) * rtt_s
    else:
        printed_s = (device.acceptance - 1) * rtt_s
    return 1e3 * choose_side(both, Side.DEVICE).gain_s, 1e3 * printed_s


def _theorem() -> PaperTable:
    return PaperTable(
        key="dragon-figure-4",
        paper="DRAGON",
        place="Figure 4, section 6, Theorem 6.2",
        title="Speedup over waiting for every token, by the device's step",
        labels=("α cloud", "device step, ms"),
        figures=("speedup",),
        rows=tuple(
            PaperRow((rate, device_ms), (None,), NOT_PRINTED)
            for rate in (0.2, 0.5, 0.8)
            for device_ms in DEVICE_MS
        ),
        basis=Basis.COST_MODEL,
        declared="As for Figure 3; the device aggregates.",
        compute=lambda testbed, labels: (speedup_over_synchronous(_both((0.5, *labels))),),
        plots=(Plot("device step, ms", "speedup"),),
    )


def _both(labels: Labels) -> BothSides:
    """Return both sides' times and acceptance; `labels` are the acceptance of device and cloud, and
    the device's step in ms."""
    device, cloud, device_ms = (float(one) for one in labels)
    one_way_s = ROUND_TRIP_S / 2
    return BothSides(
        SideTimes(device_ms / 1e3, one_way_s, device), SideTimes(CLOUD_S, one_way_s, cloud)
    )


PAYLOADS = {
    "top-p 0.8, as the paper": LocalProbs(truncation=Truncation(top_p=0.8)),
    "preset dragon": AGGREGATION_PRESETS["dragon"].probs,
    "dragon payload=sparse top_k=64": overridden("dragon payload=sparse top_k=64").probs,
}


def _payload() -> PaperTable:
    printed = dict.fromkeys((*PAYLOADS, "preset dragon-coupled")) | {
        "top-p 0.8, as the paper": 2363.0
    }
    return PaperTable(
        key="dragon-payload",
        paper="DRAGON",
        place="Section 7.1, efficient transmission",
        title="Bytes of a draft's distribution, 50,272 tokens",
        labels=("what is sent",),
        figures=("times smaller than JSON", "than float32", "bytes"),
        rows=tuple(
            PaperRow((name,), (figure, None, None), "" if figure else "ours alone")
            for name, figure in printed.items()
        ),
        basis=Basis.DISTRIBUTIONS,
        declared="Distributions of the demo target along held-out text, spread over 50,272 ids, "
        "float16 values, against all 50,272 probabilities as JSON, which the paper compares with, "
        "and as float32. Coupled: the id, four bytes.",
        printed="The paper's 8-bit indices cannot name 50,272 tokens; ours code the gaps between "
        "ids. How many tokens top-p keeps depends on the model.",
        compute=_payload_bytes,
    )


def _payload_bytes(testbed: Testbed, labels: Labels) -> Figures:
    full = len(probs_to_bytes(np.full(VOCABULARY, 1 / VOCABULARY, np.float32), "float32"))
    written = fmean(_json_bytes(target) for target, _ in testbed.distributions)
    choices = PAYLOADS.get(str(labels[0]))
    if choices is None:
        return written / 4, full / 4, 4.0
    rng = SeededRandom(0)
    sent = 0.0
    for position, (target, _) in enumerate(testbed.distributions):
        _, probs = local_draft(
            _spread(target), choices, rng=rng, position=position, side=Side.CLOUD
        )
        sent += len(probs_to_payload(probs, choices)) / len(testbed.distributions)
    return written / sent, full / sent, sent


def sequence_wise_table() -> PaperTable:
    """Return the table of what DRDG/SW takes with the transfer that the paper measured with it; the
    preset `drdg-sw` sends ids."""
    return PaperTable(
        key="dragon-drdg-sw",
        paper="DRAGON",
        place="Section 7.3, sequence-wise synchronisation",
        title="DRDG/SW with all distributions sent at the end, at 300 ms",
        labels=("steps", "what is sent"),
        figures=("kB an answer", "s a token", "dragon saves, %"),
        rows=tuple(
            PaperRow(
                (steps, sent),
                (None, None, 49.5 if (steps, sent) == (HARDWARE, PAPERS_CUT) else None),
                "the paper's cut" if sent == PAPERS_CUT else "not in the paper",
            )
            for steps in (HARDWARE, EVEN_STEPS)
            for sent in FORMS
        ),
        basis=Basis.VIRTUAL_TIME,
        declared="Both sides write all of an answer of 24 tokens; the cloud's distributions follow "
        "once it is complete, over 100 Mbit/s. The text has the same distribution, no matter what "
        "is sent: one coin says whose answer it is. Bytes are of the distributions of the demo "
        f"target along its answers, spread over {VOCABULARY:,} ids; steps, added latency and the "
        "time of DRAGON are those of Figure 6.",
        printed="The paper explains its 49.5 % by this transfer, and does not say what it sends.",
        compute=_sequence_wise,
    )


IDS = "ids, as preset drdg-sw"
PAPERS_CUT = "top-p 0.8, as the paper"
WHOLE = "whole, float32"
WRITTEN = "whole, as JSON"
FORMS = (IDS, PAPERS_CUT, WHOLE, WRITTEN)


def _sequence_wise(testbed: Testbed, labels: Labels) -> Figures:
    steps, sent = map(str, labels)
    sizes = testbed.once("drdg-sw bytes", lambda: _sequence_bytes(testbed))
    pacing = pacing_of(steps)
    cloud_s = BASE_RTT_S + LONGEST_S + TOKENS * pacing.cloud_s + sizes[sent] / BYTES_PER_S
    token_s = max(TOKENS * pacing.device_s, cloud_s) / TOKENS
    saved = 100 * (1 - latency_s(testbed, "dragon", steps) / token_s)
    return sizes[sent] / 1e3, token_s, saved


def _sequence_bytes(testbed: Testbed) -> dict[str, float]:
    """Return the mean bytes that are sent of an answer, by what is sent."""
    ran = [
        (question, cloud_answer(testbed, question, number))
        for number, question in enumerate(latency_questions(testbed))
    ]
    probs = [
        question.cloud((*question.prompt_ids, *token_ids[:number]))
        for question, token_ids in ran
        for number in range(len(token_ids))
    ]
    cut = Truncation(top_p=0.8)
    top = fmean(len(sparse_probs_to_bytes(_spread(truncate(one, cut)), "float16")) for one in probs)
    of_token = {
        IDS: 4.0,
        PAPERS_CUT: top,
        WHOLE: 4.0 * VOCABULARY,
        WRITTEN: fmean(map(_json_bytes, probs)),
    }
    return {sent: TOKENS * size for sent, size in of_token.items()}


def _json_bytes(probs: Array) -> float:
    """Return the bytes of a distribution over the paper's vocabulary as JSON, with numbers as long
    as these."""
    return len(json.dumps(probs.tolist())) * VOCABULARY / len(probs)


def _spread(probs: Array) -> Array:
    """Return the same probabilities at ids all over the paper's vocabulary."""
    spread = np.zeros(VOCABULARY, dtype=np.float32)
    spread[np.arange(len(probs)) * (VOCABULARY // len(probs))] = probs
    return spread
