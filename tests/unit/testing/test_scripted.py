"""The scripted engine: its distributions are those of its function."""

import subprocess
import sys

import numpy as np
import pytest

from tandem.backends.interface import KV_BLOCK, ForwardRequest
from tandem.core.errors import InvalidArgument
from tandem.testing.scripted import ScriptedEngine, noisy_probs, scripted_pair, scripted_probs

SIZE = 13


def test_logits_are_the_logarithm_of_the_distribution_after_each_token() -> None:
    def probs(context: tuple[int, ...]) -> list[float]:
        return [0.0 if token in context else 1.0 / (4 - len(set(context))) for token in range(4)]

    engine = ScriptedEngine(4, probs)
    session = engine.open(8)
    (logits,) = engine.forward([ForwardRequest(session, (2, 0), 2)])
    with np.errstate(divide="ignore"):
        wanted = np.log([[1 / 3, 1 / 3, 0.0, 1 / 3], [0.0, 0.5, 0.0, 0.5]])
    assert np.allclose(logits, wanted)


def test_the_distribution_depends_on_seed_and_last_tokens_only() -> None:
    probs = scripted_probs(5, SIZE, order=2)
    assert np.array_equal(probs((1, 2, 3)), probs((9, 2, 3)))
    assert not np.allclose(probs((1, 2, 3)), probs((1, 3, 2)))
    assert np.array_equal(probs((4,)), scripted_probs(5, SIZE, order=2)((4,)))
    assert not np.allclose(probs((4,)), scripted_probs(6, SIZE, order=2)((4,)))
    assert np.array_equal(
        scripted_probs(5, SIZE, order=0)((1,)), scripted_probs(5, SIZE, order=0)(())
    )


def test_noise_sets_the_acceptance_rate() -> None:
    target, unrelated = scripted_probs(1, SIZE), scripted_probs(2, SIZE)
    context = (3, 4)
    for noise, least in ((0.0, 1.0), (0.3, 0.7), (1.0, 0.0)):
        draft = np.asarray(noisy_probs(target, unrelated, noise)(context))
        accepted = np.minimum(draft, np.asarray(target(context))).sum()
        assert least - 1e-12 <= accepted <= 1.0 + 1e-12
    with pytest.raises(InvalidArgument, match="noise"):
        noisy_probs(target, unrelated, 1.5)


def test_neither_torch_nor_transformers_is_needed() -> None:
    """The aggregator's image holds neither."""
    program = (
        "import sys; sys.modules['torch'] = sys.modules['transformers'] = None\n"
        "import tandem.backends.interface, tandem.testing.paced, tandem.testing.scripted"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (0, b"")


def test_a_session_goes_on_from_copies_of_another() -> None:
    engine, _ = scripted_pair(0.3)
    text = tuple(number % 200 for number in range(2 * KV_BLOCK + 3))
    first, second = engine.open(len(text)), engine.open(len(text))
    (whole,) = engine.forward([ForwardRequest(first, text, 1)])
    assert engine.kv_copies is not None
    copies = engine.kv_copies.copy(first, 0, 2 * KV_BLOCK)
    first.close()
    engine.kv_copies.paste(second, copies)
    (rest,) = engine.forward([ForwardRequest(second, text[2 * KV_BLOCK :], 1)])
    assert np.array_equal(whole, rest)
    with pytest.raises(InvalidArgument, match="length"):
        engine.kv_copies.paste(second, copies)
    with pytest.raises(InvalidArgument, match="length"):
        engine.kv_copies.paste(engine.open(KV_BLOCK), copies)
    with pytest.raises(InvalidArgument, match="length"):
        engine.kv_copies.copy(second, 0, 3 * KV_BLOCK)
    with pytest.raises(InvalidArgument, match="session"):
        engine.kv_copies.copy(first, 0, KV_BLOCK)
