"""Rows by processes in the papers' report: what is asked, and where the time went beside virtual
time. No process is started here."""

from functools import partial
from statistics import fmean

import pytest

from lab.bench.harness.models import Models, Pacing
from lab.bench.papers import (
    dssd_processes,
    dssd_tables,
    fsd_processes,
)
from lab.bench.papers.fsd_printed import TABLE_5
from lab.bench.papers.paper_table import PaperRow
from lab.bench.papers.process_runs import ProcessRun, RunResult, beside, long_prompts
from tandem.backends.model_description import load_tokenizer
from tandem.generation.client import Generated
from tandem.testing.simulation.answer import Conditions, SimulatedAnswer, simulate_answer
from tandem.testing.simulation.declared_pair import declared_pair
from tandem.testing.simulation.model_times import ModelTimes
from tandem_api.common.v1.generation_pb2 import Summary

PACING = Pacing(0.010, 0.100, 0.002)
ANSWERS = 3
TOKENS = 40


def simulated(run: ProcessRun, times: ModelTimes) -> list[SimulatedAnswer]:
    pair = declared_pair(0.7, seed=5)
    conditions = Conditions(times, run.rtt_s, run.mbps)
    return [
        simulate_answer(run.composed, pair, conditions, (1, 2, 3), TOKENS, seed)
        for seed in range(ANSWERS)
    ]


def as_if_real(answer: SimulatedAnswer, later_s: float) -> Generated:
    """An answer as a caller sees it, whose tokens each came `later_s` later than the one before."""
    stats = answer.stats
    return Generated(
        token_ids=list(answer.token_ids),
        ttft_s=answer.ttft_s,
        last_commit_s=answer.last_commit_s + later_s * (len(answer.token_ids) - 1),
        summary=Summary(
            rounds=stats.rounds,
            drafted=stats.drafted,
            accepted=stats.accepted,
            verify_s=stats.verify_s,
            target_passes=stats.target_passes,
        ),
    )


@pytest.mark.parametrize("preset", ["dssd", "ar"])
def test_the_longer_time_of_processes_is_split_into_its_causes(preset: str) -> None:
    """Draft steps of 13 instead of 10 ms, passes 20 ms longer, and 2 ms a token beside them."""
    run = ProcessRun(preset, 0.020, 100.0, None if preset == "ar" else 4)
    slow = simulated(run, ModelTimes(0.013, 0.120, 0.002))
    result = beside(
        [as_if_real(answer, 0.002) for answer in slow], partial(simulated, run), PACING, 0.013
    )
    parts = (result.draft_excess_s, result.target_excess_s, result.rest_s)
    assert result.tpot_s == pytest.approx(result.virtual_s + sum(parts))
    assert result.rest_s == pytest.approx(0.002, abs=0.0002)
    assert (result.same_texts, len(result.answers_s)) == (ANSWERS, ANSWERS)
    rounds = sum(answer.stats.rounds for answer in slow)
    later = ANSWERS * (TOKENS - 1)
    if preset == "ar":
        assert result.draft_excess_s == pytest.approx(0.0)
        assert result.target_excess_s == pytest.approx(0.020, abs=0.0002)
    else:
        assert result.draft_excess_s == pytest.approx(4 * 0.003 * rounds / later, rel=0.1)
        assert result.target_excess_s == pytest.approx(0.020 * rounds / later, rel=0.1)


def test_each_target_of_dssd_has_the_pass_that_its_own_rows_ask_for() -> None:
    """They shared 150 ms. The draft model is one and the same, and so is its step."""
    small, large = dssd_tables.PAIRS["6.7B"], dssd_tables.PAIRS["13B"]
    assert small.target_s == pytest.approx(0.170, abs=0.001)
    assert large.target_s == pytest.approx(0.346, abs=0.001)
    assert small.times.draft_s == pytest.approx(large.times.draft_s, rel=0.03)


def test_a_pass_is_found_from_rows_that_follow_the_paper_s_equation() -> None:
    """1 ÷ speedup of 31 rounds of 8 drafts at c = 0.1, over links that take 0 to 40 s."""
    target_s, rounds = 0.2, 31
    rows = {}
    for number, communication_s in enumerate((0.0, 5.0, 40.0)):
        alone_s = dssd_tables.TOKENS * target_s
        speedup = alone_s / (rounds * 1.8 * target_s + communication_s)
        rows[float(number), 100.0, 8.0] = ((communication_s, speedup),) * 3
    assert dssd_tables.fitted_target_s(("DSSD 13B",), rows) == pytest.approx(target_s)


def test_every_run_is_a_method_that_the_services_accept() -> None:
    runs = [
        *(dssd_processes.run_of(str(row.labels[-1]), row.labels) for row in dssd_rows()),
        *fsd_processes.runs_of(TABLE_5["Vicuna-68m/Vicuna-7B", "RTX"], 4),
    ]
    for run in runs:
        run.composed.fitted(49_152).validate()
        assert run.composed.name == run.preset
    assert {run.preset for run in runs} == {"ar", "dsd", "dssd", "fsd"}


def dssd_rows() -> tuple[PaperRow, ...]:
    (table,) = dssd_processes.tables()
    return table.rows


def test_rows_of_tables_2_and_3_are_measured_with_the_printed_link() -> None:
    """The worst link of Table 2: 50 ms, 10 Mbit/s."""
    runs = {
        row.labels: dssd_processes.run_of(str(row.labels[-1]), row.labels) for row in dssd_rows()
    }
    assert runs["2", 50.0, 10.0, 8.0, "DSD 6.7B"] == ProcessRun("dsd", 0.050, 10.0, 8)
    assert runs["3", 20.0, 100.0, 4.0, "DSSD 13B"] == ProcessRun("dssd", 0.020, 100.0, 4)


def test_prompts_are_as_long_as_they_have_to_be() -> None:
    tokenizer = load_tokenizer(Models().target)
    texts = long_prompts(tokenizer, 3, 128)
    assert len(set(texts)) == 3
    assert [len(tokenizer.encode(text)) for text in texts] == [128] * 3


def test_a_speedup_has_an_error_over_questions() -> None:
    alone, method = result(0.2, 0.4), result(0.1, 0.1)
    speedup, error = method.over(alone)
    assert speedup == pytest.approx(3.0)
    assert error == pytest.approx(1.0)
    assert result(0.2, 0.2).over(result(0.1, 0.1)) == pytest.approx((0.5, 0.0))


def result(*answers_s: float) -> RunResult:
    return RunResult(
        tpot_s=fmean(answers_s),
        virtual_s=0.1,
        draft_excess_s=0.0,
        target_excess_s=0.0,
        rest_s=0.0,
        acceptance_rate=0.5,
        miss_rate=None,
        virtual_miss_rate=None,
        same_texts=len(answers_s),
        answers_s=answers_s,
    )
