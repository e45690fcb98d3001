"""One cell of PicoSpec's Table 1 by real processes over an emulated link, beside virtual time."""

from __future__ import annotations

from bench.harness.suite import Pacing, running_suite
from bench.harness.texts import prompts
from bench.harness.workload import measured_tpot_s, one_after_another, requests
from bench.papers import findings
from bench.papers.paper_table import Basis, Figures, Labels, PaperRow, PaperTable
from bench.papers.picospec_tables import DRAFT_LENGTH, MBPS, PAIRS
from bench.papers.testbed import Testbed
from tandem.net.process import run_loop
from tandem.simulation.answer_figures import answers_figures
from tandem.specdec.presets import PRESETS, Preset

METHODS = {"Autoregressive": "ar", "Vanilla Spec.": "dsd", "PicoSpec": "picospec"}
ANSWERS, QUICK_ANSWERS = 12, 4
TOKENS, QUICK_TOKENS = 96, 32


def tables() -> tuple[PaperTable, ...]:
    return (
        PaperTable(
            key="picospec-processes",
            paper="PicoSpec",
            place="Table 1, one cell by processes",
            title="Verifier, drafter and aggregator as processes, with the Qwen pair's step times",
            labels=("method",),
            figures=("speedup over AR", "tokens/s", "tokens/s, virtual time"),
            rows=tuple(
                PaperRow((method,), (None, None, None), "the demo pair's acceptance, no task of it")
                for method in METHODS
            ),
            basis=Basis.MEASURED,
            declared="Real gRPC between processes over a TCP link emulator with the Qwen pair's "
            f"round trip and {MBPS:g} Mbit/s; steps of the demo pair are paced to its times. The "
            "prompts of virtual time are others.",
            compute=_measured,
            finding=findings.processes,
        ),
    )


def _measured(testbed: Testbed, labels: Labels) -> Figures:
    tpots_s = testbed.once("picospec processes", lambda: _tpots_s(testbed))
    name = METHODS[str(labels[0])]
    simulated = answers_figures(testbed.answers(_preset(name), PAIRS["Qwen"].conditions))
    return tpots_s["ar"] / tpots_s[name], 1 / tpots_s[name], 1 / float(simulated["tpot_s"])


def _preset(name: str) -> Preset:
    preset = PRESETS[name]
    return preset.with_draft_length(DRAFT_LENGTH) if preset.drafts else preset


def _tpots_s(testbed: Testbed) -> dict[str, float]:
    """Seconds a token of each method, asked for one after another."""
    pair = PAIRS["Qwen"]
    times = pair.times
    pacing = Pacing(times.draft_s, times.verify_first_s, times.verify_further_s)
    texts = prompts(QUICK_ANSWERS if testbed.quick else ANSWERS)
    tokens = QUICK_TOKENS if testbed.quick else TOKENS
    found = {}
    with running_suite(testbed.models, pacing, with_link=True) as suite:
        assert suite.link is not None, "a link was asked for"
        suite.link.set(pair.rtt_s, MBPS)
        for name in METHODS.values():
            length = DRAFT_LENGTH if PRESETS[name].drafts else None
            wanted = requests(texts, name, length, tokens, testbed.seed)
            found[name] = measured_tpot_s(run_loop(one_after_another(suite, wanted)))
    return found
