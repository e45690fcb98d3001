"""Laws of engines as functions of a context: right in any order, each computed once."""

import random
from collections.abc import Callable, Sequence

import numpy as np
import pytest

from tandem.core.errors import InvalidArgument
from tandem.core.laws import Sampling
from tandem.engine.base import Logits, Segment, never
from tandem.engine.scripted import ScriptedEngine, scripted_law
from tandem.simulation.pair_laws import EngineLaws

LAW = scripted_law(3, 8, sharpness=4.0)


class CountingEngine(ScriptedEngine):
    """Counts tokens fed."""

    fed = 0

    def forward(
        self, batch: Sequence[Segment], cancelled: Callable[[], bool] = never
    ) -> list[Logits]:
        self.fed += sum(len(segment.token_ids) for segment in batch)
        return super().forward(batch, cancelled)


def test_laws_are_the_engines_own_in_any_order() -> None:
    laws = EngineLaws(ScriptedEngine(8, LAW), Sampling(temperature=0.5), laws_kept=5)
    source = random.Random(1)
    for _ in range(60):
        context = tuple(source.choices(range(2), k=source.randint(1, 6)))
        squared = np.square(np.asarray(LAW(context)))
        assert laws(context) == pytest.approx(squared / squared.sum(), abs=1e-6)


def test_a_context_is_fed_once_and_a_prefix_not_again() -> None:
    engine = CountingEngine(8, LAW)
    laws = EngineLaws(engine, Sampling())
    first = laws((1, 2, 3))
    assert engine.fed == 3
    laws((1, 2, 3, 4))
    assert engine.fed == 4
    laws((1, 2, 5))
    assert engine.fed == 5
    assert laws((1, 2, 3)) is first
    assert engine.fed == 5
    with pytest.raises(ValueError, match="read-only"):
        first[0] = 1


def test_a_context_beyond_the_models_is_refused() -> None:
    laws = EngineLaws(ScriptedEngine(8, LAW, context_length=4), Sampling())
    laws((1, 2, 3, 4))
    with pytest.raises(InvalidArgument):
        laws((1, 2, 3, 4, 5))
