"""A simulated verifier against the real machines in virtual time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from lab.simulation.shared_verifier import VerifierPlan, simulate_verifier
from tandem.specdec.choices import CloudDrafts
from tandem.specdec.presets import PRESETS, Preset
from tandem.testing.simulation.answer import (
    Conditions,
    Question,
    SimulatedAnswer,
    simulate_answers,
    verified_acceptance,
)
from tandem.testing.simulation.declared_pair import declared_pair
from tandem.testing.simulation.model_times import ModelTimes
from tests.long_runs import LONG

TIMES = ModelTimes(0.024, 0.072, 0.003)
RTT_S = 0.04
TOKENS = 64
CLOUD_DRAFT = PRESETS["cloud-draft"]
BOTH = replace(PRESETS["stream"], cloud_drafts=CloudDrafts.MODEL)
PLAN = VerifierPlan(
    PRESETS["stream"],
    sessions=1,
    verify_first_s=TIMES.verify_first_s,
    verify_further_s=TIMES.verify_further_s,
    draft_s=TIMES.draft_s,
    rtt_s=RTT_S,
    acceptance_rate=0.75,
    answer_tokens=(TOKENS, TOKENS),
    lasts_s=150.0,
)


def undrafted_rate(answers: Sequence[SimulatedAnswer]) -> float | None:
    """How often drafting for the outcome that came had not even begun; None without
    pre-drafting."""
    hits = sum(answer.stats.predraft_hits for answer in answers)
    misses = sum(answer.stats.predraft_misses for answer in answers)
    begun = sum(answer.stats.predraft_begun for answer in answers)
    return (misses - begun) / (hits + misses) if hits + misses else None


@pytest.mark.parametrize(("preset", "sessions"), [("ar", 3), ("coupled", 3), ("stream", 1)])
def test_tokens_take_as_long_as_with_the_real_machines(preset: str, sessions: int) -> None:
    """Of edges that have answered before: those simulated know their conditions from the start."""
    chosen, pair = PRESETS[preset], declared_pair(0.85, seed=4)
    conditions = Conditions(TIMES, RTT_S)
    firsts = [Question((n + 101,), TOKENS, n, n * 0.03) for n in range(sessions)]
    questions = [
        Question((n + 1,), TOKENS, n, n * 0.03, warm_start=before.measured)
        for n, before in enumerate(simulate_answers(chosen, pair, conditions, firsts))
    ]
    answers = simulate_answers(chosen, pair, conditions, questions)
    missed = undrafted_rate(answers)
    figures = simulate_verifier(
        replace(
            PLAN,
            preset=chosen,
            sessions=sessions,
            acceptance_rate=verified_acceptance(answers) or 0.0,
            hit_rate=0.0 if missed is None else 1 - missed,
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
    figures = simulate_verifier(
        replace(
            PLAN,
            preset=preset,
            acceptance_rate=rate,
            answer_tokens=(tokens, tokens),
            hit_rate=0.0 if missed is None else 1 - missed,
            lasts_s=200.0,
            cloud_draft_s=TIMES.cloud_step_s,
        )
    )
    assert figures.tpot_p50_s == pytest.approx(answers[0].tpot_s, rel=0.1)
    assert 0.02 < figures.drafting_share < 0.3


def test_drafts_that_cost_the_cloud_more_than_they_bring_are_not_made() -> None:
    plan = replace(PLAN, preset=CLOUD_DRAFT, sessions=4, cloud_draft_s=0.030, acceptance_rate=0.1)
    figures = simulate_verifier(plan)
    alone = simulate_verifier(replace(plan, preset=PRESETS["ar"]))
    assert figures.drafting_share < 0.15  # now and then it tries
    assert figures.tokens_per_s == pytest.approx(alone.tokens_per_s, rel=0.15)
    assert alone.drafting_share == 0.0


def test_sessions_share_passes_and_no_time_is_lost() -> None:
    figures = simulate_verifier(replace(PLAN, preset=PRESETS["ar"], sessions=12))
    assert figures.sessions_per_pass == pytest.approx(12, rel=0.05)
    assert figures.busy == pytest.approx(1.0, abs=0.02)
    assert figures.tokens_per_round == pytest.approx(1.0)
