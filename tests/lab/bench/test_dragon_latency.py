"""Two-sided answers in virtual time: what waiting for every token and the first one take."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from lab.bench.two_sided.dragon_corpus import RankedDocument
from lab.bench.two_sided.dragon_latency import Times, answer
from lab.bench.two_sided.dragon_probs import Question, after_documents
from lab.bench.two_sided.dragon_ttft import Hardware, first_token_s
from lab.bench.two_sided.overridden import overridden
from tandem.core.probs import SamplingParams
from tandem.testing.scripted import ScriptedEngine, scripted_probs
from tandem.two_sided.protocol.presets import (
    AGGREGATION_PRESETS,
    DocumentContext,
)

SIZE = 96
TIMES = Times(0.06, 0.05, 0.2)
PRESETS = ("crcg-device", "drdg-sw", "drdg-tw", "dragon placement=random", "dragon-coupled")


@pytest.fixture(scope="module")
def question() -> Iterator[Question]:
    """Two documents a side, over one model whose distribution follows its last two tokens."""
    engine = ScriptedEngine(SIZE, scripted_probs(1, SIZE, order=40), context_length=256)
    documents = [RankedDocument(tuple(range(start, start + 20)), 1.0) for start in range(4)]
    found = Question(
        (1, 2, 3),
        after_documents(engine, documents[:2], SamplingParams()),
        after_documents(engine, documents[2:], SamplingParams()),
    )
    yield found
    found.close()


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_runs_and_waiting_is_as_predicted(name: str, question: Question) -> None:
    ran = answer(overridden(name), question, TIMES, 0.0, seed=3, tokens=8)
    assert len(ran.token_ids) == 8
    if name == "drdg-tw":
        tpot_s = (ran.commits[-1][0] - ran.commits[0][0]) / 7
        assert tpot_s == pytest.approx(0.05 + 0.2)


def test_the_first_token_has_retrieval_and_prompt_in_it(question: Question) -> None:
    hardware = Hardware()

    def ttft_s(name: str, context: DocumentContext) -> float:
        preset = replace(AGGREGATION_PRESETS[name], context=context)
        return first_token_s(preset, question, TIMES, hardware, 1)

    # One sequence a document: the prompt in each, and what is fetched as text.
    alone_s = ttft_s("crcg-device", DocumentContext.SEPARATE)
    assert alone_s == pytest.approx(0.0526 + 2 * 3 * 0.013 + 0.06)
    text_s = ttft_s("drcg-text", DocumentContext.SEPARATE)
    asked_s = 0.2 + 0.0526
    assert text_s == pytest.approx(alone_s + asked_s + (2 * 3 + 2 * 64) * 0.013)
    # One sequence of all: the prompt once, and every document but those at its beginning.
    alone_s = ttft_s("crcg-device", DocumentContext.JOINED)
    assert alone_s == pytest.approx(0.0526 + (3 + 64) * 0.013 + 0.06)
    assert ttft_s("drcg-text", DocumentContext.JOINED) == pytest.approx(
        0.0526 + asked_s + (3 + 4 * 64) * 0.013 + 0.06
    )
    assert ttft_s("drcg-kv", DocumentContext.JOINED) == pytest.approx(
        0.0526 + asked_s + 0.2 + 114e6 / 12.5e6 + (3 + 2 * 64) * 0.013 + 0.06
    )
