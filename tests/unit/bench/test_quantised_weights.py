"""Ratios of decoding steps that were measured in turns."""

import pytest

from bench.speculation.quantised_weights import paired_ratio, step_rows

QUIET = {"float32": [4.0, 4.1, 9.0], "int8": [2.0, 2.1, 2.2]}


def test_a_ratio_is_of_the_bursts_of_one_turn() -> None:
    slow = {name: [10 * step for step in steps] for name, steps in QUIET.items()}
    turns = {name: [QUIET[name], slow[name], slow[name]] for name in QUIET}
    assert paired_ratio(turns, "int8", "float32") == pytest.approx(2.1 / 4.1)


def test_load_that_meets_one_burst_does_not_count() -> None:
    turns = {"float32": [[4.0]] * 3, "int8": [[2.0], [8.0], [2.0]]}
    assert paired_ratio(turns, "int8", "float32") == 0.5
    float32, int8 = step_rows(turns, seed=1)
    assert (float32["step_ratio"], int8["step_ratio"]) == (1.0, 0.5)
    assert (int8["step_median_s"], int8["step_fastest_s"]) == (2.0, 2.0)
