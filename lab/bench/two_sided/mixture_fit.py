"""`bench dragon-mixture`: do answers over HTTP follow the mixture of both sides' distributions?

All services as processes, the pair's whole vocabulary, the demo's documents. Each question is asked
with thousands of seeds, and the answers of two tokens are held against the mixture by a chi-squared
test whose cells cover the whole vocabulary. The mixture is computed here, from both models and the
documents that the retrievers find, with nothing of the code that aggregates: each document weighs
the exponential of its relevance. With `payload=sparse` and `top_k=64` the preset cuts each
distribution before it draws, and must fail the same test.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
import numpy as np

from lab.bench.harness.plots import bars
from lab.bench.harness.report import Goal, Report, Row, make_row, progress
from lab.bench.harness.suite import Models
from tandem.backends.interface import Engine
from tandem.backends.model_description import load_tokenizer
from tandem.backends.model_source import ModelChoice
from tandem.backends.torch.loading import load_engine
from tandem.core.errors import TandemError
from tandem.core.probs import Array, SamplingParams
from tandem.index.embedding import LEXICAL
from tandem.net.process import run_loop
from tandem.net.retriever_client import RetrieverClient
from tandem.services.aggregator.retrieval import documents_of
from tandem.suite.local_processes import LocalSuite, LocalSuiteSettings
from tandem.suite.suite_documents import SIDES, demo_documents
from tandem.testing.goodness_of_fit import FALSE_ALARM, POWER, Fit, choose_cells, fit
from tandem.testing.simulation.model_pair import EngineDistributions
from tandem.text import Tokenizer
from tandem.two_sided.interface import ContextDocument

EXACT = "dragon"
CUT = "dragon payload=sparse top_k=64"
"""A preset and overrides of it."""
QUESTIONS = (
    "How long is a Python release maintained, and which ones does Heron support?",
    "How are strings and lines formatted in Python code?",
)
DOCUMENTS = 2
TOKENS = 2
ANSWERS = {EXACT: 2000, CUT: 1000}
QUICK_ANSWERS = {EXACT: 300, CUT: 300}
"""To each question."""
AT_ONCE = 8
TIMEOUT_S = 120.0
SEPARATOR = "\n\n"
"""Between a document and the prompt, as the decoders have it."""
COLUMNS = (
    *("preset", "question", "seeds", "answers", "device_share", "cells", "chi_squared", "p_value"),
    *("total_variation", "by_chance", "detectable"),
)


@dataclass(frozen=True, slots=True)
class WeighedDocument:
    """A document before the prompt, by the model that reads it, and its share of the mixture."""

    side: str
    token_ids: tuple[int, ...]
    share: float


Found = dict[str, tuple[ContextDocument, ...]]
"""The documents of each side for a question."""
Answers = dict[tuple[str, int], list[tuple[int, ...]]]
"""By preset and the number of the question."""


def run(report: Report, models: Models) -> None:
    """Report one row for each preset and question."""
    counts = QUICK_ANSWERS if report.quick else ANSWERS
    found, answers = run_loop(_asked(models, counts, report.seed))
    tokenizer = load_tokenizer(models.target)
    engines = {"device": load_engine(models.draft), "cloud": load_engine(models.target)}
    rows: list[Row] = []
    for number, question in enumerate(QUESTIONS):
        documents = weighed(found[number], tokenizer)
        prompt = without_begin(tokenizer.encode(prompt_of(question)), tokenizer)
        progress(f"the exact mixture after question {number + 1}")
        with closing(MixtureDistributions(documents, engines, prompt)) as mixture:
            for preset, count in counts.items():
                cells = choose_cells(mixture, TOKENS, count)
                fitted = fit(cells, answers[preset, number])
                share = sum(each.share for each in documents if each.side == "device")
                seeds = f"{report.seed}…{report.seed + count - 1}"
                more = {"seed": report.seed, "seeds": seeds, "device_share": share}
                rows.append(_row(preset, number + 1, fitted, **more))
    rows.sort(key=lambda row: str(row["preset"]))
    report.add(
        f"Answers of {TOKENS} tokens over HTTP, {DOCUMENTS} documents a side, the whole vocabulary",
        COLUMNS,
        rows,
    )
    report.goals += goals(rows)
    report.notes += [
        "p_value: chance that a sample of the mixture is as far from it. by_chance: the total"
        " variation that such a sample shows in the mean. detectable: a total variation of as much"
        f" is found with probability {POWER:.0%}, at a false alarm of {FALSE_ALARM:.0e}.",
    ]


async def _asked(
    models: Models, counts: Mapping[str, int], seed: int
) -> tuple[list[Found], Answers]:
    """Ask every question with every preset; return the documents for each question, and the
    answers."""
    documents = demo_documents(embedding=LEXICAL)
    settings = LocalSuiteSettings(
        ModelChoice(models.draft), ModelChoice(models.target), documents=documents
    )
    answers: Answers = {}
    async with LocalSuite(settings) as suite:
        found: list[Found] = []
        for question in QUESTIONS:
            sides: Found = {}
            for side in SIDES:
                async with RetrieverClient(suite.children[f"{side}-retriever"].address) as client:
                    hits = (await client.search(question, DOCUMENTS)).hits
                sides[side] = documents_of(hits)
            found.append(sides)
        async with httpx2.AsyncClient(base_url=suite.http, timeout=TIMEOUT_S) as http:
            model = (await http.get("/v1/models")).json()["data"][0]["id"]
            for preset, count in counts.items():
                for number, question in enumerate(QUESTIONS):
                    progress(f"{count} answers of {preset} to question {number + 1}")
                    seeds = range(seed, seed + count)
                    body = body_of(question, model, preset)
                    answers[preset, number] = await sampled(http, body, seeds)
    return found, answers


async def sampled(
    http: httpx2.AsyncClient, body: dict[str, Any], seeds: Sequence[int]
) -> list[tuple[int, ...]]:
    """Return the tokens of one answer for each seed. Raises TandemError for a refusal."""
    places = asyncio.Semaphore(AT_ONCE)

    async def ask(seed: int) -> tuple[int, ...]:
        async with places:
            answer = await http.post("/v1/completions", json={**body, "seed": seed})
        if answer.status_code != 200:
            raise TandemError(f"HTTP status {answer.status_code}: {answer.text[:300]}")
        return token_ids_of(answer.json())

    return list(await asyncio.gather(*map(ask, seeds)))


def body_of(question: str, model: str, method: str) -> dict[str, Any]:
    """Return a completion request without its seed. `method`: a preset, and overrides of it."""
    preset, *overrides = method.split()
    return {
        "model": model,
        "prompt": prompt_of(question),
        "max_tokens": TOKENS,
        "temperature": 1.0,
        "top_p": 1.0,
        "ignore_eos": True,
        "tandem": {
            "preset": preset,
            "overrides": overrides,
            "query": question,
            "documents": DOCUMENTS,
            "provenance": True,
        },
    }


def token_ids_of(answer: dict[str, Any]) -> tuple[int, ...]:
    """Return the tokens of the only choice. Raises TandemError unless there are TOKENS of them."""
    (choice,) = answer["choices"]
    ids = tuple(int(token["id"]) for token in choice["tandem"]["provenance"])
    if len(ids) != TOKENS:
        raise TandemError(f"an answer has {len(ids)} tokens in place of {TOKENS}")
    return ids


def prompt_of(question: str) -> str:
    """Return a question and an article, after which the distributions are broad: a third of their
    mass is not in their heads."""
    return f"{question} The"


def without_begin(token_ids: Sequence[int], tokenizer: Tokenizer) -> tuple[int, ...]:
    """Return token ids without the token that begins every text, as the document before them has
    it."""
    begin = tuple(tokenizer.encode(""))
    ids = tuple(token_ids)
    return ids[len(begin) :] if ids[: len(begin)] == begin else ids


def weighed(found: Found, tokenizer: Tokenizer) -> list[WeighedDocument]:
    """Return all documents of both sides with their shares of the mixture: exp R over the sum."""
    every = [(side, document) for side, documents in found.items() for document in documents]
    weights = np.exp(np.array([document.relevance for _, document in every], np.float64))
    shares = (weights / weights.sum()).tolist()
    return [
        WeighedDocument(side, tuple(tokenizer.encode(document.text.rstrip() + SEPARATOR)), share)
        for (side, document), share in zip(every, shares, strict=True)
    ]


class MixtureDistributions:
    """The exact distribution [V] of the next token after a prompt and the first tokens of an
    answer, float64, at temperature 1."""

    def __init__(
        self,
        documents: Sequence[WeighedDocument],
        engines: Mapping[str, Engine],
        prompt: tuple[int, ...],
    ) -> None:
        """Prepare each document's distributions. `engines`: by side; `prompt`: without the token
        that begins a text."""
        self._documents = documents
        self._prompt = prompt
        self._distributions = [
            EngineDistributions(engines[document.side], SamplingParams()) for document in documents
        ]
        self._known: dict[tuple[int, ...], Array] = {}

    def __call__(self, answer: tuple[int, ...]) -> Array:
        if answer not in self._known:
            shares = [document.share for document in self._documents]
            distributions = [
                probs_of((*document.token_ids, *self._prompt, *answer))
                for document, probs_of in zip(self._documents, self._distributions, strict=True)
            ]
            self._known[answer] = np.array(shares) @ np.array(distributions, np.float64)
        return self._known[answer]

    def close(self) -> None:
        for probs_of in self._distributions:
            probs_of.close()


def _row(preset: str, question: int, fitted: Fit, **more: Any) -> Row:
    return make_row(
        preset=preset,
        question=question,
        **more,
        answers=fitted.samples,
        cells=fitted.cells,
        chi_squared=fitted.statistic,
        p_value=fitted.p_value,
        total_variation=fitted.total_variation,
        by_chance=fitted.noise,
        detectable=fitted.detectable,
    )


def goals(rows: Sequence[Row]) -> list[Goal]:
    """Return the goals: `dragon` passes the test after every question, and what is cut after
    none."""
    rules: tuple[tuple[str, Callable[..., float], float, Any], ...] = (
        (EXACT, min, FALSE_ALARM, "at least"),
        (CUT, max, FALSE_ALARM, "at most"),
    )
    return [
        Goal(
            f"p-value of {preset} against the mixture",
            worst(row["p_value"] for row in rows if row["preset"] == preset),
            limit,
            sense,
        )
        for preset, worst, limit, sense in rules
    ]


def draw(report: Report, folder: Path) -> None:
    """Draw the total variation of each sample, less what chance alone gives."""
    heights = {
        f"{row['preset']}, question {row['question']}": row["total_variation"] - row["by_chance"]
        for row in report.rows
    }
    bars(
        folder / "dragon-mixture.png",
        heights,
        ylabel="total variation",
        title="Distance of answers from the mixture, less that of a sample of it",
    )
