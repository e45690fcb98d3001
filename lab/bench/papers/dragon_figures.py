"""DRAGON's tables, and its payload; the modules beside it have the rest."""

from __future__ import annotations

import json
from collections.abc import Sequence
from statistics import fmean

from lab.bench.papers.dragon_gains import quality_table
from lab.bench.papers.dragon_timings import (
    first_token_table,
    latency_table,
    overhead_table,
    strategies_table,
)
from lab.bench.papers.paper_table import Basis, Figures, Labels, PaperRow, PaperTable
from lab.bench.papers.real_pairs import PAIRS, drawn_answers
from lab.bench.papers.testbed import Testbed
from lab.bench.two_sided.overridden import overridden
from tandem.core.codecs import probs_to_bytes
from tandem.core.probs import Array, Truncation
from tandem.core.randomness import SeededRandom
from tandem.two_sided.protocol.local_drafting import local_draft
from tandem.two_sided.protocol.mixture import Side
from tandem.two_sided.protocol.presets import AGGREGATION_PRESETS, LocalProbs
from tandem.two_sided.serving.decoder_codec import probs_to_payload

PAPERS_OWN = "top-p 0.8, as the paper"
COUPLED = "preset dragon-coupled"
COUPLED_BYTES = 4.0
POSITIONS_APART = 16


def tables() -> tuple[PaperTable, ...]:
    """Return the tables in the paper's order."""
    return (
        *(_payload(), quality_table(), latency_table(), overhead_table(), first_token_table()),
        strategies_table(),
    )


PAYLOADS = {
    PAPERS_OWN: LocalProbs(truncation=Truncation(top_p=0.8)),
    "preset dragon": AGGREGATION_PRESETS["dragon"].probs,
    "dragon payload=sparse top_k=64": overridden("dragon payload=sparse top_k=64").probs,
}


def _payload() -> PaperTable:
    return PaperTable(
        key="dragon-payload",
        paper="DRAGON",
        place="Section 7.1, efficient transmission",
        title="Bytes of a draft's distribution",
        labels=("model", "what is sent"),
        figures=("times smaller than JSON", "than float32", "bytes"),
        rows=tuple(
            PaperRow((model, name), (2363.0 if name == PAPERS_OWN else None, None, None))
            for model in PAIRS
            for name in (*PAYLOADS, COUPLED)
        ),
        basis=Basis.DISTRIBUTIONS,
        declared="Distributions at temperature 1 along answers, of SmolLM2-135M (49,152 tokens) "
        "and of Qwen2.5-Coder-1.5B (151,936), float16 values, against all probabilities as JSON, "
        "which the paper compares with, and as float32. Coupled: the id, four bytes.",
        printed="OPT-1.3B has 50,272 tokens, Qwen2.5-1.5B 151,936; 8-bit indices, as the paper "
        "says, cannot name them; ours code the gaps between ids. How many tokens top-p keeps "
        "depends on the model.",
        compute=_payload_bytes,
        downloads=True,
    )


def _payload_bytes(testbed: Testbed, labels: Labels) -> Figures:
    model, name = map(str, labels)
    found = [
        probs for one in drawn_answers(testbed, model) for probs in one.target[::POSITIONS_APART]
    ]
    if not found:
        return (None,) * 3
    full = len(probs_to_bytes(found[0], "float32"))
    written = testbed.once(
        ("json", model), lambda: fmean(len(json.dumps(one.tolist())) for one in found)
    )
    sent = COUPLED_BYTES if name == COUPLED else _mean_bytes(found, PAYLOADS[name])
    return written / sent, full / sent, sent


def _mean_bytes(found: Sequence[Array], choices: LocalProbs) -> float:
    rng = SeededRandom(0)
    drafts = (
        local_draft(probs, choices, rng=rng, position=position, side=Side.CLOUD)
        for position, probs in enumerate(found)
    )
    return fmean(len(probs_to_payload(probs, choices)) for _, probs in drafts)
