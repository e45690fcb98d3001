"""A chunk that ends with the first draft the draft model is not sure of."""

import numpy as np
import pytest

from tandem.backends.lookup import lookup_probs
from tandem.core.ngram_index import NgramIndex
from tandem.core.probs import SamplingParams
from tandem.specdec.presets import PRESETS
from tests.virtual_time.cases import ModelPair, preset, run

VOCABULARY = 12
CYCLE = (3, 7, 1, 9, 4)
TEN_IF_SURE = preset("coupled", 10, confidence_threshold=0.5)


def repeating() -> ModelPair:
    """A target that goes through a cycle for ever, and drafts that are looked up."""

    def target_probs(context: tuple[int, ...]) -> np.ndarray:
        probs = np.zeros(VOCABULARY)
        last = context[-1]
        follower = CYCLE[(CYCLE.index(last) + 1) % len(CYCLE)] if last in CYCLE else CYCLE[0]
        probs[follower] = 1.0
        return probs

    sampling = SamplingParams(temperature=0.0)
    return ModelPair(VOCABULARY, looked_up, target_probs, sampling)


def looked_up(context: tuple[int, ...]) -> np.ndarray:
    index = NgramIndex((1, 2, 6))
    index.extend(context)
    return lookup_probs(index, VOCABULARY)


@pytest.mark.parametrize("name", ["coupled", "dsd", "dssd", "stream", "picospec"])
def test_unsure_drafts_are_one_a_chunk_and_the_text_is_the_same(name: str) -> None:
    models, length = repeating(), 40
    alone = run(PRESETS["ar"], models, 5, max_tokens=length)
    chosen = preset(name, 8, confidence_threshold=0.5)
    answer = run(chosen, models, 5, max_tokens=length)
    assert answer.token_ids == alone.token_ids
    wasteful = run(preset(name, 8), models, 5, max_tokens=length)
    assert wasteful.token_ids == alone.token_ids
    assert answer.stats.drafted < wasteful.stats.drafted
    assert answer.stats.accepted >= length // 2


def test_what_repeats_is_drafted_whole() -> None:
    """Once the cycle was seen, ten tokens go up at once and all are right."""
    models = repeating()
    short = run(TEN_IF_SURE, models, 1, max_tokens=10)
    longer = run(TEN_IF_SURE, models, 1, max_tokens=32)
    assert longer.stats.rounds - short.stats.rounds <= 3
