"""The experiment on early exits with several clients, small: scripted distributions."""

from __future__ import annotations

import pytest

from lab.bench.speculation.exit_clients import client_rows
from lab.bench.speculation.methods_grid import Question
from tandem.core.probs import SamplingParams
from tandem.testing.scripted import ScriptedEngine, noisy_probs, scripted_probs
from tandem.testing.simulation.model_pair import SimulatedPair, simulated_pair

VOCABULARY = 40
PROBS = scripted_probs(1, VOCABULARY, sharpness=20.0)
OTHERS = [scripted_probs(seed, VOCABULARY, sharpness=20.0) for seed in (2, 3, 4)]
ASKED = [Question((1, 2, 3), seed, 0) for seed in range(3)]


@pytest.fixture(scope="module")
def pair() -> SimulatedPair:
    exits = [
        noisy_probs(PROBS, other, noise)
        for other, noise in zip(OTHERS, (0.6, 0.3, 0.1), strict=True)
    ]
    target = ScriptedEngine(VOCABULARY, PROBS, exit_distributions=exits)
    draft = ScriptedEngine(VOCABULARY, noisy_probs(PROBS, OTHERS[0], 0.3))
    return simulated_pair(draft, target, SamplingParams())


def test_clients_of_one_verifier_have_a_row_for_each_method(pair: SimulatedPair) -> None:
    rows = client_rows(pair, ASKED[:2], 8, seed=0)
    assert {row["clients"] for row in rows} == {1, 2, 4, 8}
    assert {row["preset"] for row in rows} == {
        *("dssd", "fsd, 1 exits", "fsd, 2 exits", "fsd, 3 exits"),
    }
    assert all(row["speedup"] == 1 for row in rows if row["preset"] == "dssd")
