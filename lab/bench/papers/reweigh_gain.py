"""What estimating relevances anew gains: perplexity with documents weighed by the text so far.

The services' re-ranker is a cross-encoder, whose weights are not here; how much of the latest
words a document has stands for it, as it does in retrieval without an embedding."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from lab.bench.papers.dragon_gains import (
    DEMO_PAIR,
    PEP_TEXTS,
    WITNESS,
    model_source,
    model_texts,
)
from lab.bench.papers.paper_table import Basis, Figures, Labels, PaperRow, PaperTable, Plot
from lab.bench.papers.testbed import Testbed
from lab.bench.two_sided.dragon_corpus import (
    QUERY_TOKENS,
    WINDOW_TOKENS,
    Window,
    text_of,
    windows_of,
    word_search,
)
from lab.bench.two_sided.dragon_quality import Predictor, Probabilities
from tandem.backends.interface import Engine
from tandem.backends.model_description import load_tokenizer
from tandem.backends.torch.loading import load_engine
from tandem.text import Tokenizer
from tandem.two_sided.protocol.mixture import document_weights

DOCUMENTS = 4
LATEST_TOKENS = 64
WINDOWS = 24
QUICK_WINDOWS = 8
NEVER = WINDOW_TOKENS - QUERY_TOKENS
EVERY = (8, 16, 32, 64, NEVER)


def tables() -> tuple[PaperTable, ...]:
    return (
        PaperTable(
            key="dragon-reweigh-gain",
            paper="DRAGON",
            place="Section 3, relevances along the text",
            title="Gain of estimating the documents' relevances anew",
            labels=("model", "every, tokens"),
            figures=("perplexity", "gain over never, %"),
            rows=tuple(
                PaperRow((model, float(every)), (None, None), _remark(model, every))
                for model in (WITNESS, DEMO_PAIR)
                for every in EVERY
            ),
            basis=Basis.DISTRIBUTIONS,
            declared=f"Held-out PEPs: {NEVER} tokens after a query of {QUERY_TOKENS}, two "
            "documents a side, found by the query. A document's relevance is ten times its "
            f"coverage of the words of the latest {LATEST_TOKENS} tokens, in place of the score of "
            "a cross-encoder, whose weights are not here.",
            compute=_gain,
            printed=f"{NEVER} tokens are the text: never.",
            plots=(Plot("every, tokens", "gain over never, %", True),),
        ),
    )


def _remark(model: str, every: int) -> str:
    needed = "; needs `make real-pair`" if model == WITNESS else ""
    return ("never" if every == NEVER else "not printed") + needed


def _gain(testbed: Testbed, labels: Labels) -> Figures:
    model = str(labels[0])
    every = int(float(labels[1]))
    perplexities = testbed.once(("reweigh gain", model), lambda: _perplexities(testbed, model))
    if not perplexities:
        return None, None
    gain = 100 * (1 - perplexities[every] / perplexities[NEVER])
    return perplexities[every], None if every == NEVER else gain


def _perplexities(testbed: Testbed, model: str) -> dict[int, float]:
    """Return perplexities by how often relevances are estimated; empty where the model is not
    there."""
    source = model_source(model, testbed)
    if source is None:
        return {}
    tokenizer, engine = load_tokenizer(source), load_engine(source)
    windows = windows_of(model_texts(PEP_TEXTS, testbed.tasks), tokenizer, DOCUMENTS, testbed.seed)
    chosen = [one for one in windows if one.documents]
    chosen = chosen[: QUICK_WINDOWS if testbed.quick else WINDOWS]
    nats = [_nats(engine, tokenizer, window) for window in chosen]
    return {
        every: float(np.exp(np.mean([of_window[every] for of_window in nats]))) for every in EVERY
    }


def _nats(engine: Engine, tokenizer: Tokenizer, window: Window) -> dict[int, float]:
    """Return the mean surprisal in nats over the tokens of one text, by how often relevances are
    estimated."""
    predictor, documents = Predictor(engine, window), window.documents[:DOCUMENTS]
    distributions = np.stack([predictor.after(one.token_ids) for one in documents])
    with word_search([text_of(tokenizer, one.token_ids) for one in documents]) as find:

        def relevances(token: int) -> list[float]:
            """Return the documents' relevances before that token of the text after the query."""
            end = QUERY_TOKENS + token
            latest = text_of(tokenizer, window.token_ids[max(0, end - LATEST_TOKENS) : end])
            found = dict(find(latest, len(documents)))
            return [found.get(number, 0.0) for number in range(len(documents))]

        return {
            every: float(-np.log(reweighed(distributions, every, relevances)).mean())
            for every in EVERY
        }


def reweighed(
    distributions: Probabilities, every: int, relevances: Callable[[int], Sequence[float]]
) -> Probabilities:
    """Return the mixture [T] of documents' probabilities [n, T], whose relevances are estimated at
    the beginning of each stretch of `every` tokens."""
    stretches = [
        document_weights(relevances(start)) @ distributions[:, start : start + every]
        for start in range(0, distributions.shape[1], every)
    ]
    mixed: Probabilities = np.concatenate(stretches)
    return mixed
