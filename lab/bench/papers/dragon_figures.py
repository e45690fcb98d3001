"""DRAGON's tables, and its payload; the modules beside it have the rest."""

from __future__ import annotations

import json
from statistics import fmean

import numpy as np

from lab.bench.papers.dragon_gains import quality_table
from lab.bench.papers.dragon_timings import (
    first_token_table,
    latency_table,
    overhead_table,
    strategies_table,
)
from lab.bench.papers.paper_table import Basis, Figures, Labels, PaperRow, PaperTable
from lab.bench.papers.testbed import Testbed
from lab.bench.two_sided.overridden import overridden
from tandem.core.codecs import probs_to_bytes
from tandem.core.probs import Array, Truncation
from tandem.core.randomness import SeededRandom
from tandem.two_sided.protocol.local_drafting import local_draft
from tandem.two_sided.protocol.mixture import Side
from tandem.two_sided.protocol.presets import AGGREGATION_PRESETS, LocalProbs
from tandem.two_sided.serving.decoder_codec import probs_to_payload

VOCABULARY = 50_272


def tables() -> tuple[PaperTable, ...]:
    """Return the tables in the paper's order."""
    return (
        *(_payload(), quality_table(), latency_table(), overhead_table(), first_token_table()),
        strategies_table(),
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
        rows=tuple(PaperRow((name,), (figure, None, None)) for name, figure in printed.items()),
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


def _json_bytes(probs: Array) -> float:
    """Return the bytes of a distribution over the paper's vocabulary as JSON, with numbers as long
    as these."""
    return len(json.dumps(probs.tolist())) * VOCABULARY / len(probs)


def _spread(probs: Array) -> Array:
    """Return the same probabilities at ids all over the paper's vocabulary."""
    spread = np.zeros(VOCABULARY, dtype=np.float32)
    spread[np.arange(len(probs)) * (VOCABULARY // len(probs))] = probs
    return spread
