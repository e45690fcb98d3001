"""Learning from answers that were made before: what the target says, and what is judged when."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from lab.bench.speculation.learning import goals, window_rows
from lab.bench.speculation.learning_streams import STREAM
from lab.bench.speculation.offline_learning import (
    AT_ONCE,
    learned_stream,
    target_answers,
)
from tandem.core.gumbel import coupled_token
from tandem.learning.tenant import TenantLearning
from tandem.testing.scripted import ScriptedEngine, scripted_probs
from tests.unit.learning.unigrams import VOCABULARY, Unigrams, answers, setup


def test_answers_are_those_that_the_coupled_preset_draws() -> None:
    scripted = scripted_probs(3, VOCABULARY)
    engine = ScriptedEngine(VOCABULARY, scripted)

    def probs(token_ids: list[int]) -> NDArray[np.float64]:
        return np.asarray(scripted(tuple(token_ids)))

    prompts = [[1, 2, number % 5] for number in range(AT_ONCE + 2)]
    texts = target_answers(engine, prompts, temperature=1.0, seed=7, max_tokens=6)
    assert len(texts) == len(prompts)
    for number, text in enumerate(texts):
        ids = text.token_ids.tolist()
        assert ids[:3] == prompts[number]
        assert (text.first, text.seed, text.temperature) == (3, 7 + number, 1.0)
        for place in range(3, len(ids)):
            assert ids[place] == coupled_token(probs(ids[:place]), 7 + number, place)
    (spelt_out,) = target_answers(
        engine, prompts[:1], temperature=1.0, seed=7, max_tokens=6, top_logprobs=3
    )
    assert spelt_out.has_all_probs
    for place, known in spelt_out.target_probs.items():
        said = probs(spelt_out.token_ids[:place].tolist())
        assert set(known.ids.tolist()) == set(np.argsort(-said)[:3].tolist())
        assert known.probs == pytest.approx(said[known.ids], rel=1e-4)
    greedy = target_answers(engine, prompts[:1], temperature=0.0, seed=7, max_tokens=6)
    assert greedy[0].seed is None
    assert greedy[0].token_ids[3] == probs(prompts[0]).argmax()


def learning_in(folder: Path, unigrams: Unigrams) -> TenantLearning:
    learning = TenantLearning(folder, setup(unigrams))
    learning.read()
    return learning


def test_each_answer_is_judged_by_what_was_learned_before_it(tmp_path: Path) -> None:
    unigrams = Unigrams()
    texts = answers(80)
    stream = learned_stream(texts, learning_in(tmp_path, unigrams), unigrams, idle_s=60.0)
    first = next(number for number, each in enumerate(stream) if each.outcomes)
    for each in stream[: first + 1]:
        assert each.adapted == each.frozen, "nothing was learned yet"
    rows = window_rows(stream, STREAM, 1.0, 20)
    assert [row["questions"] for row in rows] == [20] * 4
    assert 1 < rows[0]["gain"] < rows[-1]["gain"]
    assert rows[-1]["gain"] > 2
    assert goals(rows, 1.0)[0].met
    assert sum(row["steps"] for row in rows) == sum(each.steps for each in stream) > 0
