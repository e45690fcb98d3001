"""`bench truncation`: what truncating the draft's distribution before the draw costs (TSLT §3.3 and
§5).

Per cut, over the positions of held-out text at temperature 1: the mass it keeps, the rejection
rule's acceptance rate Σ min(target_probs, draft_probs) with and without it, and the bound σ on the
difference, which is the mass cut off (theorem 3.2); and the bytes of a distribution on the wire.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from lab.analysis.lost_mass import cut_mass
from lab.bench.harness.plots import bars
from lab.bench.harness.report import Goal, Report, Row, make_row
from lab.bench.harness.suite import Models
from lab.bench.speculation.demo_pair import pairs_along, texts
from tandem.backends.torch.loading import load_engine
from tandem.core.codecs import sparse_probs_to_bytes
from tandem.core.probs import Array, Truncation, truncate

TOP_KS = (16, 64, 320)
CUTS = (
    *(Truncation(top_k=top_k) for top_k in (4, *TOP_KS)),
    *(Truncation(top_p=top_p) for top_p in (0.8, 0.95, 0.99)),
)
ROUNDING = 1e-5
"""What float32 distributions may add to a difference that the theorem bounds."""
COLUMNS = (
    "cut",
    "positions",
    "retained_mass",
    "sigma",
    "acceptance_uncut",
    "acceptance_rate",
    "acceptance_change",
    "largest_excess",
    "probs_bytes",
)


@dataclass(slots=True)
class Sums:
    """Sums of one cut, over positions; `excess`: the largest |acceptance change| − σ at any of
    them."""

    cut: Truncation
    positions: int = 0
    sigma: float = 0.0
    uncut: float = 0.0
    accepted: float = 0.0
    excess: float = -np.inf
    probs_bytes: int = 0

    def add(self, target: Array, draft: Array) -> None:
        """Add one position's distributions [V]."""
        kept = truncate(draft, self.cut)
        sigma = cut_mass(draft, kept)
        before, after = (float(np.minimum(target, probs).sum()) for probs in (draft, kept))
        self.positions += 1
        self.sigma += sigma
        self.uncut += before
        self.accepted += after
        self.excess = max(self.excess, abs(after - before) - sigma)
        self.probs_bytes += len(sparse_probs_to_bytes(kept, "float16"))

    @property
    def name(self) -> str:
        return f"K {self.cut.top_k}" if self.cut.top_k else f"P {self.cut.top_p:g}"

    def row(self, seed: int) -> Row:
        count = self.positions
        return make_row(
            cut=self.name,
            seed=seed,
            positions=count,
            retained_mass=1 - self.sigma / count,
            sigma=self.sigma / count,
            acceptance_uncut=self.uncut / count,
            acceptance_rate=self.accepted / count,
            acceptance_change=(self.accepted - self.uncut) / count,
            largest_excess=self.excess,
            probs_bytes=self.probs_bytes / count,
        )


def run(report: Report, models: Models) -> None:
    """Fill the report with one row per cut."""
    target, draft = load_engine(models.target), load_engine(models.draft)
    cuts = [Sums(cut) for cut in CUTS if cut.top_k <= draft.vocabulary_size]
    for _, token_ids in texts(models, report.quick):
        for target_probs, draft_probs in pairs_along(target, draft, token_ids):
            for sums in cuts:
                sums.add(target_probs, draft_probs)
    rows = [sums.row(report.seed) for sums in cuts]
    report.add("Held-out text, temperature 1, distributions in float16", COLUMNS, rows)
    for sums, row in zip(cuts, rows, strict=True):
        if sums.cut.top_k in TOP_KS:
            report.goals += _bounds(sums, row)


def _bounds(sums: Sums, row: Row) -> list[Goal]:
    """Return the goals of theorem 3.2: in the mean (eq. 22) and at every single position (eq.
    20)."""
    change = abs(row["acceptance_change"])
    return [
        Goal(f"{sums.name}: mean |acceptance change|, by σ", change, row["sigma"], "at most"),
        Goal(f"{sums.name}: largest |change| − σ", sums.excess, ROUNDING, "at most"),
    ]


def draw(report: Report, folder: Path) -> None:
    for figure in ("retained_mass", "acceptance_rate"):
        bars(
            folder / f"{figure}.png",
            {row["cut"]: row[figure] for row in report.rows},
            ylabel=figure.replace("_", " "),
            title="Draft distributions cut before the draw, held-out text",
        )
