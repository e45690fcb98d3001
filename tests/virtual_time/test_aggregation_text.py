"""Texts of answers from two sides, token by token: what one machine with all documents says.

Since a token follows from drafts, distributions and seed alone, no link, fault, side or move may
change it.
"""

import random
from dataclasses import replace
from typing import Any

import pytest

from tandem.core.processors import Processors
from tandem.core.stopping import FinishReason
from tandem.netem.link_model import link_from
from tandem.specdec.liveness import LivenessTimes, LostCloud
from tandem.testing.simulation.virtual_time import Faults
from tandem.two_sided.protocol.mixture import Side
from tandem.two_sided.protocol.presets import AGGREGATION_PRESETS, Sources
from tests.composed_presets import composed
from tests.long_runs import LONG
from tests.virtual_time.cases import faults_of
from tests.virtual_time.two_sides import (
    central_answer,
    chosen,
    documents,
    factors_of,
    processed,
    request_for,
    run_sides,
)

EXACT = [
    *("dragon-device", "dragon placement=cloud", "dragon placement=random", "drdg-tw"),
    "dragon-coupled",
]
SIDES = documents(12, seed=2, sharpness=3.0)
PROCESSORS = Processors(
    logit_bias=((3, 2.0), (5, -3.0)), frequency_penalty=1.5, banned_token_ids=(0, 7)
)


def halved(*values: float) -> list[Any]:
    """Each preset with each of two values: in `make test` with one of them, in turn."""
    return [
        pytest.param(name, value, marks=[LONG] if (number + place) % 2 else [])
        for number, name in enumerate(EXACT)
        for place, value in enumerate(values)
    ]


@pytest.mark.parametrize("name", EXACT)
def test_no_fault_link_or_move_changes_a_text(name: str) -> None:
    for seed in range(12):
        request = request_for(chosen(name), SIDES, seed, max_tokens=12)
        result = run_sides(request, SIDES, faults=faults_of(seed, span_s=1.0))
        assert result.token_ids == central_answer(request, SIDES), seed


@pytest.mark.parametrize("name", ["dragon placement=random", "drdg-tw"])
def test_so_it_is_with_more_tokens_than_a_draft_names(name: str) -> None:
    sides = documents(150, seed=3, sharpness=1.5)
    beyond = 0
    for seed in range(6):
        request = request_for(composed(name), sides, seed, max_tokens=10)
        result = run_sides(request, sides, faults=faults_of(seed, span_s=1.0))
        assert result.token_ids == central_answer(request, sides), seed
        context = request.prompt_ids
        for token in result.token_ids:
            rank = (sides.cloud_probs(context) > sides.cloud_probs(context)[token]).sum()
            beyond += rank >= request.preset.probs.head
            context = (*context, token)
    assert beyond > 5, "tokens that the cloud does not name"


@pytest.mark.parametrize(("name", "rtt_s"), halved(0.0, 0.1))
def test_at_temperature_0_the_text_is_the_mixtures_argmax(name: str, rtt_s: float) -> None:
    """Short lists, so that some must be fetched."""
    sides = documents(24, seed=5, sharpness=3.0, likeness=0.4)
    source, fetches = random.Random(7), 0
    for seed in range(18):
        prompt_ids = tuple(source.randrange(24) for _ in range(3))
        preset = chosen(name, top=3)
        request = request_for(
            preset, sides, seed, temperature=0, prompt_ids=prompt_ids, max_tokens=8
        )
        result = run_sides(request, sides, link=link_from(rtt_s))
        assert result.token_ids == central_answer(request, sides), seed
        fetches += sum(stats.fetches for stats in result.stats.values())
    assert fetches > 0


@pytest.mark.parametrize(("name", "temperature"), halved(0.0, 1.0))
def test_so_it_is_where_the_weights_change(name: str, temperature: float) -> None:
    sides = replace(SIDES, reweigh_every=4)
    others = 0
    for seed in range(8):
        preset = chosen(name, reweigh_every=4)
        request = request_for(preset, sides, seed, temperature=temperature, max_tokens=14)
        result = run_sides(request, sides, faults=faults_of(seed, span_s=1.0))
        assert result.token_ids == central_answer(request, sides), seed
        others += result.token_ids != central_answer(request, SIDES)
    assert others, "the weights matter"


@pytest.mark.parametrize(("name", "temperature"), halved(0.0, 1.0))
def test_so_it_is_of_the_processed_mixture(name: str, temperature: float) -> None:
    """The state of the processors is the committed text: cuts and rollbacks change nothing."""
    after = processed(SIDES, factors_of(PROCESSORS, 12))
    for seed in range(8):
        request = request_for(
            chosen(name, top=3),
            after,
            seed,
            temperature=temperature,
            max_tokens=14,
            processors=PROCESSORS,
        )
        result = run_sides(request, after, faults=faults_of(seed, span_s=1.0))
        assert result.token_ids == central_answer(request, after), seed
        if seed == 0:
            assert result.token_ids != central_answer(request, SIDES), "the processors matter"


def test_the_aggregating_side_moves_and_nothing_is_repeated_or_lost() -> None:
    request = request_for(chosen("dragon placement=random"), SIDES, 4, max_tokens=40)
    result = run_sides(request, SIDES, link=link_from(0.06))
    assert result.token_ids == central_answer(request, SIDES)
    assert result.stats[Side.DEVICE].side_moves + result.stats[Side.CLOUD].side_moves > 10


def test_an_end_of_text_ends_both_sides() -> None:
    ended = 0
    for seed in range(24):
        for name in ("dragon placement=random", "dragon-coupled"):
            request = request_for(chosen(name), SIDES, seed, max_tokens=12, ends=frozenset({3, 4}))
            result = run_sides(request, SIDES)
            assert result.token_ids == central_answer(request, SIDES)
            ended += result.finish.reason is FinishReason.STOP
    assert ended > 12


def test_a_stop_condition_inside_a_block_ends_it_there() -> None:
    for name in EXACT:
        request = request_for(chosen(name), SIDES, 9, max_tokens=12)
        whole = central_answer(request, SIDES)
        seen: list[int] = []

        def third(token_id: int, seen: list[int] = seen) -> bool:
            seen.append(token_id)
            return len(seen) == 3

        result = run_sides(request, SIDES, completes_stop=third)
        assert result.token_ids == whole[:3]
        assert result.finish.reason is FinishReason.STOP


@pytest.mark.parametrize("name", ["dragon-device", "dragon placement=random", "dragon-coupled"])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("empty", [Side.DEVICE, Side.CLOUD])
def test_a_side_without_documents_leaves_the_other_alone(
    name: str, temperature: float, empty: Side
) -> None:
    none = float("-inf")
    masses = {"device_mass": none} if empty is Side.DEVICE else {"cloud_mass": none}
    sides = documents(12, seed=2, **masses)
    request = request_for(chosen(name), sides, 3, temperature=temperature, max_tokens=10)
    result = run_sides(request, sides, link=link_from(0.4))
    alone = "crcg-cloud" if empty is Side.DEVICE else "crcg-device"
    preset = replace(AGGREGATION_PRESETS[alone], probs=request.preset.probs)
    only = replace(request, preset=preset)
    assert result.token_ids == run_sides(only, documents(12, seed=2)).token_ids
    assert result.duration_s < 1.2, "it waits for the other side once at most"


def test_one_side_s_answers_do_not_need_the_other() -> None:
    request = request_for(chosen("crcg-device"), SIDES, 1, max_tokens=10)
    assert request.preset.sources is Sources.DEVICE
    near = run_sides(request, SIDES, link=link_from(0.0))
    far = run_sides(request, SIDES, link=link_from(5.0))
    assert (near.token_ids, near.duration_s) == (far.token_ids, far.duration_s)


def test_a_lost_cloud_leaves_the_device_alone_and_marks_what_follows() -> None:
    times = LivenessTimes(ping_after_s=0.2, dead_after_s=0.6, give_up_after_s=1.0)
    cut = Faults(cuts=((0.5, 1e9),))
    for name in ("dragon-device", "dragon placement=cloud", "dragon-coupled"):
        request = request_for(chosen(name), SIDES, 2, max_tokens=30)
        result = run_sides(
            request,
            SIDES,
            link=link_from(0.02),
            faults=cut,
            lost_cloud=LostCloud.EDGE,
            liveness_times=times,
        )
        assert len(result.token_ids) == 30
        marks = [
            mark
            for _, commit in result.commits
            for mark in [commit.unverified] * len(commit.token_ids)
        ]
        verified = marks.count(False)
        assert marks == [False] * verified + [True] * (30 - verified)
        assert 0 < verified < 30
        assert result.token_ids[:verified] == central_answer(request, SIDES)[:verified]
        assert result.stats[Side.DEVICE].unverified_tokens == 30 - verified


def test_a_lost_cloud_fails_the_request_where_the_policy_says_so() -> None:
    times = LivenessTimes(ping_after_s=0.2, dead_after_s=0.6, give_up_after_s=1.0)
    request = request_for(chosen("dragon-device"), SIDES, 2, max_tokens=30)
    result = run_sides(
        request,
        SIDES,
        faults=Faults(cuts=((0.5, 1e9),)),
        lost_cloud=LostCloud.FAIL,
        liveness_times=times,
    )
    assert result.finish.reason is FinishReason.ERROR


def test_coupled_answers_wait_least() -> None:
    """Over a long way, in virtual time: token by token, then speculative, then coupled."""
    durations = []
    for name in ("drdg-tw", "dragon-device", "dragon-coupled"):
        request = request_for(chosen(name), SIDES, 5, max_tokens=40)
        result = run_sides(request, SIDES, link=link_from(0.3), decode_s=(0.06, 0.06))
        durations.append(result.duration_s)
    assert durations[0] > 1.1 * durations[1] > 1.3 * durations[2]
