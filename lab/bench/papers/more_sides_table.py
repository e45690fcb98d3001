"""Ours alone: tokens a second of answers from documents on two, three and five sides."""

from __future__ import annotations

from lab.bench.harness.texts import PEPS
from lab.bench.papers import dragon_findings
from lab.bench.papers.paper_table import Basis, Figures, Labels, PaperRow, PaperTable, Plot
from lab.bench.papers.testbed import Testbed
from lab.bench.two_sided.dragon_corpus import read_windows
from lab.bench.two_sided.more_sides import (
    COUPLED,
    QUESTIONS,
    QUICK_QUESTIONS,
    RTT_S,
    SIDES,
    STEP_S,
    TOKENS,
    WAITING,
    ManySided,
    acceptance_rate,
    answer,
    many_sided,
    methods,
    tpot_s,
)
from tandem.backends.torch.loading import load_engine, load_tokenizer


def tables() -> tuple[PaperTable, ...]:
    return (
        PaperTable(
            key="dragon-more-sides",
            paper="DRAGON",
            place="More than two sides, ours alone",
            title="Tokens a second from documents on 2, 3 and 5 sides",
            labels=("sides", "round trip, s"),
            figures=(f"tokens/s, {COUPLED}", f"tokens/s, {WAITING}", "accepted, %"),
            rows=tuple(
                PaperRow((float(sides), rtt_s), (None,) * 3, "the paper has two sides")
                for sides in SIDES
                for rtt_s in RTT_S
            ),
            basis=Basis.VIRTUAL_TIME,
            declared=f"As `tandem bench more-sides`: `{COUPLED}`, {TOKENS} tokens, two documents a "
            f"side, steps of {1e3 * STEP_S:g} ms and the same round trip at every side.",
            compute=_rates,
            finding=dragon_findings.sides,
            plots=(Plot("round trip, s", f"tokens/s, {COUPLED}"),),
        ),
    )


def _rates(testbed: Testbed, labels: Labels) -> Figures:
    sides = int(float(labels[0]))
    rtt_s = float(labels[1])
    questions = testbed.once("many sides", lambda: _questions(testbed))
    coupled, waiting = (
        [
            answer(preset, one, sides, rtt_s, testbed.seed + number)
            for number, one in enumerate(questions)
        ]
        for preset in methods(sides).values()
    )
    return 1 / tpot_s(coupled), 1 / tpot_s(waiting), 100 * acceptance_rate(coupled)


def _questions(testbed: Testbed) -> list[ManySided]:
    count = QUICK_QUESTIONS if testbed.quick else QUESTIONS
    models = testbed.models
    windows = read_windows(PEPS, load_tokenizer(models.target), max(SIDES), testbed.seed)[:count]
    device, cloud = load_engine(models.draft), load_engine(models.target)
    return [many_sided(window, device, cloud) for window in windows]
