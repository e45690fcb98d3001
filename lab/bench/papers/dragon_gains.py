"""DRAGON's Figure 5: what documents on two sides gain, by the demo pair and by a real model.

The demo models were never trained on texts with documents before them. SmolLM2, where `make
real-pair` has put it, is the witness of what a model gains that has read much."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from lab.bench.harness.suite import ROOT
from lab.bench.harness.texts import PEPS, read_peps
from lab.bench.papers import dragon_findings
from lab.bench.papers.paper_table import Basis, Figures, Labels, PaperRow, PaperTable
from lab.bench.papers.task_tables import FILES, task_texts
from lab.bench.papers.testbed import Testbed
from lab.bench.two_sided.dragon_corpus import windows_of
from lab.bench.two_sided.dragon_quality import CONTEXT_DOCUMENT_TOKENS, perplexities
from lab.training.demo_pair.corpus import is_held_out
from tandem.backends.torch.loading import load_engine, load_tokenizer

DOCUMENTS, QUICK_DOCUMENTS = 8, 4
WINDOWS, QUICK_WINDOWS = 12, 4
REAL = ROOT / "models" / "real" / "smollm2"
DEMO_PAIR, WITNESS = "demo pair", "SmolLM2-135M"
PEP_TEXTS, WIKITEXT = "PEPs", "WikiText-2"
LEAST_GAIN = 0.1
"""Percent that a baseline must gain to be divided by."""
_NEEDS = {DEMO_PAIR: "", WITNESS: "`make real-pair`", PEP_TEXTS: "", WIKITEXT: "`--tasks`"}


def quality_table() -> PaperTable:
    return PaperTable(
        key="dragon-figure-5",
        paper="DRAGON",
        place="Figure 5, section 7.3",
        title="Perplexity gained over no documents, relative to the best baseline's gain",
        labels=("model", "texts"),
        figures=("ratio of gains", "over one side", "DRAGON, %", "one context, %", "one side, %"),
        rows=(
            PaperRow(("Qwen2.5-1.5B", "WikiText"), (1.9, *(None,) * 4), "this model is not here"),
            PaperRow(("OPT-1.3B", "WikiText"), (1.4, *(None,) * 4), "this model is not here"),
            *(
                PaperRow((model, texts), (None,) * 5, _remark(model, texts))
                for model in (WITNESS, DEMO_PAIR)
                for texts in (WIKITEXT, PEP_TEXTS)
            ),
        ),
        basis=Basis.DISTRIBUTIONS,
        declared="The same model at both sides; text after a query of 32 tokens, documents of 64 "
        f"tokens, {QUICK_DOCUMENTS} (quick) or {DOCUMENTS} (full) a side, found by their words in "
        "the rest of the same texts and weighed by rank. Gains are of perplexity. One context is "
        "the better of one side's and of all documents one after another, the paper's CRCG and "
        f"DRCG, with {CONTEXT_DOCUMENT_TOKENS} tokens of documents at most, as in the paper; one "
        "side is the better side with a sequence for each document, which the paper does not "
        "have. The demo pair's PEPs are held out from its training.",
        printed="The paper's training set of WikiText-2 is not here: documents come from other "
        "parts of the validation set's articles.",
        finding=dragon_findings.gains,
        compute=_gains,
        needs=("tasks",),
    )


def _remark(model: str, texts: str) -> str:
    needed = " and ".join(filter(None, (_NEEDS[model], _NEEDS[texts])))
    return f"not the paper's; needs {needed}" if needed else "not the paper's"


def _gains(testbed: Testbed, labels: Labels) -> Figures:
    model, named = map(str, labels)
    source, texts = model_source(model, testbed), model_texts(named, testbed.tasks)
    if source is None or not texts:
        return (None,) * 5
    documents = QUICK_DOCUMENTS if testbed.quick else DOCUMENTS
    windows = windows_of(texts, load_tokenizer(source), documents, testbed.seed)
    chosen = windows[: QUICK_WINDOWS if testbed.quick else WINDOWS]
    return relative_gains(perplexities(load_engine(source), chosen, documents), documents)


def relative_gains(perplexity: Mapping[tuple[str, int], float], documents: int) -> Figures:
    """Gains in percent, and what DRAGON's is times that of one context and of one side."""
    none = perplexity["dragon", 0]

    def gain(*methods: str) -> float:
        return 100 * (1 - min(perplexity[name, documents] for name in methods) / none)

    ours, context = gain("dragon"), gain("context-all", "context-device")
    side = gain("crcg-device", "crcg-cloud")
    ratios = (ours / other if other >= LEAST_GAIN else None for other in (context, side))
    return (*ratios, ours, context, side)


def model_source(model: str, testbed: Testbed) -> str | None:
    """Where a row's model is; None where it is not."""
    if model == WITNESS:
        return str(REAL) if REAL.is_dir() else None
    return testbed.models.target if model == DEMO_PAIR else None


def model_texts(named: str, tasks: Path | None) -> list[str]:
    """Whole texts; none where their file is not there."""
    if named in FILES:
        return task_texts(named, tasks)
    return [one.text for one in read_peps(PEPS) if is_held_out(one.id)]
