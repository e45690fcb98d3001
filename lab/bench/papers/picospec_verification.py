"""PicoSpec's Fast Verification as published beside ours, and its equation 3 by its own tables."""

from __future__ import annotations

from dataclasses import replace

from lab.analysis.cost_picospec import bubble_s, expected_round_s, lead_s
from lab.bench.papers.paper_table import Basis, Figures, Labels, PaperRow, PaperTable
from lab.bench.papers.picospec_tables import (
    ACCEPTED,
    DECLARED,
    DRAFT_LENGTH,
    PAIRS,
    TABLE_2,
    TABLE_3,
    acceptance_for,
)
from lab.bench.papers.testbed import Testbed
from lab.bench.speculation.methods_ablations import picospec_variants
from lab.simulation.answer_figures import answers_figures
from tandem.specdec.presets import PRESETS, Preset

NONE = "w/o Fast-verify"
PUBLISHED = "PreVerify, as published"
OURS = "on arrival, ours"
_PRINTED = {"Qwen": TABLE_2, "Llama": TABLE_3}
_PASSES = "target passes a token"


def tables() -> tuple[PaperTable, ...]:
    return _schemes(), _equation_3()


def _schemes() -> PaperTable:
    rows = []
    for scheme in (NONE, PUBLISHED, OURS):
        for pair, task in ACCEPTED:
            row = {NONE: NONE, PUBLISHED: "picospec"}.get(scheme)
            printed = None if row is None else _PRINTED[pair][row, task][0]
            rows.append(PaperRow((scheme, pair, task), (printed, None)))
    return PaperTable(
        key="picospec-fast-verification",
        paper="PicoSpec",
        place="section 3.2, Tables 2 and 3",
        title="Fast Verification as published and ours: speed, and what it costs the target",
        labels=("verification", "pair", "task"),
        figures=("tokens/s", _PASSES),
        rows=tuple(rows),
        basis=Basis.VIRTUAL_TIME,
        declared=DECLARED,
        printed="The paper says that a PreVerify signal lets the verifier prepare by a known "
        "prefix before a batch is whole, and prints no passes. As published is "
        "`picospec-preverify`: the idle target feeds the drafts that have come, once a batch, and "
        "the batch is judged as a whole. Ours, `picospec`, judges drafts as they arrive.",
        compute=_scheme,
    )


def presets() -> dict[str, Preset]:
    """Return the three schemes, which differ in nothing else."""
    whole = PRESETS["picospec"].with_draft_length(DRAFT_LENGTH)
    return {
        NONE: picospec_variants(whole)[NONE],
        PUBLISHED: PRESETS["picospec-preverify"].with_draft_length(DRAFT_LENGTH),
        OURS: whole,
    }


def _scheme(testbed: Testbed, labels: Labels) -> Figures:
    scheme, name, task = map(str, labels)
    rate = acceptance_for(ACCEPTED[name, task], DRAFT_LENGTH)
    preset = replace(presets()[scheme], uplink_precision="float16")
    figures = answers_figures(testbed.declared_answers(preset, PAIRS[name].conditions, rate))
    return 1 / float(figures["tpot_s"]), float(figures["target_passes_per_token"])


def _equation_3() -> PaperTable:
    rows = []
    for pair, task in ACCEPTED:
        table = _PRINTED[pair]
        without = table[NONE, task]
        with_it = table["picospec", task]
        rows.append(PaperRow((pair, task), (None, None, None, without[2], with_it[2])))
    return PaperTable(
        key="picospec-equation-3",
        paper="PicoSpec",
        place="equations 3 and 8, by Tables 2 and 3",
        title="The lead time of Fast Verification, and the rounds that it explains",
        labels=("pair", "task"),
        figures=(
            "lead time, ms",
            "bubble without, ms",
            "bubble with, ms",
            "round without, ms",
            "round with, ms",
        ),
        rows=tuple(rows),
        basis=Basis.COST_MODEL,
        declared="Inputs are the paper's own: the wait (T_rtt + T_verify) without and with "
        "Fast-verify, drafting with it, and the rate that gives Table 1's accepted length. The "
        "lead time is the difference of the two waits.",
        printed="Equations 3 and 8 are lost in the text at hand; they are taken from the sentences "
        "around them. The printed TPOT is the time of a round.",
        compute=_by_equation,
    )


def _by_equation(testbed: Testbed, labels: Labels) -> Figures:
    name, task = map(str, labels)
    table = _PRINTED[name]
    wait_ms = table[NONE, task][3]
    wait_with_ms = table["picospec", task][3]
    draft_ms = table["picospec", task][4]
    lead_ms = max(0.0, lead_s(wait_ms, wait_with_ms))
    rate = acceptance_for(ACCEPTED[name, task], DRAFT_LENGTH)
    rounds = [
        expected_round_s(rate, DRAFT_LENGTH, draft_s=draft_ms, wait_s=wait_ms, lead_s=lead)
        for lead in (0.0, lead_ms)
    ]
    bubbles = [bubble_s(draft_ms, wait_ms, lead) for lead in (0.0, lead_ms)]
    return lead_ms, *bubbles, *rounds
