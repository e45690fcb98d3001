"""PicoSpec's baselines in virtual time: split inference, and Fast Verification as published."""

from __future__ import annotations

from dataclasses import replace

import pytest

from lab.bench.papers.picospec_tables import EDGE_BYTES_PER_S, PAIRS, SPLIT_HALF, SPLIT_LAYERS
from lab.bench.papers.picospec_verification import NONE, OURS, PUBLISHED, presets
from lab.simulation.answer_figures import answers_figures
from tandem.specdec.presets import PRESETS, Preset
from tandem.testing.simulation.answer import simulate_answer
from tandem.testing.simulation.declared_pair import declared_pair


@pytest.mark.parametrize("name", PAIRS)
def test_split_inference_takes_what_its_formula_says(name: str) -> None:
    """Of each token a hidden state goes up, and the next token comes down; its first layers run at
    the edge, the others in the cloud (§4.2). The heads of frames are not counted."""
    pair = PAIRS[name]
    conditions = replace(pair.conditions, times=pair.split_times)
    pair_of_words = declared_pair(0.0, seed=1)
    answer = simulate_answer(SPLIT_HALF, pair_of_words, conditions, (1, 2, 3), 24, seed=1)
    edge_share = SPLIT_LAYERS / pair.layers
    edge_s = edge_share * pair.weights_bytes / EDGE_BYTES_PER_S
    cloud_s = (1 - edge_share) * pair.times.verify_first_s
    tpot_s = edge_s + pair.link.communication_s(pair.hidden_bytes, 0.0) + cloud_s
    assert answer.tpot_s == pytest.approx(tpot_s, rel=0.01)
    assert answer.uplink_bytes > 26 * pair.hidden_bytes
    alone = simulate_answer(PRESETS["ar"], pair_of_words, pair.conditions, (1, 2, 3), 24, seed=1)
    assert answer.token_ids == alone.token_ids


def test_preparing_costs_passes_and_judging_on_arrival_fewer() -> None:
    """At the Qwen pair's times, with drafts that are accepted two times in three."""
    conditions = PAIRS["Qwen"].conditions

    def figures(preset: Preset) -> tuple[float, float]:
        answers = [
            simulate_answer(preset, declared_pair(0.65, seed=seed), conditions, (1, 2, 3), 64, seed)
            for seed in range(3)
        ]
        found = answers_figures(answers)
        return float(found["tpot_s"]), float(found["target_passes_per_token"])

    schemes = {name: replace(one, uplink_precision="float16") for name, one in presets().items()}
    without, published, ours = (figures(schemes[name]) for name in (NONE, PUBLISHED, OURS))
    assert ours[0] < published[0] < without[0]
    assert without[1] < ours[1] < published[1]
