"""The experiment on exits that are chosen while an answer runs, small: scripted distributions."""

from __future__ import annotations

import pytest

from lab.bench.speculation.exit_choice import (
    CHOICE_LIMIT,
    Case,
    choice_rows,
    client_rows,
    fixed_exits,
)
from lab.bench.speculation.methods_grid import Question
from lab.simulation.model_pair import SimulatedPair, simulated_pair
from tandem.core.probs import SamplingParams
from tandem.specdec.presets import PRESETS
from tandem.testing.scripted import ScriptedEngine, noisy_probs, scripted_probs
from tests.long_runs import LONG

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


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(Case("30 ms", "slow draft", 0.02), marks=LONG),
        pytest.param(Case("30 ms", "quick draft", 0.2), marks=LONG),
        Case("30 ms, 0.05 Mbit/s", "slow draft", 0.02),
    ],
    ids=lambda case: f"{case.link}, {case.draft}, {case.exit_share}",
)
def test_what_is_chosen_is_about_as_fast_as_the_best_fixed_choice(
    pair: SimulatedPair, case: Case
) -> None:
    (row,) = choice_rows(pair, ASKED[:2], 160, [case], seed=0)
    assert row["of_best"] >= CHOICE_LIMIT


def test_exits_that_never_pay_are_read_now_and_then(pair: SimulatedPair) -> None:
    (row,) = choice_rows(pair, ASKED[:1], 96, [Case("30 ms", "quick draft", 0.5)], seed=0)
    assert row["best_fixed"] == "0"
    assert row["early_verdicts"] < 1.0


def test_clients_of_one_verifier_have_a_row_for_each_method(pair: SimulatedPair) -> None:
    rows = client_rows(pair, ASKED[:2], 8, seed=0)
    assert {row["clients"] for row in rows} == {1, 2, 4, 8}
    assert {row["preset"] for row in rows} == {
        *("dssd", "fsd, 1 exits", "fsd, 2 exits", "fsd, 3 exits", "fsd"),
    }
    assert all(row["speedup"] == 1 for row in rows if row["preset"] == "dssd")


def test_fixed_exits_are_those_of_the_preset_that_chooses() -> None:
    assert PRESETS["fsd"].chooses_exits
    assert not fixed_exits(2).chooses_exits
    fixed_exits(0).validate()
