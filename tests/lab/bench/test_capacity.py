"""`bench capacity`: its search, what a p95 is, the bound, and who holds more sessions when."""

from __future__ import annotations

import pytest

from lab.bench.faults.capacity_cells import (
    CLOUD,
    TARGETS,
    Cell,
    bound_at,
    clients_bound,
    plan_of,
)
from lab.bench.faults.capacity_real import goals, notes
from lab.bench.faults.chat_load import quantile
from lab.bench.harness.report import Row, make_row
from lab.simulation import sessions_held as search
from lab.simulation.sessions_held import largest, sessions_held, together


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Simulate for less long: what is compared here differs by more than chance then does."""
    monkeypatch.setattr(search, "SESSION_S", 150.0)
    monkeypatch.setattr(search, "LEAST_S", 15.0)
    monkeypatch.setattr(search, "WARM_S", 3.0)


@pytest.mark.parametrize("first", [1, 16, 700])
@pytest.mark.parametrize("holds_up_to", [0, 1, 5, 16, 17, 100])
def test_the_search_finds_the_last_number_that_holds(holds_up_to: int, first: int) -> None:
    asked: list[int] = []

    def holds(number: int) -> bool:
        asked.append(number)
        return number <= holds_up_to

    found = largest(holds, 2048, first)
    assert holds_up_to * 0.98 - 1 < found <= holds_up_to
    assert found == holds_up_to or holds_up_to > 50
    assert len(asked) == len(set(asked)) <= 18
    assert all(1 <= number <= 2048 for number in asked)


def test_the_cloud_alone_holds_what_its_passes_leave_room_for() -> None:
    """Each session has a row of every pass, so 72 + 9·(n - 1) ms have to fit into the limit. An
    answer's first token is not part of its TPOT."""
    plan = plan_of("ar", TARGETS["compute"], 0.1, 0.8, 1 / 15, seed=1)
    assert sessions_held(plan, 0.1000).sessions == 4
    assert sessions_held(plan, 0.1081).sessions == 5
    nobody = sessions_held(plan, 0.0719)
    assert nobody.sessions == 0
    assert nobody.figures.tpot_p95_s == pytest.approx(0.072)


def test_the_limit_is_kept_by_95_of_100_answers() -> None:
    assert quantile([0.1] * 95 + [9.0] * 5, 0.95) == 9.0
    assert quantile([0.1] * 96 + [9.0] * 4, 0.95) == 0.1
    plan = plan_of("coupled", TARGETS["memory"], 0.04, 0.8, 1 / 15, seed=1)
    figures = together(plan, 12)
    assert figures.tpot_p50_s is not None
    assert figures.tpot_p95_s is not None
    assert figures.tpot_p50_s < figures.tpot_p95_s
    assert figures.keeps(figures.tpot_p95_s)
    assert not figures.keeps(figures.tpot_p95_s - 1e-6)


def test_the_bound_is_the_time_of_drafts_and_passes_over_that_of_passes() -> None:
    assert clients_bound(4, 0.0048, 0.074) == pytest.approx(1 + 4 * 4.8 / 74)
    assert bound_at(0.0) == 1.0
    assert bound_at(0.25) == pytest.approx(clients_bound(4, 1 / 12, 1.0))
    cell = Cell("memory", 0.04, 0.8)
    assert cell.bound == pytest.approx(1 + 4 * 4.8 / 74)
    # A cloud that drafts four tokens for one session reaches it, but for an answer's last drafts.
    alone = cell.together(CLOUD, 1, seed=1)
    assert bound_at(alone.drafting_share) == pytest.approx(cell.bound, rel=0.03)


def test_sixteen_sessions_in_step_take_as_long_as_arithmetic_says() -> None:
    """Four steps of 4.8 ms, with 1/30 ms for each further session, and a pass over 80 rows give
    each session 3.36 tokens at acceptance 0.8."""
    figures = Cell("memory", 0.04, 0.8).together(CLOUD, 16, seed=1)
    round_s = 4 * (0.0048 + 15 * 0.0005 / 15) + 0.072 + 79 * 0.0005
    tokens = sum(0.8**count for count in range(5))
    assert figures.tpot_p50_s == pytest.approx(round_s / tokens, rel=0.07)
    assert figures.sessions_per_pass > 14


def test_dear_draft_steps_in_the_cloud_are_what_edges_gain_by() -> None:
    """And a cloud that drafts for next to nothing is faster than edges in rounds."""
    dear, cheap = Cell("memory", 0.04, 0.8, share=0.4), Cell("memory", 0.04, 0.8, share=0.001)
    stream, coupled = (dear.together(arm, 16, 1).tokens_per_s for arm in ("stream", "coupled"))
    assert stream > 1.3 * dear.together(CLOUD, 16, 1).tokens_per_s
    assert coupled < cheap.together(CLOUD, 16, 1).tokens_per_s


def measured(
    point: str,
    preset: str,
    over: float,
    bound: float = 1.0,
    sessions: int = 16,
    reached: float = 1.0,
) -> Row:
    """Of `over` times cloud-draft's tokens/s, and `reached` times the simulated ones."""
    speeds = {"tokens_per_s": 100 * over, "simulated_tokens_per_s": 100 * over / reached}
    named = {"point": point, "sessions": sessions, "over_cloud_draft": over}
    return make_row(preset=preset) | speeds | named | {"bound_at_load": bound}


def test_a_missed_goal_says_by_how_much_it_is_out_of_reach() -> None:
    rows = [
        measured("light, far", CLOUD, 1.0, 1.16),
        measured("light, far", "stream", 1.1, 1.16),
        measured("light, far", "stream", 1.9, 1.16, sessions=4),
        measured("heavy, near", CLOUD, 1.0, 1.5),
        measured("heavy, near", "coupled", 1.2, 1.5),
        measured("heavy, near", "stream", 1.4, 1.5),
    ]
    light, heavy = goals(rows)
    assert (light.figure, light.met) == (1.1, False)
    assert (heavy.figure, heavy.met) == (1.4, True)
    reasons = [words for words in notes(rows) if "out of reach" in words]
    assert len(reasons) == 1
    assert "light" in reasons[0]
    assert "at most 1.16 times" in reasons[0]


def test_a_cloud_that_drafts_out_of_step_is_no_fair_baseline() -> None:
    slow_machine = [
        measured("light, far", "ar", 0.9, reached=0.7),
        measured("light, far", CLOUD, 1.0, reached=0.65),
    ]
    assert not [words for words in notes(slow_machine) if "out of step" in words]
    out_of_step = [
        measured("light, far", "ar", 0.9),
        measured("light, far", CLOUD, 1.0, reached=0.42),
    ]
    (words,) = [words for words in notes(out_of_step) if "out of step" in words]
    assert "reached 0.42" in words
