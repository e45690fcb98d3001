"""`bench bias`: how far PicoSpec's top-K payload takes the output distribution from the target's.

Per K, over the positions of held-out text at temperature 1: the total variation between the target
distribution and what comes out there, which is the residual's mass outside the top K; the
size of a rejection payload. The lossless sparse payload has no bias at any size.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from lab.analysis.lost_mass import top_k_bias
from lab.bench.harness.plots import bars
from lab.bench.harness.report import Goal, Report, Row, make_row
from lab.bench.harness.suite import Models
from lab.bench.speculation.demo_pair import pairs_along, texts
from tandem.backends.torch.loading import load_engine
from tandem.core.probs import Array, most_likely

TOP_KS = (4, 16, 64, 256, 1024)
COLUMNS = ("top_k", "positions", "bias_mean", "bias_largest", "head_mass", "payload_entries_bytes")
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
        """One position's distributions [V]."""
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


def run(report: Report, models: Models) -> None:
    """One row per K; the whole vocabulary, last, must have none."""
    target, draft = load_engine(models.target), load_engine(models.draft)
    vocabulary = target.vocabulary_size
    sums = [Sums(top) for top in (*(top for top in TOP_KS if top < vocabulary), vocabulary)]
    for _, token_ids in texts(models, report.quick):
        pairs, stride = pairs_along(target, draft, token_ids), QUICK_STRIDE if report.quick else 1
        for target_probs, draft_probs in islice(pairs, 0, None, stride):
            for sum_ in sums:
                sum_.add(target_probs, draft_probs)
    rows = [sum_.row(report.seed) for sum_ in sums]
    report.add("Top-K payloads, held-out text, temperature 1", COLUMNS, rows)
    report.goals.append(Goal("bias with K = vocabulary", rows[-1]["bias_largest"], 1e-6, "at most"))
    report.notes.append("A lossless sparse payload of the same size has no bias.")


def draw(report: Report, folder: Path) -> None:
    bars(
        folder / "bias.png",
        {f"K {row['top_k']}": row["bias_mean"] for row in report.rows},
        ylabel="total variation per position",
        title="Bias of the top-K payload, held-out text",
    )
