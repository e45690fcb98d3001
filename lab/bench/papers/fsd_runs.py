"""FSD's queues and exits in virtual time."""

from __future__ import annotations

from dataclasses import replace
from itertools import cycle, islice

from lab.analysis.cost_models import expected_tokens_per_round
from lab.bench.papers.fsd_printed import TABLE_5, HardwareTimes
from lab.bench.papers.paper_table import Figures, Labels
from lab.bench.papers.testbed import Testbed
from lab.simulation.answer_figures import answers_figures, cache_miss_rate
from tandem.specdec.choices import Predraft, PredraftOrder
from tandem.specdec.presets import PRESETS, Preset
from tandem.testing.simulation.answer import Conditions, simulate_answer, verified_acceptance
from tandem.testing.simulation.model_times import ModelTimes

DRAFT_LENGTH = 4
QUEUE_ANSWERS = 24
QUICK_QUEUE_ANSWERS = 8
QUEUE_TOKENS = 48
ORDERS = {
    "priority": PredraftOrder.CONFIDENCE,
    "FIFO": PredraftOrder.FIFO,
    "random": PredraftOrder.RANDOM,
}
WORKERS = (1, 2, 4)
NARROW_MBPS = 0.01
WIDE_MBPS = 100.0
QUEUES_CLIENT, EXITS_CLIENT = (("Vicuna-68m/Vicuna-7B", client) for client in ("Jetson", "RTX"))
"""Whose times Table 7 and Figure 4a are computed with, as columns of Table 5."""


def averages_by_demo_pair(testbed: Testbed, labels: Labels) -> Figures:
    """Return AR → SD, SD → FSD, τ and the miss rate in percent on the held-out prompts; FSD's are
    None for a target without exits."""
    conditions = conditions_of((str(labels[0]), str(labels[1])))
    plain = testbed.answers(PRESETS["dssd"].with_draft_length(DRAFT_LENGTH), conditions)
    plain_s = float(answers_figures(plain)["tpot_s"])
    faster = conditions.times.verify_first_s / plain_s
    tokens = expected_tokens_per_round(verified_acceptance(plain) or 0.0, DRAFT_LENGTH)
    if not (exits := len(testbed.pair.exit_distributions)):
        return faster, None, tokens, None
    fast = testbed.answers(_with_exits(exits), conditions)
    miss_rate = cache_miss_rate(fast)
    missed = None if miss_rate is None else 100 * miss_rate
    return faster, plain_s / float(answers_figures(fast)["tpot_s"]), tokens, missed


def conditions_of(column: tuple[str, str]) -> Conditions:
    """Return the conditions of a column of Table 5: its hardware, on a wide link."""
    return _conditions(TABLE_5[column], WIDE_MBPS)


def by_queue_order(testbed: Testbed, labels: Labels) -> Figures:
    """Return the miss rate in percent for each number of workers; None for a target without
    exits."""
    if not (exits := len(testbed.pair.exit_distributions)):
        return (None,) * len(WORKERS)
    preset = replace(
        _with_exits(exits),
        predraft_order=ORDERS[str(labels[0])],
        exit_order=ORDERS[str(labels[1])],
    )
    conditions = _conditions(TABLE_5[QUEUES_CLIENT], NARROW_MBPS)
    return tuple(
        _run(testbed, replace(preset, predraft_workers=workers), conditions)[1]
        for workers in WORKERS
    )


def by_exits_and_workers(testbed: Testbed, labels: Labels) -> Figures:
    """Return SD → FSD and the miss rate in percent; None for a target that has fewer exits."""
    exits, workers = (int(float(one)) for one in labels)
    if exits > len(testbed.pair.exit_distributions):
        return None, None
    conditions = _conditions(TABLE_5[EXITS_CLIENT], WIDE_MBPS)
    plain = replace(_with_exits(exits), predraft=Predraft.OFF, exits=0)
    plain_s, _ = testbed.once("figure 4a, sd", lambda: _run(testbed, plain, conditions))
    fast = replace(_with_exits(exits), predraft_workers=workers)
    fast_s, miss_rate = _run(testbed, fast, conditions)
    return plain_s / fast_s, miss_rate


def _conditions(times: HardwareTimes, mbps: float) -> Conditions:
    models = ModelTimes(times.drafting_ms / DRAFT_LENGTH / 1e3, times.verify_ms / 1e3, 0.0)
    return Conditions(models, 2 * times.link_ms / 1e3, mbps)


def _with_exits(exits: int) -> Preset:
    """Return the preset `fsd` with the `exits` deepest exits throughout."""
    fixed = replace(PRESETS["fsd"], exits=exits)
    return fixed.with_draft_length(DRAFT_LENGTH)


def _run(testbed: Testbed, preset: Preset, conditions: Conditions) -> tuple[float, float | None]:
    """Return the TPOT in seconds, and the miss rate in percent."""
    pair = testbed.pair
    count = QUICK_QUEUE_ANSWERS if testbed.quick else QUEUE_ANSWERS
    questions = list(islice(cycle(testbed.questions), count))
    answers = [
        simulate_answer(preset, pair, conditions, one.prompt_ids, QUEUE_TOKENS, one.seed + number)
        for number, one in enumerate(questions)
    ]
    miss_rate = cache_miss_rate(answers)
    tpot_s = float(answers_figures(answers)["tpot_s"])
    return tpot_s, None if miss_rate is None else 100 * miss_rate
