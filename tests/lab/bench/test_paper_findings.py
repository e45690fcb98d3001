"""What claims are set beside."""

from lab.bench.harness.models import Models
from lab.bench.papers.headlines import HEADLINES
from lab.bench.papers.paper_report import chosen_tables
from lab.bench.papers.testbed import Testbed


def test_a_cloud_that_drafts_gains_what_the_printed_acceptance_allows() -> None:
    """Its step is a fiftieth of a pass, and a draft right with 0.61: at best 2.2 tokens in the time
    of one, and more than any draft length of two or less."""
    (table,) = chosen_tables(["dssd-cloud-drafts"])
    (row,) = (row for row in table.rows if row.labels == ("6.7B",))
    speedup, passes = table.ours(Testbed(Models(), seed=1, quick=True), row)
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
