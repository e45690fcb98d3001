"""`bench bias`: how far lossy methods take the output distribution from the target's.

Per K, over the positions of held-out text at temperature 1, the total variation between the target
distribution and what comes out there:

- PicoSpec's top-K payload: the residual's mass outside the top K; the size of a rejection payload.
  The lossless sparse payload has no bias at any size.
- draft distributions cut to K tokens after sampling (`tslt-after`) and before it (`tslt`, which has
  none), with the mean size of a distribution on the wire, which is the same for both;
- hidden states in float32 (`split`, which has none) and float16 (`split` with
  `uplink_precision=float16`).
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np

from lab.analysis.lost_mass import after_sampling_bias, before_sampling_bias, cut_mass, top_k_bias
from lab.bench.harness.plots import bars
from lab.bench.harness.report import Goal, Report, Row, Table, make_row
from lab.bench.harness.suite import Models
from lab.bench.speculation.demo_pair import pairs_along, texts
from lab.bench.speculation.split_divergence import COLUMNS as SPLIT_COLUMNS
from lab.bench.speculation.split_divergence import SplitTarget
from tandem.backends.torch.loading import load_engine
from tandem.core.codecs import sparse_probs_to_bytes
from tandem.core.probs import Array, Truncation, most_likely, truncate

TOP_KS = (4, 16, 64, 256, 1024)
COLUMNS = ("top_k", "positions", "bias_mean", "bias_largest", "head_mass", "payload_entries_bytes")
CUTS = (4, 16, 64, 320, 1280)
CUT_COLUMNS = (
    "top_k",
    "positions",
    "bias_before_sampling",
    "bias_mean",
    "bias_largest",
    "cut_mass",
    "probs_bytes",
)
CUT_STRIDE = 8
"""Of positions: the bias after sampling takes some milliseconds at each."""
QUICK_STRIDE = 16
"""With --quick every so many positions only."""
ENTRY_BYTES = 4 + 4
"""An id and a probability, as PicoSpec counts a component."""


@dataclass(slots=True)
class Sums:
    """Sums of one K, over positions."""

    top: int
    positions: int = 0
    bias: float = 0.0
    largest: float = 0.0
    head_mass: float = 0.0

    def add(self, target: Array, draft: Array) -> None:
        """Add one position's distributions [V]."""
        bias = max(0.0, float(top_k_bias(target, draft, self.top)))
        self.positions += 1
        self.bias += bias
        self.largest = max(self.largest, bias)
        self.head_mass += float(target[most_likely(target, self.top)].sum())

    def row(self, seed: int) -> Row:
        return make_row(
            top_k=self.top,
            seed=seed,
            positions=self.positions,
            bias_mean=self.bias / self.positions,
            bias_largest=self.largest,
            head_mass=self.head_mass / self.positions,
            payload_entries_bytes=self.top * ENTRY_BYTES,
        )


@dataclass(slots=True)
class CutSums:
    """Sums of one cut to `top` tokens, over positions."""

    top: int
    positions: int = 0
    bias: float = 0.0
    largest: float = 0.0
    before: float = 0.0
    """The largest bias of the cut before sampling."""
    cut_mass: float = 0.0
    probs_bytes: int = 0

    def add(self, target: Array, draft: Array) -> None:
        """Add one position's distributions [V]."""
        cut = Truncation(top_k=self.top)
        kept = truncate(draft, cut)
        target, draft = target.astype(np.float64), draft.astype(np.float64)
        target /= target.sum()
        draft /= draft.sum()
        bias = float(after_sampling_bias(target, draft, cut))
        self.positions += 1
        self.bias += bias
        self.largest = max(self.largest, bias)
        self.before = max(self.before, float(before_sampling_bias(target, draft, cut)))
        self.cut_mass += cut_mass(draft, kept)
        self.probs_bytes += len(sparse_probs_to_bytes(kept, "float16"))

    def row(self, seed: int) -> Row:
        return make_row(
            top_k=self.top,
            seed=seed,
            positions=self.positions,
            bias_before_sampling=self.before,
            bias_mean=self.bias / self.positions,
            bias_largest=self.largest,
            cut_mass=self.cut_mass / self.positions,
            probs_bytes=self.probs_bytes / self.positions,
        )


def run(report: Report, models: Models) -> None:
    """Fill the report with one row per K and method; the whole vocabulary, last, must have no
    bias."""
    target, draft = load_engine(models.target), load_engine(models.draft)
    vocabulary = target.vocabulary_size
    sums = [Sums(top) for top in (*(top for top in TOP_KS if top < vocabulary), vocabulary)]
    cuts = [CutSums(top) for top in (*(top for top in CUTS if top < vocabulary), vocabulary)]
    split = SplitTarget(models.target, target) if target.capabilities.splits else None
    for _, token_ids in texts(models, report.quick):
        if split is not None:
            split.add(token_ids)
        pairs, stride = pairs_along(target, draft, token_ids), QUICK_STRIDE if report.quick else 1
        for index, (target_probs, draft_probs) in enumerate(islice(pairs, 0, None, stride)):
            for sum_ in sums:
                sum_.add(target_probs, draft_probs)
            if index % CUT_STRIDE == 0:
                for cut in cuts:
                    cut.add(target_probs, draft_probs)
    rows = [sum_.row(report.seed) for sum_ in sums]
    report.add("Top-K payloads, held-out text, temperature 1", COLUMNS, rows)
    report.goals.append(Goal("bias with K = vocabulary", rows[-1]["bias_largest"], 1e-6, "at most"))
    report.notes.append("A lossless sparse payload of the same size has no bias.")
    cut_rows = [cut.row(report.seed) for cut in cuts]
    report.add("Draft distributions cut to K tokens after sampling", CUT_COLUMNS, cut_rows)
    report.drawing["cut_rows"] = cut_rows
    exact = max(row["bias_before_sampling"] for row in cut_rows)
    report.goals.append(Goal("bias of cuts before sampling", exact, 1e-9, "at most"))
    if split is not None:
        split_rows = split.rows(report.seed)
        report.tables.append(Table("Hidden states that travel", SPLIT_COLUMNS, split_rows))
        whole = split_rows[0]["bias_largest"]
        report.goals.append(Goal("bias of hidden states in float32", whole, 1e-4, "at most"))
    none_cut = cut_rows[-1]["bias_largest"]
    report.goals.append(Goal("cuts after sampling: K = vocabulary", none_cut, 1e-9, "at most"))


def draw(report: Report, folder: Path) -> None:
    cuts = report.drawing["cut_rows"]
    payloads = report.rows[: len(report.rows) - len(cuts)]
    bars(
        folder / "bias.png",
        {f"K {row['top_k']}": row["bias_mean"] for row in payloads},
        ylabel="total variation per position",
        title="Bias of the top-K payload, held-out text",
    )
    bars(
        folder / "cut-bias.png",
        {f"K {row['top_k']}": row["bias_mean"] for row in cuts},
        ylabel="total variation per position",
        title="Bias of cuts after sampling, held-out text",
    )
