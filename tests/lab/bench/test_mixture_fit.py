"""What `bench dragon-mixture` compares with what, over scripted models."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from lab.bench.harness.report import make_row
from lab.bench.two_sided.mixture_fit import (
    CUT,
    EXACT,
    TOKENS,
    MixtureDistributions,
    body_of,
    goals,
    prompt_of,
    sampled,
    token_ids_of,
    weighed,
    without_begin,
)
from tandem.core.errors import TandemError
from tandem.services.aggregator.retrieval import documents_of
from tandem.testing.goodness_of_fit import choose_cells, fit
from tandem.testing.scripted import ScriptedEngine, ScriptedTokenizer, scripted_probs
from tandem.two_sided.interface import ContextDocument
from tandem.two_sided.protocol.mixture import document_weights, log_mass, mixture, side_weights
from tests.gateway.test_documents import served

SIZE = 128
TOKENIZER = ScriptedTokenizer(SIZE)
FOUND = {
    "device": (ContextDocument("a heron\n", 4.0), ContextDocument("a note", 3.0)),
    "cloud": (ContextDocument("public", 3.5),),
}
PROBS = {
    side: scripted_probs(seed, SIZE, order=400, sharpness=9.0)
    for seed, side in enumerate(FOUND, start=1)
}


def engines() -> dict[str, ScriptedEngine]:
    return {side: ScriptedEngine(SIZE, probs, context_length=400) for side, probs in PROBS.items()}


@pytest.mark.parametrize("answer", [(), (5,)])
def test_the_mixture_is_that_of_the_sides_mixtures(answer: tuple[int, ...]) -> None:
    """Computed in one sum here, and side by side where it is aggregated."""
    prompt = tuple(TOKENIZER.encode("what?"))
    sides = [
        document_weights([each.relevance for each in FOUND[side]])
        @ np.stack(
            [
                PROBS[side]((*TOKENIZER.encode(each.text.rstrip() + "\n\n"), *prompt, *answer))
                for each in FOUND[side]
            ]
        )
        for side in ("device", "cloud")
    ]
    masses = [log_mass([each.relevance for each in FOUND[side]]) for side in ("device", "cloud")]
    whole = mixture(sides[0], sides[1], side_weights(*masses))
    with closing(MixtureDistributions(weighed(FOUND, TOKENIZER), engines(), prompt)) as found:
        assert np.abs(found(answer) - whole).max() < 1e-6
        assert found(answer).sum() == pytest.approx(1)


def test_a_prompt_after_a_document_begins_no_text_of_its_own() -> None:
    class Beginning(ScriptedTokenizer):
        def encode(self, text: str) -> list[int]:
            return [0, *super().encode(text)]

    tokenizer = Beginning(SIZE)
    prompt = without_begin(tokenizer.encode("ab"), tokenizer)
    assert prompt == tuple(ScriptedTokenizer(SIZE).encode("ab"))
    assert without_begin(prompt, TOKENIZER) == prompt
    (first, *_) = weighed(FOUND, tokenizer)
    assert first.token_ids[0] == 0


async def test_what_is_asked_over_http_is_what_is_computed(tmp_path: Path) -> None:
    """The answers are of the models and documents that they are compared with: the same models on
    each other's side would hardly have given them."""
    question = "heron"
    both = engines()
    models = [both["device"], both["cloud"]]
    async with served(tmp_path, engines=models, tokenizer=TOKENIZER) as (suite, http):
        found = {
            side: documents_of((await retriever.search(question, 2)).hits)
            for side, retriever in zip(FOUND, suite.retrievers, strict=True)
        }
        answers = await sampled(http, body_of(question, "scripted", EXACT), range(40))
    prompt = tuple(TOKENIZER.encode(prompt_of(question)))
    nats: list[float] = []
    for devices, clouds in (models, reversed(models)):
        computed = {"device": devices, "cloud": clouds}
        with closing(MixtureDistributions(weighed(found, TOKENIZER), computed, prompt)) as probs:
            assert nats or fit(choose_cells(probs, TOKENS, len(answers)), answers).fits
            tokens = [(ids[:place], ids[place]) for ids in answers for place in range(TOKENS)]
            nats.append(-float(np.mean([np.log(probs(before)[token]) for before, token in tokens])))
    assert nats[0] < nats[1] - 0.2


def test_an_answer_of_another_length_is_no_sample() -> None:
    answer = {"choices": [{"tandem": {"provenance": [{"id": 3}, {"id": 9}]}}]}
    assert token_ids_of(answer) == (3, 9)
    answer["choices"][0]["tandem"]["provenance"].pop()
    with pytest.raises(TandemError, match="1 tokens in place of 2"):
        token_ids_of(answer)


@pytest.mark.parametrize(
    ("exact", "cut", "met"),
    [
        ((0.3, 0.01), (1e-9, 1e-30), (True, True)),
        ((0.3, 1e-6), (1e-9, 1e-30), (False, True)),
        ((0.3, 0.5), (1e-9, 0.2), (True, False)),
    ],
)
def test_every_question_counts(
    exact: tuple[float, ...], cut: tuple[float, ...], met: tuple[bool, bool]
) -> None:
    rows = [
        make_row(preset=preset, p_value=value)
        for preset, values in ((EXACT, exact), (CUT, cut))
        for value in values
    ]
    assert tuple(goal.met for goal in goals(rows)) == met
