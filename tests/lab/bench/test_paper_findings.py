"""What the papers' report concludes from its rows, by figure."""

import pytest

from lab.bench.harness.suite import Models
from lab.bench.papers.dragon_gains import relative_gains
from lab.bench.papers.headlines import HEADLINES
from lab.bench.papers.paper_report import chosen_tables
from lab.bench.papers.testbed import Testbed


def test_the_client_s_priority_has_to_miss_least_in_the_mean() -> None:
    """Rows: the client's priority, random, FIFO, each with the server's priority and FIFO."""
    (table,) = chosen_tables(["fsd-table-7"])
    assert table.goal is not None
    least = [(10.0, 10.0, 10.0)] * 2 + [(20.0, 12.0, 9.0)] * 4
    assert table.goal(table.filled(least)).met
    assert not table.goal(table.filled([(30.0,) * 3] * 2 + [(20.0,) * 3] * 4)).met
    assert not table.goal(table.filled([(0.1,) * 3] * 2 + [(0.0,) * 3] * 4)).met


def test_gains_are_divided_only_by_gains() -> None:
    """Ratio over one context and over one side; gains in percent."""
    at = {("dragon", 0): 20.0, ("dragon", 4): 18.0, ("context-all", 4): 19.0}
    at |= {("context-cloud", 4): 19.2, ("context-device", 4): 19.5}
    at |= {("crcg-device", 4): 18.5, ("crcg-cloud", 4): 18.4}
    assert relative_gains(at, 4) == pytest.approx((2.0, 1.25, 10.0, 5.0, 8.0))
    useless = {("context-all", 4): 19.99, ("context-device", 4): 21.0, ("context-cloud", 4): 20.5}
    none = relative_gains(at | useless, 4)
    assert none[0] is None


def test_a_cloud_that_drafts_gains_what_the_printed_acceptance_allows() -> None:
    """Its step is a fiftieth of a pass, and a draft right with 0.61: at best 2.2 tokens in the time
    of one, and more than any draft length of two or less."""
    (table,) = chosen_tables(["dssd-cloud-drafts"])
    figures = table.compute(Testbed(Models(), seed=1, quick=True), ("6.7B",))
    speedup, passes = table.checked(figures)
    assert speedup is not None
    assert passes is not None
    assert 1.9 < speedup < 2.35
    assert 1 / 2.6 < passes < 1 / 2.0


def test_claims_over_the_target_alone_stand_beside_a_cloud_that_drafts() -> None:
    beside = [one for one in HEADLINES if one.cloud_drafts is not None]
    assert {one.paper for one in beside} == {"DSSD", "PicoSpec", "FSD"}
    for one in HEADLINES:
        place = one.virtual or one.formula
        figures = " ".join(place.figures if place else ())
        over_the_target = "speedup" in figures or figures == "AR → SD"
        assert (one.cloud_drafts is not None) == over_the_target, one
