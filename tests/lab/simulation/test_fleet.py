"""The simulated fleet against the real machines in virtual time, and what it does when verifiers
fail or are added."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace
from itertools import takewhile

import pytest

from lab.simulation.answer_figures import undrafted_rate
from lab.simulation.fleet import simulate_fleet, verifiers_needed
from lab.simulation.fleet_cloud import FleetSession
from lab.simulation.fleet_plan import FleetPlan, FleetTraffic, Scaling, Spread, TrafficKind
from tandem.core.errors import InvalidArgument
from tandem.specdec.choices import CloudDrafts
from tandem.specdec.presets import PRESETS, Preset
from tandem.testing.simulation.answer import (
    Conditions,
    Question,
    simulate_answers,
    verified_acceptance,
)
from tandem.testing.simulation.declared_pair import declared_pair
from tandem.testing.simulation.model_times import ModelTimes
from tests.long_runs import LONG

TIMES = ModelTimes(0.024, 0.072, 0.003)
RTT_S = 0.04
TOKENS = 64
CHATS = FleetTraffic(
    TrafficKind.CHATS, 0.05, prompt_tokens=Spread.of(1), answer_tokens=Spread.of(TOKENS)
)
CLOUD_DRAFT = PRESETS["cloud-draft"]
BOTH = replace(PRESETS["stream"], cloud_drafts=CloudDrafts.MODEL)
SMALL = FleetPlan(PRESETS["stream"], 40, 3, FleetTraffic(per_edge_s=20.0), lasts_s=20.0, warm_s=2.0)


@pytest.mark.parametrize(
    ("preset", "sessions"),
    [
        *(("ar", 3), ("coupled", 3), ("stream", 1), ("auto", 1)),
    ],
)
def test_tokens_take_as_long_as_with_the_real_machines(preset: str, sessions: int) -> None:
    """Of edges that have answered before: the fleet's know their conditions from the start."""
    chosen, pair, conditions = (
        PRESETS[preset],
        declared_pair(0.85, seed=4),
        Conditions(TIMES, RTT_S),
    )
    firsts = [Question((n + 101,), TOKENS, n, n * 0.03) for n in range(sessions)]
    questions = [
        Question((n + 1,), TOKENS, n, n * 0.03, warm_start=before.measured)
        for n, before in enumerate(simulate_answers(chosen, pair, conditions, firsts))
    ]
    answers = simulate_answers(chosen, pair, conditions, questions)
    missed = undrafted_rate(answers)
    figures = simulate_fleet(
        FleetPlan(
            PRESETS[preset],
            sessions,
            1,
            CHATS,
            TIMES.verify_first_s,
            TIMES.verify_further_s,
            TIMES.verify_further_s,
            draft_s=Spread.of(TIMES.draft_s),
            rtt_s=Spread.of(RTT_S),
            acceptance_rate=Spread.of(verified_acceptance(answers) or 0.0),
            hit_rate=0.0 if missed is None else 1 - missed,
            lasts_s=150.0,
        )
    )
    real_s = sum(answer.tpot_s or 0.0 for answer in answers) / sessions
    assert figures.tpot_p50_s == pytest.approx(real_s, rel=0.1)


@pytest.mark.parametrize(
    ("preset", "rate"),
    [
        *((CLOUD_DRAFT, 0.4), (BOTH, 0.9)),
        *(pytest.param(*case, marks=LONG) for case in ((CLOUD_DRAFT, 0.9), (BOTH, 0.4))),
    ],
)
def test_a_cloud_that_drafts_takes_as_long_as_the_real_machine(preset: Preset, rate: float) -> None:
    conditions, tokens = Conditions(TIMES, RTT_S), 160
    question = [Question((7,), tokens, seed=5)]
    pair = declared_pair(rate, seed=4, vocabulary_size=64)
    answers = simulate_answers(preset, pair, conditions, question)
    missed = undrafted_rate(answers)
    figures = simulate_fleet(
        FleetPlan(
            preset,
            edges=1,
            verifiers=1,
            traffic=replace(CHATS, answer_tokens=Spread.of(tokens)),
            verify_first_s=TIMES.verify_first_s,
            verify_further_s=TIMES.verify_further_s,
            prompt_token_s=TIMES.verify_further_s,
            draft_s=Spread.of(TIMES.draft_s),
            rtt_s=Spread.of(RTT_S),
            acceptance_rate=Spread.of(rate),
            hit_rate=0.0 if missed is None else 1 - missed,
            lasts_s=200.0,
            cloud_draft_s=TIMES.cloud_step_s,
        )
    )
    assert figures.tpot_p50_s == pytest.approx(answers[0].tpot_s, rel=0.1)
    assert 0.02 < figures.drafting_share < 0.3


def test_drafts_that_cost_the_cloud_more_than_they_bring_are_not_made() -> None:
    plan = replace(
        FleetPlan(PRESETS["cloud-draft"], 4, 1, CHATS, cloud_draft_s=0.030),
        acceptance_rate=Spread.of(0.1),
    )
    figures = simulate_fleet(plan)
    alone = simulate_fleet(replace(plan, preset=PRESETS["ar"]))
    assert figures.drafting_share < 0.15  # now and then it tries
    assert figures.tokens_per_s == pytest.approx(alone.tokens_per_s, rel=0.15)
    assert alone.drafting_share == 0.0


def test_drafts_by_lookup_in_the_cloud_are_not_simulated() -> None:
    with pytest.raises(InvalidArgument, match="looks up"):
        simulate_fleet(
            replace(SMALL, preset=replace(PRESETS["cloud-draft"], cloud_drafts=CloudDrafts.LOOKUP))
        )


def test_the_same_seed_gives_the_same_figures() -> None:
    assert simulate_fleet(SMALL) == simulate_fleet(SMALL)
    assert simulate_fleet(SMALL) != simulate_fleet(replace(SMALL, seed=1))


def test_where_things_lie_in_memory_changes_no_figure(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sessions that leave in the same moment left in the order of a set."""
    traffic = FleetTraffic(per_edge_s=5.0, answer_tokens=Spread.of(400))
    busy = replace(SMALL, edges=60, traffic=traffic)
    plan = replace(busy, failure_s=10.0, repair_s=3.0)
    found = []
    for sign in (1, -1):
        monkeypatch.setattr(FleetSession, "__hash__", lambda it, sign=sign: sign * it.number)
        found.append(simulate_fleet(plan))
    assert found[0] == found[1]
    assert found[0].moves["lost"] > 10


def test_everybody_is_answered_though_verifiers_fail() -> None:
    """Of several seeds: in one the answers that happen to be long are half of the rest."""
    calm = [simulate_fleet(replace(SMALL, seed=seed)) for seed in range(8)]
    failing = replace(SMALL, failure_s=10.0, repair_s=3.0)
    failed = [simulate_fleet(replace(failing, seed=seed)) for seed in range(8)]
    assert all(figures.moves["lost"] > 0 for figures in failed)
    assert sum(figures.refused for figures in failed) == 0
    answered = sum(figures.answers for figures in failed)
    assert answered == pytest.approx(sum(figures.answers for figures in calm), rel=0.2)
    assert sum(f.verifiers for f in failed) < sum(f.verifiers for f in calm)


def test_a_session_that_finds_no_place_is_refused_in_the_end() -> None:
    full = simulate_fleet(replace(SMALL, max_sessions=1, verifiers=1, lasts_s=40.0))
    assert full.refused > 0
    assert full.sessions_per_pass <= 1


def test_an_autoscaler_follows_the_day() -> None:
    day = FleetTraffic(TrafficKind.DIURNAL, 20.0, day_s=160.0, answer_tokens=Spread.of(64))
    scaling = Scaling(1.0, most=6, every_s=2.0, start_s=2.0, calm_s=10.0)
    plan = replace(SMALL, edges=40, verifiers=1, traffic=day, scaling=scaling, warm_s=1.0)
    quiet = simulate_fleet(replace(plan, lasts_s=30.0))
    whole = simulate_fleet(replace(plan, lasts_s=159.0, seed=3))
    assert quiet.verifiers < 0.6 * whole.verifiers
    assert 1 < whole.verifiers < 6
    assert whole.moves["draining"] > 0
    assert whole.refused == 0


def test_as_many_verifiers_as_are_needed_and_not_one_less() -> None:
    plan = replace(SMALL, preset=PRESETS["ar"], verify_further_s=0.010, lasts_s=15.0)
    found = verifiers_needed(plan, tpot_s=0.050, ttft_s=2.0)
    assert found is not None
    count = round(found.verifiers)
    assert count > 1
    assert found.keeps(0.050, 2.0)
    assert not simulate_fleet(replace(plan, verifiers=count - 1)).keeps(0.050, 2.0)
    assert verifiers_needed(plan, tpot_s=0.001, ttft_s=2.0) is None


@pytest.mark.parametrize("kind", [TrafficKind.POISSON, TrafficKind.DIURNAL, TrafficKind.BURSTS])
def test_every_kind_of_traffic_has_the_declared_mean(kind: TrafficKind) -> None:
    traffic = FleetTraffic(kind, per_edge_s=10.0, day_s=300.0)
    moments = traffic.arrivals(50, random.Random(3))
    count = sum(1 for _ in takewhile(lambda moment: moment < 600, moments))
    assert count == pytest.approx(50 / 10 * 600, rel=0.05)


def test_bursts_are_bursts() -> None:
    traffic = FleetTraffic(TrafficKind.BURSTS, per_edge_s=10.0)
    moments = takewhile(lambda moment: moment < 600, traffic.arrivals(50, random.Random(3)))
    inside = Counter(moment % 60 < 6 for moment in moments)
    assert inside[True] * 54 / (inside[False] * 6) == pytest.approx(5, rel=0.2)


def test_distributions_are_read_from_text() -> None:
    source = random.Random(1)
    assert Spread.parsed("rtt", "30", 1e-3) == Spread(0.03, 0.03)
    assert all(20 <= Spread.parsed("rtt", "20..60").draw(source) <= 60 for _ in range(50))
    drawn = sorted(Spread.parsed("rtt", "40~0.5").draw(source) for _ in range(999))
    assert drawn[499] == pytest.approx(40, rel=0.1)
    for text in ("", "a", "5..2", "-1", "nan", "1~x"):
        with pytest.raises(InvalidArgument) as refused:
            Spread.parsed("rtt", text)
        assert refused.value.field == "rtt"


@pytest.mark.parametrize(
    ("field", "change"),
    [
        ("edges", {"edges": 0}),
        ("hit_rate", {"hit_rate": 2.0}),
        ("preset", {"preset": PRESETS["mc-dsd"]}),
        ("lasts_s", {"lasts_s": 0.0}),
    ],
)
def test_what_cannot_be_is_refused(field: str, change: dict[str, object]) -> None:
    with pytest.raises(InvalidArgument) as refused:
        simulate_fleet(replace(SMALL, **change))  # type: ignore[arg-type]
    assert refused.value.field == field
