"""`bench demo-pair`: how well a pair fits held-out text and each other, through this engine.

Cross-entropy in nats per token of target and draft, and acceptance: the mean over positions of
Σ min(target_probs, draft_probs) at temperature 1, which is the rejection rule's acceptance rate
when the context is that text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from lab.bench.harness.plots import bars
from lab.bench.harness.report import Goal, Report, Row, make_row
from lab.bench.harness.suite import Models
from lab.bench.harness.texts import held_out
from tandem.backends.interface import Engine, ForwardRequest
from tandem.backends.model_description import load_tokenizer
from tandem.backends.torch.loading import load_engine
from tandem.core.probs import SamplingParams, batch_probs_from_logits

ACCEPTANCE_LIMIT = 0.65
MAX_TOKENS = 512
MAX_CHARACTERS = 4 * MAX_TOKENS  # more would only be cut off again
COLUMNS = (
    "source",
    "tokens",
    "target_cross_entropy",
    "draft_cross_entropy",
    "acceptance_rate",
    "top1_agreement",
)


@dataclass(slots=True)
class Sums:
    """Over positions of held-out text."""

    tokens: int = 0
    target_nats: float = 0.0
    draft_nats: float = 0.0
    overlap: float = 0.0
    same: int = 0

    def add(
        self, target_distributions: np.ndarray, draft_distributions: np.ndarray, next_ids: list[int]
    ) -> None:
        """Add the distributions [n, vocabulary] of n positions, and the tokens that stand there."""
        rows = np.arange(len(next_ids))
        self.tokens += len(next_ids)
        self.target_nats -= float(np.log(target_distributions[rows, next_ids]).sum())
        self.draft_nats -= float(np.log(draft_distributions[rows, next_ids]).sum())
        self.overlap += float(np.minimum(target_distributions, draft_distributions).sum())
        self.same += int((target_distributions.argmax(-1) == draft_distributions.argmax(-1)).sum())

    def row(self, source: str, seed: int) -> Row:
        return make_row(
            source=source,
            seed=seed,
            tokens=self.tokens,
            target_cross_entropy=self.target_nats / self.tokens,
            draft_cross_entropy=self.draft_nats / self.tokens,
            acceptance_rate=self.overlap / self.tokens,
            top1_agreement=self.same / self.tokens,
        )


def run(report: Report, models: Models) -> None:
    """Fill the report with one row per source of held-out text, and one for all."""
    target, draft = load_engine(models.target), load_engine(models.draft)
    sums: dict[str, Sums] = {}
    everything = Sums()
    for source, token_ids in texts(models, report.quick):
        distributions = (
            distributions_along(target, token_ids),
            distributions_along(draft, token_ids),
        )
        for part in (sums.setdefault(source, Sums()), everything):
            part.add(*distributions, token_ids[1:])
    rows = [part.row(source, report.seed) for source, part in sums.items()]
    rows.append(everything.row("all", report.seed))
    report.add("Held-out text, temperature 1", COLUMNS, rows)
    report.goals.append(
        Goal("acceptance, all text", rows[-1]["acceptance_rate"], ACCEPTANCE_LIMIT, "at least")
    )
    _compare_with_card(report, models)


def texts(models: Models, quick: bool) -> Iterator[tuple[str, list[int]]]:
    """Yield the source and the first tokens of each held-out text."""
    tokenizer = load_tokenizer(models.target)
    for document in held_out()[:: 4 if quick else 1]:
        token_ids = tokenizer.encode(document["text"][:MAX_CHARACTERS])[:MAX_TOKENS]
        if len(token_ids) > 1:
            yield document["source"], token_ids


def pairs_along(
    target: Engine, draft: Engine, token_ids: list[int]
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Return pairs of both models' distributions, target first, after each token but the last."""
    along = (distributions_along(engine, token_ids) for engine in (target, draft))
    return zip(*along, strict=True)


def distributions_along(engine: Engine, token_ids: list[int]) -> np.ndarray:
    """Return the distributions [n, vocabulary] after each token but the last."""
    session = engine.open(len(token_ids) - 1)
    try:
        fed = tuple(token_ids[:-1])
        (logits,) = engine.forward([ForwardRequest(session, fed, len(fed))])
        return batch_probs_from_logits(logits, SamplingParams())
    finally:
        session.close()


def _compare_with_card(report: Report, models: Models) -> None:
    """Add notes and goals from the figures of the model card: the plainly trained draft, which they
    compare with, is not shipped."""
    card = Path(models.target).parent / "README.md"
    try:
        text = card.read_text(encoding="utf-8")
    except OSError:
        report.notes.append(f"No model card beside {Path(models.target).name}: no plain draft.")
        return
    for source, figures in card_figures(text).items():
        target = figures["CE: target"]
        plain = figures["CE: plain"]
        report.notes.append(
            f"Model card, {source}: cross-entropy target {target:g}, plain draft {plain:g}; "
            f"acceptance plain {figures['acceptance: plain']:g}, "
            f"distilled {figures['acceptance: draft']:g}."
        )
        report.goals.append(
            Goal(
                f"card, {source}: target's cross-entropy below plain draft's",
                target,
                plain,
                "at most",
            )
        )


def card_figures(text: str) -> dict[str, dict[str, float]]:
    """Return the card's table of held-out figures by source; its header has a cell `CE: target`.

    A column `draft` after `CE: target` is `CE: draft`: each cell inherits the figure's name.
    """
    lines = [line for line in text.splitlines() if line.startswith("|")]
    for number, line in enumerate(lines):
        if "CE: target" in _cells(line):
            names = _full_names(_cells(line))
            return {
                cells[0]: dict(zip(names[1:], map(_number, cells[1:]), strict=True))
                for cells in _table_body(lines[number + 2 :], len(names))
            }
    return {}


def _full_names(names: list[str]) -> list[str]:
    full = []
    figure = ""
    for name in names:
        if ": " in name:
            figure = name.split(": ")[0]
        full.append(name if ": " in name or not figure else f"{figure}: {name}")
    return full


def _table_body(lines: list[str], columns: int) -> Iterator[list[str]]:
    for cells in map(_cells, lines):
        if len(cells) != columns:
            return
        yield cells


def _cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip("|").split("|")]


def _number(cell: str) -> float:
    return float(re.sub(r"[*,]", "", cell))


def draw(report: Report, folder: Path) -> None:
    bars(
        folder / "acceptance.png",
        {row["source"]: row["acceptance_rate"] for row in report.rows},
        ylabel="acceptance",
        title="Mean overlap of target and draft distributions, held-out text",
        limit=ACCEPTANCE_LIMIT,
    )
