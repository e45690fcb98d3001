"""Ours alone: what a cloud that drafts for itself reaches in the papers' own settings.

The papers compare with a target that decodes one token at a time. A server that holds the target
can often hold their draft model, too, which needs no link: that is the stronger baseline. Its draft
step is declared as a fifth of the edge's."""

from __future__ import annotations

from collections.abc import Sequence

from lab.bench.papers.dssd_tables import PAIRS as DSSD_PAIRS
from lab.bench.papers.fsd_printed import TABLE_6_AVERAGES
from lab.bench.papers.fsd_runs import answers, conditions_of
from lab.bench.papers.paper_table import (
    Basis,
    Compute,
    Figures,
    Labels,
    PaperRow,
    PaperTable,
)
from lab.bench.papers.picospec_tables import ACCEPTED, DRAFT_LENGTH, acceptance_for
from lab.bench.papers.picospec_tables import PAIRS as PICOSPEC_PAIRS
from lab.bench.papers.real_pairs import exits_pair
from lab.bench.papers.testbed import Testbed
from lab.simulation.answer_figures import answers_figures
from tandem.specdec.presets import PRESETS
from tandem.testing.simulation.answer import Conditions, SimulatedAnswer
from tandem.testing.simulation.model_times import ModelTimes

SPEEDUP = "speedup over the target alone"
FIGURES = (SPEEDUP, "target passes a token")
MOST_DRAFTS = 8
PRESET = PRESETS["cloud-draft"].with_draft_length(MOST_DRAFTS)
_DECLARED = (
    f"`cloud-draft`, which drafts as many tokens as are worth their time, up to {MOST_DRAFTS}. A"
    " draft step in the cloud takes a fifth of the edge's, in turns with the target's passes; no"
    " draft crosses the link, so its speed does not depend on it."
)


def tables() -> tuple[PaperTable, ...]:
    return (
        _table(
            "dssd-cloud-drafts",
            "DSSD",
            place="Tables 2 and 3, ours alone",
            labels=("target",),
            rows=[(size,) for size in DSSD_PAIRS],
            declared="Step times and acceptance as for Table 2",
            compute=_dssd,
        ),
        _table(
            "picospec-cloud-drafts",
            "PicoSpec",
            place="Table 1, ours alone",
            labels=("pair", "task"),
            rows=list(ACCEPTED),
            declared="Step times and acceptance as for Table 1",
            compute=_picospec,
        ),
        _table(
            "fsd-cloud-drafts",
            "FSD",
            place="Table 6, averages, ours alone",
            labels=("pair", "client"),
            rows=list(TABLE_6_AVERAGES),
            declared="SmolLM2 with the times of Table 5, as for the averages of Table 6",
            compute=_fsd,
        ),
    )


def _table(
    key: str,
    paper: str,
    *,
    place: str,
    labels: tuple[str, ...],
    rows: Sequence[tuple[str, ...]],
    declared: str,
    compute: Compute,
) -> PaperTable:
    return PaperTable(
        key=key,
        paper=paper,
        place=place,
        title="A cloud that drafts for itself, over the target alone",
        labels=labels,
        figures=FIGURES,
        rows=tuple(PaperRow(row, (None,) * len(FIGURES)) for row in rows),
        basis=Basis.VIRTUAL_TIME,
        declared=f"{declared}. {_DECLARED}",
        compute=compute,
    )


def _dssd(testbed: Testbed, labels: Labels) -> Figures:
    pair = DSSD_PAIRS[str(labels[0])]
    conditions = Conditions(ModelTimes(pair.times.draft_s, pair.target_s, 0.0))
    done = testbed.declared_answers(PRESET, conditions, pair.acceptance_rate)
    return _figures(done, pair.target_s)


def _picospec(testbed: Testbed, labels: Labels) -> Figures:
    name, task = map(str, labels)
    pair = PICOSPEC_PAIRS[name]
    rate = acceptance_for(ACCEPTED[name, task], DRAFT_LENGTH)
    done = testbed.declared_answers(PRESET, pair.conditions, rate)
    return _figures(done, pair.times.verify_first_s)


def _fsd(testbed: Testbed, labels: Labels) -> Figures:
    if exits_pair() is None:
        return None, None
    conditions = conditions_of((str(labels[0]), str(labels[1])))
    return _figures(answers(testbed, PRESET, conditions), conditions.times.verify_first_s)


def _figures(done: Sequence[SimulatedAnswer], alone_s: float) -> Figures:
    figures = answers_figures(done)
    return alone_s / float(figures["tpot_s"]), float(figures["target_passes_per_token"])
