"""DRAGON's Figure 5: how well text is predicted from documents on two sides.

The demo models were never trained on texts with documents before them. SmolLM2, where `make
real-pair` has put it, is the witness of what a model gains that has read much."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from lab.bench.harness.suite import ROOT
from lab.bench.harness.texts import PEPS, read_peps
from lab.bench.papers.paper_table import Basis, Figures, Labels, PaperRow, PaperTable, Plot
from lab.bench.papers.task_tables import FILES, task_texts
from lab.bench.papers.testbed import Testbed
from lab.bench.two_sided.dragon_corpus import (
    DOCUMENT_TOKENS,
    QUERY_TOKENS,
    default_search,
    windows_of,
)
from lab.bench.two_sided.dragon_quality import perplexities
from lab.training.demo_pair.corpus import is_held_out
from tandem.backends.model_description import load_tokenizer
from tandem.backends.torch.loading import load_engine

COUNTS = (0, 1, 2, 3, 4, 6, 8, 10, 12, 14, 16)
QUICK_COUNTS = (0, 1, 2, 4)
WINDOWS = 12
QUICK_WINDOWS = 3
TEXTS = 40
QUICK_TEXTS = 12
"""Whose parts are predicted or searched; every part that is searched is embedded."""
CONTEXT_TOKENS = 256
"""Documents and text together, as the paper limits both sides."""
WINDOW_TOKENS = 128
REAL = ROOT / "models" / "real" / "smollm2"
DEMO_PAIR = "demo pair"
WITNESS = "SmolLM2-135M"
PEP_TEXTS = "PEPs"
WIKITEXT = "WikiText-2"
LEAST_GAIN = 0.1
"""Percent that a baseline must gain to be divided by."""
_NEEDS = {DEMO_PAIR: "", WITNESS: "`make real-pair`", PEP_TEXTS: "", WIKITEXT: "`--tasks`"}
CURVES = {
    "DRAGON": "dragon",
    "DRCG": "context-all",
    "CRCG, device": "context-device",
    "CRCG, cloud": "context-cloud",
}
DECLARED = (
    f"The same model at both sides, with contexts of {CONTEXT_TOKENS} tokens for documents and "
    f"text together, the paper's limit: texts of {WINDOW_TOKENS} tokens, of which the first "
    f"{QUERY_TOKENS} are the query, and documents of {DOCUMENT_TOKENS} from the rest of the same "
    "texts. They are found by the services' default search, embeddings in FAISS fused with words, "
    "and weighed by ten times the similarity of their vectors to the query's. The better half is "
    "the cloud's. DRAGON's distribution is the mixture, with a sequence for each document; CRCG "
    "and DRCG put documents into one context until it is full."
)
PRINTED = (
    "The paper's training set of WikiText-2 is not here: documents come from other parts of the "
    "validation set's articles. Its windows of 1024 and 512 tokens are longer than its contexts of "
    "256; ours fit."
)


def curve_table() -> PaperTable:
    return PaperTable(
        key="dragon-figure-5-curve",
        paper="DRAGON",
        place="Figure 5, section 7.3, the curve",
        title=f"Perplexity over documents a side, {WITNESS}",
        labels=("texts", "documents a side"),
        figures=tuple(CURVES),
        rows=tuple(
            PaperRow(
                (texts, float(count)),
                (None,) * len(CURVES),
                f"plotted only; {_remark(WITNESS, texts)}",
            )
            for texts in (WIKITEXT, PEP_TEXTS)
            for count in COUNTS
        ),
        basis=Basis.DISTRIBUTIONS,
        declared=f"{DECLARED} {WINDOWS} texts; quick: {QUICK_WINDOWS}, with "
        f"{', '.join(map(str, QUICK_COUNTS))} documents a side.",
        printed=PRINTED,
        compute=_curve,
        needs=("tasks",),
        plots=(
            Plot(
                "documents a side",
                "DRAGON",
                words="perplexity",
                also=tuple(name for name in CURVES if name != "DRAGON"),
            ),
        ),
    )


def _curve(testbed: Testbed, labels: Labels) -> Figures:
    perplexity = _perplexities(testbed, WITNESS, str(labels[0]))
    count = int(float(labels[1]))
    return tuple(perplexity.get((method, count)) for method in CURVES.values())


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
        declared=f"{DECLARED} {max(COUNTS)} documents a side; quick: {max(QUICK_COUNTS)}. One "
        "context is the best of CRCG at either side and DRCG; one side is the better side with a "
        "sequence for each document, which the paper does not have. The demo pair's PEPs are held "
        "out from its training.",
        printed=PRINTED,
        compute=_gains,
        needs=("tasks",),
    )


def _remark(model: str, texts: str) -> str:
    needed = " and ".join(filter(None, (_NEEDS[model], _NEEDS[texts])))
    return f"not the paper's; needs {needed}" if needed else "not the paper's"


def _gains(testbed: Testbed, labels: Labels) -> Figures:
    perplexity = _perplexities(testbed, *map(str, labels))
    if not perplexity:
        return (None,) * 5
    return relative_gains(perplexity, max(_counts(testbed)))


def _counts(testbed: Testbed) -> tuple[int, ...]:
    return QUICK_COUNTS if testbed.quick else COUNTS


def _perplexities(testbed: Testbed, model: str, named: str) -> dict[tuple[str, int], float]:
    """Return perplexities by method and number of documents a side; empty where the model or the
    texts are not there."""

    def computed() -> dict[tuple[str, int], float]:
        source, texts = model_source(model, testbed), model_texts(named, testbed.tasks)
        if source is None or not texts:
            return {}
        counts = _counts(testbed)
        windows = windows_of(
            texts[: QUICK_TEXTS if testbed.quick else TEXTS],
            load_tokenizer(source),
            max(counts),
            testbed.seed,
            window_tokens=WINDOW_TOKENS,
            most=QUICK_WINDOWS if testbed.quick else WINDOWS,
            search=default_search,
        )
        return perplexities(
            load_engine(source),
            windows,
            counts,
            weighed_by="score",
            document_room=CONTEXT_TOKENS - WINDOW_TOKENS,
        )

    return testbed.once(("figure 5", model, named), computed)


def relative_gains(perplexity: Mapping[tuple[str, int], float], documents: int) -> Figures:
    """Return DRAGON's gain ÷ that of one context and ÷ that of one side, then the three gains in
    percent. A gain is over no documents; a quotient by a gain below LEAST_GAIN is None."""
    none = perplexity["dragon", 0]

    def gain(*methods: str) -> float:
        return 100 * (1 - min(perplexity[name, documents] for name in methods) / none)

    ours, context = gain("dragon"), gain("context-all", "context-device", "context-cloud")
    side = gain("crcg-device", "crcg-cloud")
    ratios = (ours / other if other >= LEAST_GAIN else None for other in (context, side))
    return (*ratios, ours, context, side)


def model_source(model: str, testbed: Testbed) -> str | None:
    """Return where a row's model is; None where it is not there."""
    if model == WITNESS:
        return str(REAL) if REAL.is_dir() else None
    return testbed.models.target if model == DEMO_PAIR else None


def model_texts(named: str, tasks: Path | None) -> list[str]:
    """Return whole texts; empty where their file is not there."""
    if named in FILES:
        return task_texts(named, tasks)
    return [one.text for one in read_peps(PEPS) if is_held_out(one.id)]
