"""Rounds that are chosen while an answer is written, through both machines and over links of two
directions: about as fast as the best fixed ones, and distributed as the target model's."""

from __future__ import annotations

from dataclasses import replace

import pytest

from lab.simulation.answer import Conditions, SimulatedAnswer, simulate_answer
from lab.simulation.declared_pair import declared_pair
from lab.simulation.model_pair import SimulatedPair
from lab.simulation.simulator import ModelTimes
from lab.simulation.spread_pair import spread_pair
from tandem.core.probs import Truncation
from tandem.netem.link_model import shape_from
from tandem.specdec.presets import PRESETS, Preset

TOKENS = 120
NARROW = (1.0, 10.0)
WIDE = (100.0, 100.0)
"""10⁶ bit/s up and down."""


def answer_of(
    preset: Preset,
    pair: SimulatedPair,
    link: tuple[float, float],
    rtt_s: float,
    *,
    tokens: int = TOKENS,
    words: int | None = 32_000,
) -> SimulatedAnswer:
    shape = shape_from(rtt_s, mbps_up=link[0], mbps_down=link[1])
    conditions = Conditions(ModelTimes(), link=shape, padded_vocabulary=words)
    return simulate_answer(preset, pair, conditions, (1, 2), tokens, seed=3)


def seconds(preset: Preset, pair: SimulatedPair, link: tuple[float, float], rtt_s: float) -> float:
    answer = answer_of(preset, pair, link, rtt_s)
    assert answer.tpot_s is not None
    return answer.tpot_s


@pytest.mark.parametrize(
    ("name", "link", "rtt_s", "rate", "best", "worse"),
    [
        ("dsd", NARROW, 0.03, 0.6, 1, 4),
        ("dssd", NARROW, 0.3, 0.9, 10, 4),
        ("coupled", WIDE, 0.0, 0.3, 1, 4),
    ],
)
def test_a_draft_length_that_fits_the_link_is_found(
    name: str, link: tuple[float, float], rtt_s: float, rate: float, best: int, worse: int
) -> None:
    pair = declared_pair(rate, seed=3, vocabulary_size=64)
    preset = PRESETS[name].adaptive()
    chosen_s = seconds(preset, pair, link, rtt_s)
    best_s = seconds(preset.with_draft_length(best), pair, link, rtt_s)
    assert chosen_s < 1.1 * best_s
    assert chosen_s < 0.97 * seconds(preset.with_draft_length(worse), pair, link, rtt_s)


def test_fewer_entries_are_kept_over_a_narrow_uplink() -> None:
    """Of 2048 words; a hundred bytes take a millisecond."""
    pair = spread_pair(0.7, seed=3, vocabulary_size=2048)
    preset = replace(
        PRESETS["tslt"].adaptive(), adapts_rounds=False, truncation=Truncation(top_k=1280)
    )
    bytes_per_draft = []
    for link in ((0.2, 10.0), WIDE):
        answer = answer_of(preset, pair, link, 0.03, tokens=80, words=None)
        bytes_per_draft.append(answer.uplink_bytes / answer.stats.drafted)
    assert bytes_per_draft[0] < 1200
    assert bytes_per_draft[1] > 2000


def test_a_set_draft_length_and_truncation_stay_as_they_are() -> None:
    pair = spread_pair(0.5, seed=3, vocabulary_size=512)
    fixed = replace(PRESETS["tslt"].fixed(), truncation=Truncation(top_k=16)).with_draft_length(3)
    answer = answer_of(fixed, pair, NARROW, 0.1, tokens=40, words=None)
    assert answer.uplink_bytes / answer.stats.drafted < 100
    assert len(answer.stats.acceptance_histogram) == 1 + 3


def test_rounds_grow_beyond_the_first_ones() -> None:
    pair = declared_pair(0.97, seed=3, vocabulary_size=64)
    answer = answer_of(PRESETS["coupled"], pair, WIDE, 0.3)
    assert len(answer.stats.acceptance_histogram) > 1 + 8


def test_the_text_of_coupled_rounds_is_that_of_the_cloud_alone() -> None:
    pair = spread_pair(0.6, seed=3, vocabulary_size=256)
    texts = {
        answer_of(PRESETS[name], pair, link, rtt_s, words=None).token_ids
        for name in ("ar", "coupled")
        for link, rtt_s in ((NARROW, 0.3), (WIDE, 0.0))
    }
    assert len(texts) == 1


def test_a_tree_is_wide_where_second_candidates_are_right_and_a_chain_where_they_are_not() -> None:
    drafted = []
    for second_rate in (0.0, 1.0):
        pair = declared_pair(0.5, seed=3, vocabulary_size=64, second_rate=second_rate)
        answer = answer_of(PRESETS["mc-dsd"].adaptive(), pair, WIDE, 0.1)
        drafted.append(answer.stats.accepted / answer.stats.rounds)
    assert drafted[1] > drafted[0]
