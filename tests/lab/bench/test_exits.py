"""The experiment on early exits, small: scripted distributions in virtual time, and a few real
passes."""

from lab.bench.speculation.exit_cost import measure_exits
from lab.bench.speculation.exits import _by_exits, _by_order, _goals
from lab.bench.speculation.methods_grid import Question
from tandem.core.probs import SamplingParams
from tandem.testing.scripted import ScriptedEngine, noisy_probs, scripted_probs
from tandem.testing.simulation.model_pair import simulated_pair

VOCABULARY = 40
PROBS = scripted_probs(1, VOCABULARY, sharpness=20.0)
OTHERS = [scripted_probs(seed, VOCABULARY, sharpness=20.0) for seed in (2, 3, 4)]


def target() -> ScriptedEngine:
    exits = [
        noisy_probs(PROBS, other, noise)
        for other, noise in zip(OTHERS, (0.5, 0.4, 0.3), strict=True)
    ]
    return ScriptedEngine(VOCABULARY, PROBS, exit_distributions=exits)


def test_the_miss_rate_falls_with_the_number_of_exits() -> None:
    draft = ScriptedEngine(VOCABULARY, noisy_probs(PROBS, OTHERS[0], 0.3))
    pair = simulated_pair(draft, target(), SamplingParams())
    asked = [Question((1, 2, 3), seed, 0) for seed in range(3)]
    rows = _by_exits(pair, asked, 40, seed=0)
    assert [row["exits"] for row in rows] == [0, 1, 2, 3] * 2
    for first in (0, 4):
        rates = [row["undrafted_rate"] for row in rows[first + 1 : first + 4]]
        assert rates[0] > rates[-1]
        assert max(row["speedup"] for row in rows[first : first + 4]) > 1.0
    orders = _by_order(pair, asked[:1], 12, seed=0)
    assert len({(r["edge_order"], r["cloud_order"], r["workers"]) for r in orders}) == 18
    costs = [
        {"target": "random", "exits": 4, "distributions": False, "added": 0.07},
    ]
    goals = _goals(costs, rows)
    assert [goal.met for goal in goals if "not drafted for" in goal.name] == [True, True]


def test_costs_have_a_row_per_number_of_exits() -> None:
    rows = measure_exits("scripted", target(), 0.5, passes=2, seed=0)
    assert [(row["exits"], row["distributions"]) for row in rows] == [
        *((count, False) for count in range(3)),
        (3, False),
        (3, True),
    ]
    assert rows[0]["added"] == 0
    assert all(row["pass_s"] > 0 for row in rows)
