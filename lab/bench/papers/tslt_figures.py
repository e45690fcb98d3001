"""TSLT's theorem and figures, over the demo pair's distributions along held-out text."""

from __future__ import annotations

from statistics import fmean

from lab.analysis.acceptance_bounds import CandidateBound, candidate_bounds, total_acceptance
from lab.analysis.cost_models import LinkTimes, Prediction
from lab.analysis.cost_tslt import mc_dsd, sparse_probs_bytes, tslt
from lab.bench.papers.paper_table import Basis, Figures, Labels, PaperRow, PaperTable
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


def tables() -> tuple[PaperTable, ...]:
    """Return the tables in the paper's order."""
    return (_theorem(), _mass(), _acceptance(), _speedups())


def _theorem() -> PaperTable:
    return PaperTable(
        key="tslt-theorem-4-14",
        paper="TSLT",
        place="Theorem 4.14, section 4.3",
        title="Change of the j-th candidate's acceptance rate, and its bound",
        labels=("K of 32,000", "candidate"),
        figures=("|β̂ − β|, mean", "bound, median", "largest |β̂ − β| − bound"),
        rows=tuple(
            PaperRow((float(kept), float(j)), (None,) * 3)
            for kept in KEPT[:-1]
            for j in range(1, CANDIDATES + 1)
        ),
        basis=Basis.DISTRIBUTIONS,
        declared="Positions of held-out text at temperature 1; K is the same share of the demo "
        "pair's vocabulary. A row counts the positions where a refusal before it can happen.",
        compute=_bounded,
    )


def _mass() -> PaperTable:
    printed = {32: None, 320: 0.85, 3_200: None, 32_000: None}
    return PaperTable(
        key="tslt-figure-3",
        paper="TSLT",
        place="Figure 3, section 5.1",
        title="Mass that the K most likely tokens keep",
        labels=("K of 32,000",),
        figures=("same share", "same K"),
        rows=tuple(PaperRow((float(k),), (printed[k], None)) for k in printed),
        basis=Basis.DISTRIBUTIONS,
        declared="The demo draft along held-out text at temperature 1. Its vocabulary is an "
        "eighth of the paper's, so both the same share of it and the same number of tokens are "
        "shown.",
        compute=_kept_mass,
    )


def _acceptance() -> PaperTable:
    return PaperTable(
        key="tslt-figure-4",
        paper="TSLT",
        place="Figure 4, section 5.2",
        title="Acceptance rate of one candidate and of several",
        labels=("K of 32,000",),
        figures=("SC-DSD", "MC-DSD, two", "MC-DSD, three"),
        rows=tuple(PaperRow((float(k),), (None,) * 3) for k in KEPT),
        basis=Basis.DISTRIBUTIONS,
        declared="As for Figure 3, the same share; Σ min(P, Q) for one candidate, equation 39 for "
        "more, drawn with replacement as in the paper.",
        compute=_accepted,
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
        rows=tuple(PaperRow((float(k), rate), (None,) * 5) for k in KEPT for rate in RATES_MBPS),
        basis=Basis.DISTRIBUTIONS,
        declared="Cost model: equations 8, 26 and 41 with Figure 4's rates, 16 + 15 bits an "
        f"entry, 0.5 Mbit for all entries; a draft pass of {DRAFT_S * 1e3:g} ms and a target pass "
        f"of {TARGET_S * 1e3:g} ms are assumed, as the paper prints none.",
        printed="The paper says: “MC-DSD consistently outperforms SC-DSD” (section 5.3).",
        compute=_sped_up,
    )


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
