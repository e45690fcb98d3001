"""Answers from documents on two sides over HTTP follow the mixture of both sides' whole
distributions: `dragon` as it is shipped, over a vocabulary four times as long as what it sends.

`make test-long` has both: each takes seconds, and tests/virtual_time/test_aggregation_distribution
has the same cut and the same cells through both sides' machines in every run.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tandem.core.probs import Array, most_likely
from tandem.index.relevance import COVERAGE_ALONE
from tandem.testing.scripted import ScriptedEngine, ScriptedTokenizer, scripted_probs
from tandem.two_sided.protocol.mixture import log_mass, mixture, side_weights
from tandem.two_sided.protocol.presets import AGGREGATION_PRESETS
from tests.chi_squared import assert_fits
from tests.gateway.http_suite import chat_body
from tests.gateway.test_documents import served
from tests.long_runs import LONG

VOCABULARY = 256
QUESTION = "what of the heron?"
HEAD = AGGREGATION_PRESETS["dragon"].probs.head
SIDES = tuple(scripted_probs(seed, VOCABULARY, order=1, sharpness=3.0) for seed in (1, 2))
"""What follows a token, at the device and in the cloud, whatever the documents are."""
ANSWERS = 8
TOKENS = 24
"""As many tokens as show a cut to 64 of them: its chi-squared is 99, its limit 37."""


def parity(token_id: int) -> tuple[int]:
    """A context that stands for half of all: so there are many tokens to each."""
    return (token_id % 2,)


def engine(probs: Callable[[tuple[int, ...]], Any]) -> ScriptedEngine:
    return ScriptedEngine(
        VOCABULARY, lambda context: probs(parity(context[-1])), context_length=400
    )


async def sampled(
    folder: Path, preset: str, *overrides: str
) -> tuple[Counter[tuple[int, int]], Counter[tuple[int, int]]]:
    """How many tokens of each cell came over HTTP, and how many would by the whole mixture. A cell
    is a kind of text before, and how many sides' heads a token is in."""
    found: Counter[tuple[int, int]] = Counter()
    expected: Counter[tuple[int, int]] = Counter()
    tokenizer = ScriptedTokenizer(VOCABULARY)
    engines = [engine(probs) for probs in SIDES]
    async with served(folder, engines=engines, tokenizer=tokenizer) as (suite, http):
        masses = [
            log_mass(
                [COVERAGE_ALONE * hit.coverage for hit in (await each.search("heron", 1)).hits]
            )
            for each in suite.retrievers
        ]
        weights = side_weights(*masses)

        async def ask(seed: int) -> list[int]:
            tandem = {
                "preset": preset,
                "overrides": overrides,
                "query": "heron",
                "documents": 1,
                "provenance": True,
            }
            body = chat_body(QUESTION, max_tokens=TOKENS, seed=seed, tandem=tandem)
            answer = (await http.post("/v1/chat/completions", json=body)).json()
            return [token["id"] for token in answer["choices"][0]["tandem"]["provenance"]]

        answers = await asyncio.gather(*map(ask, range(ANSWERS)))
    last = tokenizer.encode(QUESTION)[-1]
    for answer in answers:
        assert len(answer) == TOKENS
        for before, token in zip((last, *answer), answer, strict=False):
            kind = before % 2
            device, cloud = (np.asarray(probs(parity(before))) for probs in SIDES)
            cells = _heads(device) + _heads(cloud)
            found[kind, int(cells[token])] += 1
            whole = mixture(device, cloud, weights)
            for number in range(3):
                expected[kind, number] += float(whole[cells == number].sum())  # type: ignore[assignment]
    return found, expected


def _heads(probs: Array) -> Array:
    """1 for the tokens of the head [V]."""
    inside = np.zeros(len(probs), dtype=int)
    inside[most_likely(probs, HEAD)] = 1
    return inside


@LONG
async def test_dragon_as_it_is_shipped_follows_the_whole_mixture(tmp_path: Path) -> None:
    found, expected = await sampled(tmp_path, "dragon")
    assert_fits([found[cell] for cell in expected], [*expected.values()])


@LONG
async def test_cut_to_what_is_sent_it_fails_the_same_test(tmp_path: Path) -> None:
    found, expected = await sampled(tmp_path, "dragon", "payload=sparse", "top_k=64")
    with pytest.raises(AssertionError, match="chi-squared"):
        assert_fits([found[cell] for cell in expected], [*expected.values()])
