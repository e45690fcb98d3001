"""DRAGON's pipelines: the machines take the paper's latency where an acceptance case repeats."""

from __future__ import annotations

import pytest

from lab.bench.harness.suite import Models
from lab.bench.papers.dragon_pipelines import CASES, Case, pipelines_table
from lab.bench.papers.testbed import Testbed


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.words)
def test_the_machines_take_as_long_as_the_paper_says(case: Case) -> None:
    table = pipelines_table()
    took, formula = table.compute(Testbed(Models(), seed=1, quick=True), (case.words,))
    assert formula == pytest.approx({10: 1.5, 11: 4.5, 12: 1.5, 13: 4.3}[case.figure])
    assert took == pytest.approx(formula, rel=0.02)
