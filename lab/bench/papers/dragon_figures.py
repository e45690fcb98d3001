"""DRAGON's figures by formula, and its payload; the modules beside it have the rest."""

from __future__ import annotations

import json
from statistics import fmean

import numpy as np

from lab.analysis.dragon_equations import speedup_over_synchronous
from lab.bench.papers import dragon_findings
from lab.bench.papers.dragon_gains import quality_table
from lab.bench.papers.dragon_timings import first_token_table, latency_table, strategies_table
from lab.bench.papers.paper_table import Basis, Figures, Labels, PaperRow, PaperTable, Plot
from lab.bench.papers.testbed import Testbed
from tandem.core.codecs import probs_to_bytes
from tandem.core.probs import Array, Truncation
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
CLOUD_S, ROUND_TRIP_S = 0.060, 0.100
DEVICE_MS = (10.0, 40.0, 80.0, 120.0, 160.0, 200.0, 240.0)
NOT_PRINTED = "plotted only"


def tables() -> tuple[PaperTable, ...]:
    """Return the tables in the paper's order."""
    return (
        *(_side_gain(), _theorem(), _payload(), quality_table(), latency_table()),
        *(first_token_table(), strategies_table()),
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
        finding=lambda rows: dragon_findings.slower_side(rows, 1e3 * CLOUD_S),
        compute=_side_gains,
        plots=(Plot("device step, ms", "ΔZ, ms"),),
    )


def _side_gains(testbed: Testbed, labels: Labels) -> Figures:
    both = _both(labels)
    device, cloud, rtt_s = both.device, both.cloud, both.round_trip_s
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
        finding=lambda rows: dragon_findings.overlap(rows, 1e3 * CLOUD_S, 1e3 * ROUND_TRIP_S),
        compute=lambda testbed, labels: (speedup_over_synchronous(_both((0.5, *labels))),),
        plots=(Plot("device step, ms", "speedup"),),
    )


def _both(labels: Labels) -> BothSides:
    """Acceptance of device and cloud, and the device's step in ms."""
    device, cloud, device_ms = (float(one) for one in labels)
    one_way_s = ROUND_TRIP_S / 2
    return BothSides(
        SideTimes(device_ms / 1e3, one_way_s, device), SideTimes(CLOUD_S, one_way_s, cloud)
    )


SENT = {
    "top-p 0.8, as the paper": LocalProbs(truncation=Truncation(top_p=0.8)),
    "preset dragon": AGGREGATION_PRESETS["dragon"].probs,
    "preset dragon-top-k": AGGREGATION_PRESETS["dragon-top-k"].probs,
}


def _payload() -> PaperTable:
    printed = dict.fromkeys((*SENT, "preset dragon-coupled")) | {"top-p 0.8, as the paper": 2363.0}
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
        finding=dragon_findings.payload,
        compute=_payload_bytes,
    )


def _payload_bytes(testbed: Testbed, labels: Labels) -> Figures:
    full = len(probs_to_bytes(np.full(VOCABULARY, 1 / VOCABULARY, np.float32), "float32"))
    written = fmean(_json_bytes(target) for target, _ in testbed.distributions)
    choices = SENT.get(str(labels[0]))
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


def _json_bytes(probs: Array) -> float:
    """Of the paper's vocabulary, with numbers as long as these."""
    return len(json.dumps(probs.tolist())) * VOCABULARY / len(probs)


def _spread(probs: Array) -> Array:
    """The same probabilities at ids all over the paper's vocabulary."""
    spread = np.zeros(VOCABULARY, dtype=np.float32)
    spread[np.arange(len(probs)) * (VOCABULARY // len(probs))] = probs
    return spread
