"""Reports: the row names that readers of the JSON rely on, goals, tables."""

from lab.bench.harness.report import Goal, Report, make_row
from lab.machine import Machine

QUIET = Machine("a processor", 2, "a system", "3.11", "2", "5", "1", load=0.1, commit="abc")


def a_report() -> Report:
    report = Report("overhead", seed=1, quick=True, machine=QUIET, command="tandem bench overhead")
    report.add("Title", ("preset", "tpot_s"), [make_row(preset="ar", tpot_s=0.01234567, extra=1)])
    report.goals.append(Goal("round overhead", 300e-6, 350e-6, "at most"))
    return report


def test_goals_hold_at_their_limit_and_never_for_nan() -> None:
    assert Goal("", 0.95, 0.95, "at least").met
    assert Goal("", 350e-6, 350e-6, "at most").met
    assert not Goal("", 0.94, 0.95, "at least").met
    assert not Goal("", float("nan"), 0.95, "at least").met
    assert not Goal("", float("nan"), 0.95, "at most").met
    report = a_report()
    assert report.met
    report.goals.append(Goal("ratio", 0.7, 0.6, "at most"))
    assert not report.met
