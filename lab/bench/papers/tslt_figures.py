"""TSLT's theorem and figures at its own K, over answers of pairs that are here."""

from __future__ import annotations

from statistics import fmean

import numpy as np

from lab.analysis.acceptance_bounds import CandidateBound, candidate_bounds, total_acceptance
from lab.analysis.cost_models import LinkTimes, Prediction
from lab.analysis.cost_tslt import mc_dsd, sparse_probs_bytes, tslt
from lab.bench.papers.paper_table import Basis, Figures, Labels, PaperRow, PaperTable
from lab.bench.papers.real_pairs import PAIRS, SMOLLM2_NAME, drawn_answers
from lab.bench.papers.testbed import Testbed
from tandem.control.conditions import PairTimes
from tandem.core.probs import Array, Truncation, truncate

VOCABULARY = 32_000
FULL_BYTES = 0.5e6 / 8
PRECISION_BYTES = 2
KEPT = (32, 320, 3_200, 32_000)
CANDIDATES = 4
RATES_MBPS = (1.0, 10.0, 100.0, 1000.0)
DRAFT_S = 0.005
TARGET_S = 0.025
NODE_S = 0.001
LAYERS = 3
CHAINS = range(1, 13)
POSITIONS_APART = 4
_POSITIONS = "At every fourth position of answers that the target drew, at temperature 1. "


def tables() -> tuple[PaperTable, ...]:
    """Return the tables in the paper's order."""
    return (_theorem(), _mass(), _acceptance(), _speedups())


def _theorem() -> PaperTable:
    return PaperTable(
        key="tslt-theorem-4-14",
        paper="TSLT",
        place="Theorem 4.14, section 4.3",
        title="Change of the j-th candidate's acceptance rate, and its bound",
        labels=("K", "candidate"),
        figures=("|β̂ − β|, mean", "bound, median", "largest |β̂ − β| − bound"),
        rows=tuple(
            PaperRow((float(kept), float(j)), (None,) * 3)
            for kept in KEPT[:-1]
            for j in range(1, CANDIDATES + 1)
        ),
        basis=Basis.DISTRIBUTIONS,
        declared=_POSITIONS + "SmolLM2-135M and its draft model, 49,152 tokens. A row counts the "
        "positions where a refusal before it can happen.",
        compute=_bounded,
        downloads=True,
    )


def _mass() -> PaperTable:
    return PaperTable(
        key="tslt-figure-3",
        paper="TSLT",
        place="Figure 3, section 5.1",
        title="Mass that the K most likely tokens keep",
        labels=("target", "K"),
        figures=("mass",),
        rows=tuple(
            PaperRow((name, float(k)), (0.85 if k == 320 else None,))
            for name in PAIRS
            for k in KEPT
        ),
        basis=Basis.DISTRIBUTIONS,
        declared=_POSITIONS + "Of the draft model: SmolLM2's has 49,152 tokens, Qwen2.5-Coder's "
        "151,936.",
        printed="A draft model of 68M parameters and 32,000 tokens.",
        compute=_kept_mass,
        downloads=True,
    )


def _acceptance() -> PaperTable:
    return PaperTable(
        key="tslt-figure-4",
        paper="TSLT",
        place="Figure 4, section 5.2",
        title="Acceptance rate of one candidate and of several",
        labels=("target", "K"),
        figures=("SC-DSD", "MC-DSD, two", "MC-DSD, three"),
        rows=tuple(PaperRow((name, float(k)), (None,) * 3) for name in PAIRS for k in KEPT),
        basis=Basis.DISTRIBUTIONS,
        declared=_POSITIONS + "Σ min(P, Q) for one candidate, equation 39 for more, drawn with "
        "replacement as in the paper.",
        compute=_accepted,
        downloads=True,
    )


def _speedups() -> PaperTable:
    return PaperTable(
        key="tslt-figures-5-6",
        paper="TSLT",
        place="Figures 5 and 6, section 5.3",
        title="Speedup over the target alone by uplink rate, K and tree",
        labels=("K", "uplink, Mbit/s"),
        figures=(
            *("SC, chain of 3", "MC ⟨2,2,2⟩", "MC ⟨3,3⟩"),
            *("MC ⟨2,2,2⟩ ÷ SC", "MC ÷ best SC, dear nodes"),
        ),
        rows=tuple(PaperRow((float(k), rate), (None,) * 5) for k in KEPT for rate in RATES_MBPS),
        basis=Basis.DISTRIBUTIONS,
        declared="Cost model: equations 8, 26 and 41 with SmolLM2's rates of Figure 4, 16 + 15 "
        f"bits an entry, 0.5 Mbit for all entries; a draft pass of {DRAFT_S * 1e3:g} ms and a "
        f"target pass of {TARGET_S * 1e3:g} ms are assumed, as the paper prints none.",
        printed="The paper says: “MC-DSD consistently outperforms SC-DSD” (section 5.3). Its "
        "“500 KB per token” (section 1) are 62.5 KB by its Table 1.",
        compute=_sped_up,
        downloads=True,
    )


def _bounded(testbed: Testbed, labels: Labels) -> Figures:
    kept, candidate = (int(float(one)) for one in labels)
    bounded = [
        bounds[candidate - 1]
        for bounds in _all_bounds(testbed, SMOLLM2_NAME, kept)
        if len(bounds) >= candidate
    ]
    if not bounded:
        return (None,) * 3
    middle = sorted(one.bound for one in bounded)[len(bounded) // 2]
    return (
        fmean(one.change for one in bounded),
        middle,
        max(one.change - one.bound for one in bounded),
    )


def _kept_mass(testbed: Testbed, labels: Labels) -> Figures:
    kept = int(float(labels[1]))
    positions = _positions(testbed, str(labels[0]))
    masses = [np.sort(draft)[-kept:].sum() for _, draft in positions]
    return (float(np.mean(masses)) if masses else None,)


def _accepted(testbed: Testbed, labels: Labels) -> Figures:
    name, kept = str(labels[0]), int(float(labels[1]))
    if not _positions(testbed, name):
        return (None,) * 3
    return tuple(_rate(testbed, kept, count, name) for count in (1, 2, 3))


def _sped_up(testbed: Testbed, labels: Labels) -> Figures:
    kept = int(float(labels[0]))
    mbps = float(labels[1])
    if not _positions(testbed, SMOLLM2_NAME):
        return (None,) * 5
    chain = _chain(testbed, kept, mbps, LAYERS).speedup_over_ar
    two = _tree(testbed, kept, mbps, (2, 2, 2)).speedup_over_ar
    three = _tree(testbed, kept, mbps, (3, 3)).speedup_over_ar
    best = max(_chain(testbed, kept, mbps, n, NODE_S).speedup_over_ar for n in CHAINS)
    dear = _tree(testbed, kept, mbps, (2, 2, 2), NODE_S).speedup_over_ar
    return chain, two, three, two / chain, dear / best


def _chain(
    testbed: Testbed, kept: int, mbps: float, length: int, node_s: float = 0.0
) -> Prediction:
    return tslt(
        PairTimes(DRAFT_S, TARGET_S, node_s),
        LinkTimes(0.0, mbps * 1e6 / 8),
        acceptance_rate=_rate(testbed, kept, 1),
        draft_length=length,
        probs_bytes=_probs_bytes(kept),
    )


def _tree(
    testbed: Testbed, kept: int, mbps: float, expansion: tuple[int, ...], node_s: float = 0.0
) -> Prediction:
    return mc_dsd(
        PairTimes(DRAFT_S, TARGET_S, node_s),
        LinkTimes(0.0, mbps * 1e6 / 8),
        layer_acceptance_rate=_rate(testbed, kept, expansion[0]),
        expansion=expansion,
        probs_bytes=_probs_bytes(kept),
    )


def _probs_bytes(kept: int) -> float:
    return min(FULL_BYTES, sparse_probs_bytes(kept, VOCABULARY, PRECISION_BYTES))


def _rate(testbed: Testbed, kept: int, candidates: int, name: str = SMOLLM2_NAME) -> float:
    return fmean(total_acceptance(one[:candidates]) for one in _all_bounds(testbed, name, kept))


def _all_bounds(testbed: Testbed, name: str, kept: int) -> list[list[CandidateBound]]:
    """Return the bounds for each candidate at every position."""

    def computed() -> list[list[CandidateBound]]:
        cut = Truncation(top_k=kept)
        return [
            candidate_bounds(target, draft, truncate(draft, cut), CANDIDATES)
            for target, draft in _positions(testbed, name)
        ]

    return testbed.once(("tslt", name, kept), computed)


def _positions(testbed: Testbed, name: str) -> list[tuple[Array, Array]]:
    """Return distributions of target and draft; none where the pair is not there."""
    return [
        pair
        for one in drawn_answers(testbed, name)
        for pair in zip(one.target[::POSITIONS_APART], one.draft[::POSITIONS_APART], strict=True)
    ]
