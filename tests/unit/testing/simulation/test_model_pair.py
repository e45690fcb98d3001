"""Distributions of engines as functions of a context: right in any order, each computed once."""

import random
from collections.abc import Callable, Sequence

import numpy as np
import pytest

from tandem.backends.interface import ForwardRequest, Logits, never
from tandem.core.errors import InvalidArgument
from tandem.core.probs import SamplingParams
from tandem.testing.scripted import ScriptedEngine, scripted_probs
from tandem.testing.simulation.model_pair import EngineDistributions

PROBS = scripted_probs(3, 8, sharpness=4.0)


class CountingEngine(ScriptedEngine):
    """Counts tokens fed."""

    fed = 0

    def forward(
        self, batch: Sequence[ForwardRequest], cancelled: Callable[[], bool] = never
    ) -> list[Logits]:
        self.fed += sum(len(request.token_ids) for request in batch)
        return super().forward(batch, cancelled)


def test_distributions_are_the_engines_own_in_any_order() -> None:
    distributions = EngineDistributions(
        ScriptedEngine(8, PROBS), SamplingParams(temperature=0.5), probs_kept=5
    )
    source = random.Random(1)
    for _ in range(60):
        context = tuple(source.choices(range(2), k=source.randint(1, 6)))
        squared = np.square(np.asarray(PROBS(context)))
        assert distributions(context) == pytest.approx(squared / squared.sum(), abs=1e-6)


def test_a_context_is_fed_once_and_a_prefix_not_again() -> None:
    engine = CountingEngine(8, PROBS)
    distributions = EngineDistributions(engine, SamplingParams())
    first = distributions((1, 2, 3))
    assert engine.fed == 3
    distributions((1, 2, 3, 4))
    assert engine.fed == 4
    distributions((1, 2, 5))
    assert engine.fed == 5
    assert distributions((1, 2, 3)) is first
    assert engine.fed == 5
    with pytest.raises(ValueError, match="read-only"):
        first[0] = 1


def test_a_context_beyond_the_models_is_refused() -> None:
    distributions = EngineDistributions(
        ScriptedEngine(8, PROBS, context_length=4), SamplingParams()
    )
    distributions((1, 2, 3, 4))
    with pytest.raises(InvalidArgument):
        distributions((1, 2, 3, 4, 5))
