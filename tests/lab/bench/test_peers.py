"""Figures of peers: what a link adds to an answer of theirs, and what ours is held against."""

import os
from collections.abc import Coroutine
from typing import Any

import pytest

from lab.bench.harness.report import Report
from lab.bench.harness.suite import Suite
from lab.bench.speculation import peer_configurations
from lab.bench.speculation.generation_sums import GenerationSums, add_timings
from lab.bench.speculation.peer_configurations import PeerConfiguration, TandemConfiguration
from lab.bench.speculation.peers import (
    GGUF_PAIR,
    LLAMACPP,
    TORCH,
    Contender,
    add_table,
)
from lab.machine import pinned, this_machine, usable_cores
from tandem.generation.client import Generated

ANSWER = {
    **{"tokens": 40, "duration_s": 2.0, "decoding_s": 1.5, "first_s": [0.25, 0.25]},
    **{"target_passes": 20, "drafted": 40},
}
"""Of two prompts: 20 tokens a second."""


def configured(policy: Any, methods: tuple[str, str, str] = LLAMACPP) -> PeerConfiguration:
    return PeerConfiguration(None, 2, policy, 0.0, methods, answers=[ANSWER])  # type: ignore[arg-type]


@pytest.mark.parametrize(("far", "speed"), [(True, 40 / 2.5), (False, 20.0)])
def test_an_answer_of_a_peer_behind_a_link_takes_a_round_trip_more(far: bool, speed: float) -> None:
    row = Contender(configured(None), "llamacpp", far).row(rtt_s=0.25, seed=3)
    assert row["tokens_per_s"] == pytest.approx(speed)
    assert row["ttft_s"] == (0.5 if far else 0.25)
    assert (row["method"], row["rtt_s"], row["seed"]) == ("llamacpp-plain", 0.25, 3)


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="no core pinning on this system")
def test_who_asks_one_of_several_suites_is_on_that_one_s_edge(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It stayed on the cores of the suite that was started last, which may be all."""
    core, found = usable_cores()[0], list[set[int]]()

    def run_loop(asking: Coroutine[Any, Any, None]) -> list[Generated]:
        asking.close()
        found.append(os.sched_getaffinity(0))
        return []

    monkeypatch.setattr(peer_configurations, "run_loop", run_loop)
    with pinned(*usable_cores()):
        for cores in ((core,), usable_cores(), (core,)):
            suite = Suite("nobody:1", (), (), cores)
            TandemConfiguration(suite, "ar", None, 0.0).take_turn(["a"], 4, seed=1)
    assert found == [{core}, set(usable_cores()), {core}]


def row(method: str, engine: str, tokens_per_s: float, preset: str | None = None) -> dict[str, Any]:
    return {"method": method, "engine": engine, "tokens_per_s": tokens_per_s, "preset": preset}


def test_ours_is_held_against_the_best_of_each_with_the_same_models() -> None:
    report = Report("peers", 1, True, this_machine(), "tandem bench peers")
    rows = [
        row("ar", TORCH, 900.0, "ar"),
        row("coupled", TORCH, 30.0, "coupled"),
        row("coupled", GGUF_PAIR, 80.0, "coupled"),
        row("hf-plain", TORCH, 20.0),
        row("hf-lookup", TORCH, 15.0),
        row("llamacpp-plain", "llamacpp", 1000.0),
        row("llamacpp-speculative", "llamacpp", 100.0),
    ]
    add_table(report, rows, temperature=0.0, rtt_s=0.0)
    found = {goal.name: (goal.figure, goal.limit) for goal in report.goals}
    assert found == {
        "temperature 0: coupled (torch) ÷ hf-plain, tokens/s": (1.5, 1.3),
        "temperature 0: coupled (llamacpp) ÷ llamacpp-speculative, tokens/s": (0.8, 1.0),
    }
    assert [each["ratio_to_hf"] for each in report.rows[1:4]] == [1.5, 4.0, 1.0]


def test_ours_stands_beside_a_cloud_that_drafts_itself_with_the_same_engine() -> None:
    """That is no goal of ours with an edge, and no row of a peer is compared with it."""
    report = Report("peers", 1, True, this_machine(), "tandem bench peers")
    rows = [
        row("ar", TORCH, 20.0, "ar"),
        row("cloud-draft", TORCH, 40.0, "cloud-draft"),
        row("coupled", TORCH, 30.0, "coupled"),
        row("coupled", GGUF_PAIR, 80.0, "coupled"),
        row("hf-plain", TORCH, 20.0),
    ]
    add_table(report, rows, temperature=0.0, rtt_s=0.0)
    assert [each["ratio_to_cloud"] for each in rows] == [0.5, 1.0, 0.75, None, None]
    assert [goal.figure for goal in report.goals] == [1.5]


def test_what_llama_cpp_s_server_tells_becomes_sums() -> None:
    sums = GenerationSums()
    timings = {"predicted_n": 64, "predicted_ms": 500.0, "prompt_ms": 250.0}
    add_timings(sums, {"timings": timings}, 0.875)
    drafted = timings | {"draft_n": 80, "draft_n_accepted": 44}
    add_timings(sums, {"timings": drafted}, 0.125)
    assert sums == GenerationSums(128, 1.0, 1.0, [0.25, 0.25], 64 + 20, 80)


def test_the_target_alone_is_held_against_llama_cpp_s_with_the_same_threads() -> None:
    ours, bare = (
        {"method": method, "engine": "llamacpp", "preset": preset, "tokens_per_s": speed}
        for method, preset, speed in (("ar", "ar", 9.0), ("llamacpp-plain", None, 10.0))
    )
    report = Report("peers", 1, True, this_machine(), "tandem bench peers")
    rows = [ours | {"threads": "2 shared"}, ours | {"threads": "1 + 1"} | {"tokens_per_s": 99.0}]
    add_table(report, [*rows, bare | {"threads": 2}, bare | {"threads": 1}], 0.0, 0.0)
    (goal,) = [goal for goal in report.goals if "ar (llamacpp) ÷ llamacpp-plain" in goal.name]
    assert (goal.figure, goal.met) == (0.9, False)
