"""`bench dragon-quality`: how well text is predicted from documents on two sides (DRAGON Figure 5).

Perplexity of held-out text after its query, with k documents of 64 tokens a side. One row per
method that gives another distribution: placement and schedule change times, not distributions. The
rows `context-*` are CRCG and DRCG, which put documents one after another into one context, as the
suite's presets of those names do; the rows `crcg-*` and `drcg` are their other form, with one
sequence per document, like all others here.
Both sides run the target, as in the paper; further rows have the draft model at the device.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import log
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from lab.bench.harness.plots import grouped_lines
from lab.bench.harness.report import Goal, Report, Row, counted, make_row
from lab.bench.harness.suite import Models
from lab.bench.two_sided.dragon_corpus import QUERY_TOKENS, RankedDocument, Window, read_windows
from tandem.backends.interface import Engine, ForwardRequest
from tandem.backends.model_description import load_tokenizer
from tandem.backends.torch.loading import load_engine
from tandem.core.probs import SamplingParams, batch_probs_from_logits
from tandem.two_sided.protocol.mixture import Side, document_weights, log_mass, side_weights

Probabilities = NDArray[np.float64]

COUNTS = (0, 1, 2, 4, 8, 16)
QUICK_COUNTS = (0, 1, 4)
WINDOWS = 24
QUICK_WINDOWS = 6
COLUMNS = ("preset", "device_model", "relevance", "documents", "perplexity", "tokens")

CONTEXT_DOCUMENT_TOKENS = 256
"""Of documents in one context, at most; the paper's contexts hold as much (§7.3)."""
BEGIN = (0,)
"""The demo tokenizer's begin-of-text token, before every document."""


@dataclass(slots=True)
class Predictor:
    """One model's probabilities of a window's tokens after the query; every one computed once."""

    engine: Engine
    window: Window
    document_room: int = CONTEXT_DOCUMENT_TOKENS
    """Tokens of documents in one context, at most."""
    _known: dict[tuple[int, ...], Probabilities] = field(default_factory=dict)

    def after(self, context: tuple[int, ...]) -> Probabilities:
        """Return the probability of each token after the query [T], with `context` before the
        window."""
        if context not in self._known:
            self._known[context] = _probabilities(self.engine, context, self.window.token_ids)
        return self._known[context]

    def mixed(
        self, documents: Sequence[RankedDocument], relevance: Callable[[RankedDocument], float]
    ) -> Probabilities:
        """Return the probability of each token [T] by a side's local distribution; without
        documents the window stands alone."""
        if not documents:
            return self.after(())
        weights = document_weights([relevance(one) for one in documents])
        distributions = np.stack([self.after(one.token_ids) for one in documents])
        mixed: Probabilities = weights @ distributions
        return mixed


def _by_score(document: RankedDocument) -> float:
    return document.score


def _evenly(document: RankedDocument) -> float:
    return 0.0


def _by_rank(document: RankedDocument) -> float:
    """Return the relevance by which the services weigh a document where there is no embedding."""
    return -log(document.rank)


RELEVANCES: dict[str, Callable[[RankedDocument], float]] = {
    "even": _evenly,
    "rank": _by_rank,
    "score": _by_score,
}


def run(report: Report, models: Models, peps: Path) -> None:
    """Report one row per method, model at the device, relevance and number of documents."""
    counts = QUICK_COUNTS if report.quick else COUNTS
    tokenizer = load_tokenizer(models.target)
    windows = read_windows(peps, tokenizer, max(counts), report.seed)
    windows = windows[: QUICK_WINDOWS if report.quick else WINDOWS]
    target, draft = load_engine(models.target), load_engine(models.draft)
    nats: dict[tuple[str, str, str, int], list[float]] = {}
    for window in counted(windows, lambda window: "a window of text"):
        at_cloud = Predictor(target, window)
        for name, at_device in (("target", at_cloud), ("draft", Predictor(draft, window))):
            for method, relevance, count, predicted in _methods(at_device, at_cloud, counts):
                key = (method, name, relevance, count)
                nats.setdefault(key, []).append(float(-np.log(predicted).mean()))
    tokens = len(windows) * (len(windows[0].token_ids) - QUERY_TOKENS)
    rows = [_row(*key, values, tokens, report.seed) for key, values in nats.items()]
    report.add("Held-out PEPs, documents of 64 tokens a side", COLUMNS, rows)
    report.goals += _goals(rows, counts)
    report.notes += [
        "dragon stands for drdg-tw, dragon-coupled and every placement: one distribution, other "
        "times.",
        "Goals are of documents weighed by rank, as the services do without an embedding.",
        "Distributions are whole, as those that the preset dragon mixes.",
        "The demo pair hardly uses documents: it was not trained on texts with documents before.",
        "drdg-sw draws one side's whole answer: perplexity is that of the mixture of sequences.",
    ]


def perplexities(
    engine: Engine,
    windows: Sequence[Window],
    counts: Sequence[int],
    *,
    weighed_by: str = "rank",
    document_room: int = CONTEXT_DOCUMENT_TOKENS,
) -> dict[tuple[str, int], float]:
    """Return perplexities by method and number of documents a side, with one model at both sides.
    `document_room`: see `Predictor`."""
    nats: dict[tuple[str, int], list[float]] = {}
    for window in counted(windows, lambda window: "a window of text"):
        at_both = Predictor(engine, window, document_room)
        for method, relevance, count, predicted in _methods(at_both, at_both, counts):
            if relevance in (weighed_by, "-"):
                nat = float(-np.log(predicted).mean())
                nats.setdefault((method, count), []).append(nat)
    return {key: float(np.exp(np.mean(values))) for key, values in nats.items()}


def _methods(
    at_device: Predictor, at_cloud: Predictor, counts: Sequence[int]
) -> list[tuple[str, str, int, Probabilities]]:
    """Return (method, relevance, documents a side, probabilities [T]) of one window, for every
    method."""
    window = at_cloud.window
    rows: list[tuple[str, str, int, Probabilities]] = []
    for count in counts:
        device, cloud = window.of(Side.DEVICE, count), window.of(Side.CLOUD, count)
        for name, relevance in RELEVANCES.items():
            from_device = at_device.mixed(device, relevance)
            from_cloud = at_cloud.mixed(cloud, relevance)
            rows += [
                ("crcg-device", name, count, from_device),
                ("crcg-cloud", name, count, from_cloud),
                ("drcg", name, count, at_device.mixed([*cloud, *device], relevance)),
            ]
            masses = [log_mass([relevance(one) for one in side]) for side in (device, cloud)]
            shares = side_weights(*masses) if count else side_weights(0.0, 0.0)
            parts = ((shares.device, from_device), (shares.cloud, from_cloud))
            rows.append(("dragon", name, count, sum_of(parts)))
            rows.append(("drdg-sw", name, count, sequence_mixture(parts)))
        rows.append(("context-device", "-", count, at_device.after(_joined(at_device, device))))
        rows.append(("context-cloud", "-", count, at_cloud.after(_joined(at_cloud, cloud))))
        both = [*cloud, *device]
        rows.append(("context-all", "-", count, at_device.after(_joined(at_device, both))))
    return rows


def sum_of(parts: Sequence[tuple[float, Probabilities]]) -> Probabilities:
    """Return the token-wise mixture."""
    total: Probabilities = np.sum([share * probabilities for share, probabilities in parts], axis=0)
    return total


def sequence_mixture(parts: Sequence[tuple[float, Probabilities]]) -> Probabilities:
    """Return probabilities [T] whose product is the mixture of the sides' products: each side's
    share at a token is what the tokens before it leave of that share."""
    with np.errstate(divide="ignore"):
        before = [
            np.concatenate([[0.0], np.cumsum(np.log(probabilities))[:-1]])
            for _, probabilities in parts
        ]
        logs = np.stack(
            [np.log(share) + so_far for (share, _), so_far in zip(parts, before, strict=True)]
        )
    shares = np.exp(logs - logs.max(axis=0))
    shares /= shares.sum(axis=0)
    mixed: Probabilities = (shares * np.stack([probabilities for _, probabilities in parts])).sum(
        axis=0
    )
    return mixed


def _joined(at: Predictor, documents: Sequence[RankedDocument]) -> tuple[int, ...]:
    """Return the tokens of the documents one after another, the best last and next to the text; the
    worst are left out where there is no more room for them."""
    room = at.engine.context_length - len(at.window.token_ids) - len(BEGIN)
    room = min(room, at.document_room)
    chosen: list[RankedDocument] = []
    for one in documents:
        room -= len(one.token_ids)
        if room < 0:
            break
        chosen.append(one)
    return tuple(token for one in reversed(chosen) for token in one.token_ids)


def _probabilities(
    engine: Engine, context: tuple[int, ...], window: tuple[int, ...]
) -> Probabilities:
    fed = (*BEGIN, *context, *window[:-1])
    predicted = np.array(window[QUERY_TOKENS:])
    session = engine.open(len(fed))
    try:
        (logits,) = engine.forward([ForwardRequest(session, fed, logits_to_keep=len(predicted))])
    finally:
        session.close()
    distributions = batch_probs_from_logits(logits, SamplingParams())
    probabilities: Probabilities = distributions[np.arange(len(predicted)), predicted].astype(
        np.float64
    )
    return probabilities


def _row(
    method: str, model: str, relevance: str, count: int, nats: list[float], tokens: int, seed: int
) -> Row:
    return make_row(
        preset=method,
        seed=seed,
        device_model=model,
        relevance=relevance,
        documents=count,
        perplexity=float(np.exp(np.mean(nats))),
        tokens=tokens,
    )


def _goals(rows: Sequence[Row], counts: Sequence[int]) -> list[Goal]:
    """Return the goals of the claim: both sides together predict better than the better of them
    alone, with the same model; and no worse than all documents in one context, and than none."""
    perplexity = {
        (row["preset"], row["documents"]): row["perplexity"]
        for row in rows
        if row["device_model"] == "target" and row["relevance"] in ("rank", "-")
    }
    goals = []
    for count in (count for count in counts if count):
        alone = min(perplexity["crcg-device", count], perplexity["crcg-cloud", count])
        name = f"perplexity of dragon over the better side alone, {count} documents a side"
        goals.append(Goal(name, perplexity["dragon", count] / alone, 1.0, "at most"))
    for other, count in (("context-all", max(counts)), ("crcg-cloud", 0)):
        name = f"perplexity of dragon over {other}, {count} documents a side"
        goals.append(
            Goal(name, perplexity["dragon", max(counts)] / perplexity[other, count], 1.0, "at most")
        )
    return goals


def draw(report: Report, folder: Path) -> None:
    rows = [row for row in report.rows if row["device_model"] == "target"]
    grouped_lines(
        folder / "quality.png",
        [row for row in rows if row["relevance"] in ("rank", "-")],
        x="documents",
        y="perplexity",
        title="Perplexity of held-out PEPs, documents a side (target at both sides)",
    )
