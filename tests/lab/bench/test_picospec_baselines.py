"""PicoSpec's baselines in virtual time: split inference, and Fast Verification as published."""

from __future__ import annotations

from dataclasses import replace

import pytest

from lab.bench.papers.picospec_tables import (
    EDGE_BYTES_PER_S,
    MBPS,
    PAIRS,
    PUBLISHED,
    SPLIT_HALF,
    SPLIT_LAYERS,
    picospec_variants,
)
from lab.simulation.answer_figures import answers_figures
from tandem.specdec.presets import PRESETS, Preset
from tandem.testing.simulation.answer import simulate_answer
from tandem.testing.simulation.declared_pair import declared_pair


@pytest.mark.parametrize("name", PAIRS)
def test_split_inference_takes_its_layers_and_the_way_of_a_state(name: str) -> None:
    """But for the heads of frames, which are not counted here."""
    pair = PAIRS[name]
    conditions = replace(pair.conditions, times=pair.split_times)
    pair_of_words = declared_pair(0.0, seed=1)
    answer = simulate_answer(SPLIT_HALF, pair_of_words, conditions, (1, 2, 3), 24, seed=1)
    share = SPLIT_LAYERS / pair.layers
    edge_s = share * pair.weights_bytes / EDGE_BYTES_PER_S
    link_s = pair.rtt_s + pair.hidden_bytes / (MBPS * 1e6 / 8)
    expected_s = edge_s + link_s + (1 - share) * pair.times.verify_first_s
    assert answer.tpot_s == pytest.approx(expected_s, rel=0.01)
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

    variants = picospec_variants(PRESETS["picospec"].with_draft_length(4))
    chosen = {name: replace(one, uplink_precision="float16") for name, one in variants.items()}
    names = ("w/o Fast-verify", PUBLISHED, "picospec")
    without, published, ours = (figures(chosen[name]) for name in names)
    assert ours[0] < published[0] < without[0]
    assert without[1] < ours[1] < published[1]
