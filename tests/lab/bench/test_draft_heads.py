"""What `bench dragon-heads` counts, over scripted models and by enumeration."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest

from lab.bench.harness.report import make_row
from lab.bench.two_sided.draft_heads import (
    CUT,
    SHIPPED,
    WHOLE,
    goals,
    outcome,
    positions,
    sending,
)
from lab.bench.two_sided.dragon_corpus import RankedDocument
from lab.bench.two_sided.dragon_probs import Question, after_documents
from tandem.core.probs import SamplingParams, truncate
from tandem.core.randomness import RandomSource
from tandem.testing.scripted import ScriptedEngine, scripted_probs
from tandem.two_sided.protocol.mixture import Weights, mixture, side_weights
from tests.exact import fractions, outcome_probs
from tests.unit.two_sided.test_draft_head import decided

SIZE = 160


@pytest.fixture(scope="module")
def question() -> Iterator[Question]:
    engine = ScriptedEngine(SIZE, scripted_probs(1, SIZE, order=40), context_length=256)
    documents = [RankedDocument(tuple(range(start, start + 20)), 1.0) for start in range(2)]
    found = Question(
        (1, 2, 3),
        *(after_documents(engine, [one], SamplingParams()) for one in documents),
    )
    yield found
    found.close()


def test_a_head_leaves_the_mixture_as_it_is_and_a_cut_does_not(question: Question) -> None:
    head, cut = (positions(preset, question, seed=1) for preset in sending(16))
    assert max(position.bias for position in head) < 1e-6
    assert min(position.bias for position in cut) > 1e-3
    assert [one.left_out for one in head] == [one.left_out for one in cut], "the same text"
    for one, other in zip(head, cut, strict=True):
        assert other.draft_bytes < one.draft_bytes <= other.draft_bytes + 6


def test_the_bias_of_a_cut_is_the_distance_of_the_mixture_of_what_is_left(
    question: Question,
) -> None:
    _, preset = sending(16)
    whole = question.device((1, 2, 3)), question.cloud((1, 2, 3))
    weights = side_weights(question.device.log_mass, question.cloud.log_mass)
    device, cloud = (truncate(probs, preset.probs.truncation) for probs in whole)
    distance = np.abs(mixture(device, cloud, weights) - mixture(*whole, weights)).sum() / 2
    bias = positions(preset, question, seed=1)[0].bias
    assert bias == pytest.approx(distance, rel=1e-2), "float16 rounds too"


def test_the_outcome_is_that_of_all_random_choices() -> None:
    weights = Weights(Fraction(1, 4), Fraction(3, 4))
    device, cloud = fractions([5, 1, 2]), fractions([1, 3, 4])
    for preset in sending(1):
        exact = replace(preset, probs=replace(preset.probs, precision="float32"))
        drawn = [truncate(probs, exact.probs.truncation) for probs in (device, cloud)]
        found = outcome(exact, [probs.astype(np.float64) for probs in drawn], Weights(0.25, 0.75))
        if exact.probs.head:

            def token(rng: RandomSource) -> int:
                return decided(exact.probs, device, cloud, weights, rng)[1].token_id  # noqa: B023

            wanted = [float(outcome_probs(token)[number]) for number in range(3)]
        else:
            wanted = [float(share) for share in mixture(drawn[0], drawn[1], weights)]
        assert found.tolist() == pytest.approx(wanted)


def test_goals_are_about_the_shipped_size() -> None:
    rows = [
        make_row(preset=name, entries=entries, draft_bytes=200.0, tpot_s=0.1, bias_largest=bias)
        for entries in (SHIPPED, WHOLE)
        for name, bias in (("dragon", 1e-8), (CUT, 0.3))
    ]
    assert all(goal.met for goal in goals(rows))
    biased = [row | {"bias_largest": 1e-3} for row in rows]
    assert not all(goal.met for goal in goals(biased))
