"""The scripted engine: its laws are those of its function."""

import subprocess
import sys

import numpy as np
import pytest

from tandem.core.errors import InvalidArgument
from tandem.engine.base import Segment
from tandem.engine.scripted import ScriptedEngine, noisy_law, scripted_law

SIZE = 13


def test_logits_are_the_logarithm_of_the_law_after_each_token() -> None:
    def law(context: tuple[int, ...]) -> list[float]:
        return [0.0 if token in context else 1.0 / (4 - len(set(context))) for token in range(4)]

    engine = ScriptedEngine(4, law)
    session = engine.open(8)
    (logits,) = engine.forward([Segment(session, (2, 0), 2)])
    with np.errstate(divide="ignore"):
        wanted = np.log([[1 / 3, 1 / 3, 0.0, 1 / 3], [0.0, 0.5, 0.0, 0.5]])
    assert np.allclose(logits, wanted)


def test_the_law_depends_on_seed_and_last_tokens_only() -> None:
    law = scripted_law(5, SIZE, order=2)
    assert np.array_equal(law((1, 2, 3)), law((9, 2, 3)))
    assert not np.allclose(law((1, 2, 3)), law((1, 3, 2)))
    assert np.array_equal(law((4,)), scripted_law(5, SIZE, order=2)((4,)))
    assert not np.allclose(law((4,)), scripted_law(6, SIZE, order=2)((4,)))
    assert np.array_equal(scripted_law(5, SIZE, order=0)((1,)), scripted_law(5, SIZE, order=0)(()))


@pytest.mark.parametrize("sharpness", [0.0, 1.0, 30.0])
def test_laws_sum_to_one(sharpness: float) -> None:
    law = np.asarray(scripted_law(1, SIZE, sharpness=sharpness)((3, 4)))
    assert law.sum() == pytest.approx(1.0, abs=1e-12)
    assert law.min() > 0.0
    assert law.max() / law.min() <= np.exp(sharpness) * (1 + 1e-9)


def test_noise_sets_the_acceptance_rate() -> None:
    target, unrelated = scripted_law(1, SIZE), scripted_law(2, SIZE)
    context = (3, 4)
    for noise, least in ((0.0, 1.0), (0.3, 0.7), (1.0, 0.0)):
        draft = np.asarray(noisy_law(target, unrelated, noise)(context))
        accepted = np.minimum(draft, np.asarray(target(context))).sum()
        assert least - 1e-12 <= accepted <= 1.0 + 1e-12
    with pytest.raises(InvalidArgument, match="noise"):
        noisy_law(target, unrelated, 1.5)


def test_a_law_of_the_wrong_length_is_refused() -> None:
    engine = ScriptedEngine(3, lambda _: [0.5, 0.5])
    with pytest.raises(InvalidArgument, match="law"):
        engine.forward([Segment(engine.open(4), (1,), 1)])


def test_neither_torch_nor_transformers_is_needed() -> None:
    """The aggregator's image holds neither."""
    program = (
        "import sys; sys.modules['torch'] = sys.modules['transformers'] = None\n"
        "import tandem.engine.base, tandem.engine.paced, tandem.engine.scripted"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (0, b"")
