"""Cells of PicoSpec's four tables by real processes over an emulated link, beside virtual time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from lab.bench.harness.report import counted
from lab.bench.harness.suite import Pacing, running_suite
from lab.bench.harness.texts import prompts
from lab.bench.harness.workload import measured_tpot_s, one_after_another, requests
from lab.bench.papers import picospec_findings
from lab.bench.papers.paper_table import Basis, Figures, Labels, PaperRow, PaperTable
from lab.bench.papers.picospec_tables import DRAFT_LENGTH, MBPS, PAIRS
from lab.bench.papers.testbed import Testbed
from lab.simulation.answer_figures import answers_figures
from tandem.net.process import run_loop
from tandem.specdec.overrides import parse_overrides, with_overrides
from tandem.specdec.presets import PRESETS, Preset

ANSWERS, QUICK_ANSWERS = 6, 2
TOKENS, QUICK_TOKENS = 64, 24
LEFT_OUT = {
    "w/o Para-draft": ("schedule.window=4",),
    "w/o Fast-verify": ("schedule.verify_on_arrival=false", "schedule.token_by_token=false"),
    "w/o Split-rej": ("uplink=full_distributions", "rejection_payload=token"),
}
"""What `picospec_variants` changes, as a request says it."""


@dataclass(frozen=True, slots=True)
class Cell:
    """A method with a pair's times. `tables`: those that it stands for."""

    tables: str
    method: str
    pair: str
    preset: str = "picospec"
    draft_length: int = DRAFT_LENGTH
    overrides: tuple[str, ...] = ()

    @property
    def composed(self) -> Preset:
        preset = PRESETS[self.preset]
        if preset.drafts:
            preset = preset.with_draft_length(self.draft_length)
        return with_overrides(preset, parse_overrides(self.overrides))


ALONE = "Autoregressive"
_QWEN, _LLAMA = "1 and 2, Qwen", "1 and 3, Llama"
CELLS = (
    Cell(_QWEN, ALONE, "Qwen", "ar"),
    Cell(_QWEN, "Vanilla Spec.", "Qwen", "dsd"),
    *(Cell(_QWEN, name, "Qwen", overrides=overrides) for name, overrides in LEFT_OUT.items()),
    Cell(_QWEN, "PicoSpec", "Qwen"),
    Cell(_LLAMA, ALONE, "Llama", "ar"),
    *(Cell(_LLAMA, name, "Llama", overrides=overrides) for name, overrides in LEFT_OUT.items()),
    Cell(_LLAMA, "PicoSpec", "Llama"),
    *(Cell("4, Qwen", f"γ = {n}", "Qwen", draft_length=n) for n in (3, 5, 6)),
)


def tables() -> tuple[PaperTable, ...]:
    return (
        PaperTable(
            key="picospec-processes",
            paper="PicoSpec",
            place="Tables 1 to 4, cells by processes",
            title="Verifier, drafter and aggregator as processes, with the pairs' step times",
            labels=("tables", "method"),
            figures=("speedup over AR", "tokens/s", "tokens/s, virtual time"),
            rows=tuple(
                PaperRow(
                    (cell.tables, cell.method),
                    (None, None, None),
                    "the demo pair's acceptance, no task of it",
                )
                for cell in CELLS
            ),
            basis=Basis.PROCESSES,
            declared="Real gRPC between processes over a TCP link emulator with the pair's round "
            f"trip and {MBPS:g} Mbit/s; steps of the demo pair are paced to its times. γ = "
            f"{DRAFT_LENGTH} but in Table 4. Distributions have the demo pair's 4,096 entries, in "
            "virtual time too, whose prompts are others.",
            compute=_measured,
            finding=picospec_findings.processes,
        ),
    )


def _measured(testbed: Testbed, labels: Labels) -> Figures:
    cell = next(one for one in CELLS if (one.tables, one.method) == labels)
    tpots_s = testbed.once(
        ("processes", cell.pair),
        lambda: _tpots_s(testbed, [one for one in CELLS if one.pair == cell.pair]),
    )
    alone = next(one for one in CELLS if (one.pair, one.method) == (cell.pair, ALONE))
    # What travels has the demo pair's vocabulary here, as it has between the processes.
    conditions = replace(PAIRS[cell.pair].conditions, padded_vocabulary=None)
    simulated = answers_figures(testbed.answers(cell.composed, conditions))
    tpot_s = tpots_s[cell]
    return tpots_s[alone] / tpot_s, 1 / tpot_s, 1 / float(simulated["tpot_s"])


def _tpots_s(testbed: Testbed, cells: Sequence[Cell]) -> dict[Cell, float]:
    """Seconds a token of each, asked for one after another; all of one pair."""
    pair = PAIRS[cells[0].pair]
    times = pair.times
    pacing = Pacing(times.draft_s, times.verify_first_s, times.verify_further_s)
    texts = prompts(QUICK_ANSWERS if testbed.quick else ANSWERS)
    tokens = QUICK_TOKENS if testbed.quick else TOKENS
    tpots_s = {}
    with running_suite(testbed.models, pacing, with_link=True) as suite:
        assert suite.link is not None, "a link was asked for"
        suite.link.set(pair.rtt_s, MBPS)
        for cell in counted(cells, lambda cell: f"{cell.tables}: {cell.method} by processes"):
            length = cell.draft_length if cell.composed.drafts else None
            options = (cell.preset, length, tokens, testbed.seed)
            wanted = requests(texts, *options, overrides=cell.overrides)
            tpots_s[cell] = measured_tpot_s(run_loop(one_after_another(suite, wanted)))
    return tpots_s
