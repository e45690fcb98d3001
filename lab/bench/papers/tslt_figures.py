"""TSLT's theorem and figures, over the demo pair's distributions along held-out text."""

from __future__ import annotations

from statistics import fmean

import numpy as np

from lab.analysis.acceptance_bounds import CandidateBound, candidate_bounds, total_acceptance
from lab.analysis.cost_models import LinkTimes, Prediction
from lab.analysis.cost_tslt import fitted_top_k, mc_dsd, sparse_probs_bytes, tslt
from lab.bench.papers.paper_table import Basis, Figures, Labels, PaperRow, PaperTable, Plot
from lab.bench.papers.testbed import Testbed
from tandem.control.conditions import PairTimes
from tandem.core.probs import Truncation, truncate

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
POSSIBLE = tuple(2**n for n in range(3, 15))


def tables() -> tuple[PaperTable, ...]:
    """Return the tables in the paper's order."""
    return (_theorem(), _mass(), _acceptance(), _speedups(), _fitted())


def _theorem() -> PaperTable:
    return PaperTable(
        key="tslt-theorem-4-14",
        paper="TSLT",
        place="Theorem 4.14, section 4.3",
        title="Change of the j-th candidate's acceptance rate, and its bound",
        labels=("K of 32,000", "candidate"),
        figures=("|β̂ − β|, mean", "bound, median", "largest |β̂ − β| − bound"),
        rows=tuple(
            PaperRow((float(kept), float(j)), (None,) * 3, "a theorem, no figures printed")
            for kept in KEPT[:-1]
            for j in range(1, CANDIDATES + 1)
        ),
        basis=Basis.DISTRIBUTIONS,
        declared="Positions of held-out text at temperature 1; K is the same share of the demo "
        "pair's vocabulary. A row counts the positions where a refusal before it can happen.",
        compute=_bounded,
        plots=(Plot("candidate", "|β̂ − β|, mean"), Plot("candidate", "bound, median")),
    )


def _mass() -> PaperTable:
    printed = {32: None, 320: 0.85, 3_200: None, 32_000: None}
    remarks = {32: "plotted only", 3_200: "“almost unchanged”", 32_000: "all: 1 by definition"}
    return PaperTable(
        key="tslt-figure-3",
        paper="TSLT",
        place="Figure 3, section 5.1",
        title="Mass that the K most likely tokens keep",
        labels=("K of 32,000",),
        figures=("same share", "same K"),
        rows=tuple(PaperRow((float(k),), (printed[k], None), remarks.get(k, "")) for k in printed),
        basis=Basis.DISTRIBUTIONS,
        declared="The demo draft along held-out text at temperature 1. Its vocabulary is an "
        "eighth of the paper's, so both the same share of it and the same number of tokens are "
        "shown.",
        compute=_kept_mass,
        plots=(Plot("K of 32,000", "same share", True, "mass kept", ("same K",)),),
    )


def _acceptance() -> PaperTable:
    return PaperTable(
        key="tslt-figure-4",
        paper="TSLT",
        place="Figure 4, section 5.2",
        title="Acceptance rate of one candidate and of several",
        labels=("K of 32,000",),
        figures=("SC-DSD", "MC-DSD, two", "MC-DSD, three"),
        rows=tuple(PaperRow((float(k),), (None,) * 3, "plotted only") for k in KEPT),
        basis=Basis.DISTRIBUTIONS,
        declared="As for Figure 3, the same share; Σ min(P, Q) for one candidate, equation 39 for "
        "more, drawn with replacement as in the paper.",
        compute=_accepted,
        plots=(
            Plot(
                *("K of 32,000", "SC-DSD", True, "acceptance rate"),
                ("MC-DSD, two", "MC-DSD, three"),
            ),
        ),
    )


def _speedups() -> PaperTable:
    return PaperTable(
        key="tslt-figures-5-6",
        paper="TSLT",
        place="Figures 5 and 6, section 5.3",
        title="Speedup over the target alone by uplink rate, K and tree",
        labels=("K of 32,000", "uplink, Mbit/s"),
        figures=(
            *("SC, chain of 3", "MC ⟨2,2,2⟩", "MC ⟨3,3⟩"),
            *("MC ⟨2,2,2⟩ ÷ SC", "MC ÷ best SC, dear nodes"),
        ),
        rows=tuple(
            PaperRow((float(k), rate), (None,) * 5, "plotted only")
            for k in KEPT
            for rate in RATES_MBPS
        ),
        basis=Basis.DISTRIBUTIONS,
        declared="Cost model: equations 8, 26 and 41 with Figure 4's rates, 16 + 15 bits an "
        f"entry, 0.5 Mbit for all entries; a draft pass of {DRAFT_S * 1e3:g} ms and a target pass "
        f"of {TARGET_S * 1e3:g} ms are assumed, as the paper prints none.",
        printed="The paper says: “MC-DSD consistently outperforms SC-DSD” (section 5.3).",
        compute=_sped_up,
        plots=(
            Plot("uplink, Mbit/s", "SC, chain of 3", True, "speedup, SC, chain of 3"),
            Plot("uplink, Mbit/s", "MC ⟨2,2,2⟩", True, "speedup, MC ⟨2,2,2⟩"),
            Plot("uplink, Mbit/s", "MC ⟨2,2,2⟩ ÷ SC", True),
        ),
    )


def _fitted() -> PaperTable:
    return PaperTable(
        key="tslt-fitted-k",
        paper="TSLT",
        place="Section 5.3, K fitted to link and acceptance",
        title="The K of most tokens per second",
        labels=("uplink, Mbit/s",),
        figures=("best K", "speedup", "K = all"),
        rows=tuple(
            PaperRow((rate,), (None,) * 3, "the paper has two K at each rate")
            for rate in RATES_MBPS
        ),
        basis=Basis.DISTRIBUTIONS,
        declared="As for Figures 5 and 6, a chain of three; K is one of the powers of two, or all.",
        compute=_fitted_figures,
        plots=(Plot("uplink, Mbit/s", "best K", True),),
    )


def _fitted_figures(testbed: Testbed, labels: Labels) -> Figures:
    rates = {kept: _single_rate(testbed, kept) for kept in POSSIBLE}
    link = LinkTimes(0.0, float(labels[0]) * 1e6 / 8)
    best, predicted = fitted_top_k(
        PairTimes(DRAFT_S, TARGET_S),
        link,
        rates,
        draft_length=LAYERS,
        vocabulary_size=VOCABULARY,
        precision_bytes=PRECISION_BYTES,
    )
    whole = _chain(testbed, VOCABULARY, float(labels[0]), LAYERS).speedup_over_ar
    if whole > predicted.speedup_over_ar:
        return float(VOCABULARY), whole, whole
    return float(best), predicted.speedup_over_ar, whole


def _single_rate(testbed: Testbed, kept: int) -> float:
    """Return Σ min(P, Q̂), as a mean over the positions."""

    def overlaps() -> list[float]:
        rates = []
        for target, draft in testbed.distributions:
            cut = truncate(draft, Truncation(top_k=_share(kept, len(draft))))
            rates.append(float(np.minimum(target, cut).sum()))
        return rates

    return fmean(testbed.once(("single", kept), overlaps))


def _bounded(testbed: Testbed, labels: Labels) -> Figures:
    kept, candidate = (int(float(one)) for one in labels)
    bounded = [
        bounds[candidate - 1] for bounds in _all_bounds(testbed, kept) if len(bounds) >= candidate
    ]
    middle = sorted(one.bound for one in bounded)[len(bounded) // 2]
    return (
        fmean(one.change for one in bounded),
        middle,
        max(one.change - one.bound for one in bounded),
    )


def _kept_mass(testbed: Testbed, labels: Labels) -> Figures:
    kept = int(float(labels[0]))
    masses: list[list[float]] = [[], []]
    for _, draft in testbed.distributions:
        ordered = sorted(draft.tolist(), reverse=True)
        for sums, count in zip(masses, (_share(kept, len(ordered)), kept), strict=True):
            sums.append(sum(ordered[:count]))
    return tuple(map(fmean, masses))


def _accepted(testbed: Testbed, labels: Labels) -> Figures:
    kept = int(float(labels[0]))
    return tuple(_rate(testbed, kept, count) for count in (1, 2, 3))


def _sped_up(testbed: Testbed, labels: Labels) -> Figures:
    kept = int(float(labels[0]))
    mbps = float(labels[1])
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


def _share(kept: int, vocabulary_size: int) -> int:
    """Return how many tokens of this vocabulary are the same share of it as `kept` tokens are of
    the paper's; at least one."""
    return max(1, round(kept / VOCABULARY * vocabulary_size))


def _rate(testbed: Testbed, kept: int, candidates: int) -> float:
    return fmean(total_acceptance(one[:candidates]) for one in _all_bounds(testbed, kept))


def _all_bounds(testbed: Testbed, kept: int) -> list[list[CandidateBound]]:
    """Return the bounds for each candidate at every position."""
    return testbed.once(("tslt", kept), lambda: _computed_bounds(testbed, kept))


def _computed_bounds(testbed: Testbed, kept: int) -> list[list[CandidateBound]]:
    return [
        candidate_bounds(
            target, draft, truncate(draft, Truncation(top_k=_share(kept, len(draft)))), CANDIDATES
        )
        for target, draft in testbed.distributions
    ]
