"""DRAGON's Figure 5: how well text is predicted from documents on two sides.

SmolLM2, where `make real-pair` has put it, at both sides, with documents of other articles than the
text that is predicted."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from lab.bench.harness.models import ROOT
from lab.bench.harness.texts import PEPS, NoTexts, read_peps
from lab.bench.papers.paper_table import Basis, Figures, Labels, PaperRow, PaperTable
from lab.bench.papers.testbed import Testbed
from lab.bench.two_sided.dragon_corpus import (
    DOCUMENT_TOKENS,
    QUERY_TOKENS,
    default_search,
    windows_of,
)
from lab.bench.two_sided.dragon_quality import nats_of_windows
from lab.training.demo_pair.corpus import is_held_out
from tandem.backends.model_description import load_tokenizer
from tandem.backends.torch.loading import load_engine

DOCUMENTS = 8
QUICK_DOCUMENTS = 4
WINDOWS = 100
QUICK_WINDOWS = 3
CONTEXT_TOKENS = 256
"""Documents and text together, as the paper limits both sides."""
WINDOW_TOKENS = 128
MODEL = ROOT / "models" / "real" / "smollm2"
PEP_TEXTS = "PEPs"
WIKITEXT = "WikiText-2"
WIKITEXT_FILE = "wikitext2-valid.txt"
RESAMPLED = 1000
"""Samples of as many windows, drawn with replacement, that an interval is taken from."""
FIGURES = (
    *("DRAGON, %", "one context, %", "one side, %", "ratio of gains"),
    *("ratio, 2.5 %", "ratio, 97.5 %"),
)

Nats = Mapping[tuple[str, int], Sequence[float]]
"""Of every window, by method and number of documents a side."""


def quality_table() -> PaperTable:
    return PaperTable(
        key="dragon-figure-5",
        paper="DRAGON",
        place="Figure 5, section 7.3",
        title="Perplexity gained over no documents, and over the best baseline's gain",
        labels=("texts",),
        figures=FIGURES,
        rows=tuple(PaperRow((texts,), (None,) * len(FIGURES)) for texts in (WIKITEXT, PEP_TEXTS)),
        basis=Basis.DISTRIBUTIONS,
        declared=f"SmolLM2-135M-Instruct at both sides, {DOCUMENTS} documents a side, contexts of "
        f"{CONTEXT_TOKENS} tokens for documents and text together, the paper's limit: {WINDOWS} "
        f"texts of {WINDOW_TOKENS} tokens, of which the first {QUERY_TOKENS} are the query, and "
        f"documents of {DOCUMENT_TOKENS} of other articles, found by the services' default search "
        "and weighed by ten times the similarity of their vectors to the query's. The better half "
        "is the cloud's. DRAGON has a sequence for each document; one context is the best of CRCG "
        "at either side and DRCG; one side is the better side with a sequence for each document. "
        "Intervals are of resampled windows. WikiText-2 needs `--tasks`.",
        printed="Ratios of 1.9 (Qwen2.5-1.5B) and 1.4 (OPT-1.3B) on WikiText, with documents of "
        "its training set, which is not here.",
        compute=_gains,
    )


def _gains(testbed: Testbed, labels: Labels) -> Figures:
    texts = texts_of(str(labels[0]), testbed.tasks)
    if not MODEL.is_dir() or not texts:
        return (None,) * len(FIGURES)
    count = QUICK_DOCUMENTS if testbed.quick else DOCUMENTS
    windows = windows_of(
        texts[::2],
        load_tokenizer(str(MODEL)),
        count,
        testbed.seed,
        documents_from=texts[1::2],
        window_tokens=WINDOW_TOKENS,
        most=QUICK_WINDOWS if testbed.quick else WINDOWS,
        search=default_search,
    )
    room = CONTEXT_TOKENS - WINDOW_TOKENS
    nats = nats_of_windows(load_engine(str(MODEL)), windows, (0, count), room)
    return gains_with_interval(nats, count, testbed.seed)


def gains_with_interval(nats: Nats, documents: int, seed: int) -> Figures:
    """Return the three gains in percent, the ratio of DRAGON's to one context's, and the ends of
    its interval; None for a ratio to no gain."""
    count = len(nats["dragon", 0])
    drawn = np.random.default_rng(seed).integers(0, count, (RESAMPLED, count))
    ratios = [ratio for chosen in drawn if (ratio := relative_gains(nats, documents, chosen)[3])]
    ends = np.quantile(ratios, (0.025, 0.975)).tolist() if ratios else (None, None)
    return (*relative_gains(nats, documents, np.arange(count)), *ends)


def relative_gains(nats: Nats, documents: int, chosen: Sequence[int] | np.ndarray) -> Figures:
    """Return over the chosen windows the gains of DRAGON, of one context and of one side in
    percent, and the ratio of the first two, None where one context gains nothing."""

    def gain(*methods: str) -> float:
        of = [float(np.mean(np.take(nats[name, documents], chosen))) for name in methods]
        none = float(np.mean(np.take(nats["dragon", 0], chosen)))
        return float(100 * (1 - np.exp(min(of) - none)))

    ours, context = gain("dragon"), gain("context-all", "context-device", "context-cloud")
    return ours, context, gain("crcg-device", "crcg-cloud"), ours / context if context > 0 else None


def texts_of(named: str, tasks: Path | None) -> list[str]:
    """Return whole texts; none where their file is not there. Raises NoTexts for one that cannot
    be read."""
    if named == PEP_TEXTS:
        return [one.text for one in read_peps(PEPS) if is_held_out(one.id)]
    path = None if tasks is None else tasks / WIKITEXT_FILE
    if path is None or not path.exists():
        return []
    try:
        articles = re.split(r"^ = [^=].* = $", path.read_text(encoding="utf-8"), flags=re.MULTILINE)
    except (OSError, ValueError) as error:
        raise NoTexts(f"{path}: cannot be read: {error!r}") from None
    return [article.strip() for article in articles if article.strip()]
