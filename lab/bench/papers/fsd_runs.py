"""FSD in virtual time, with SmolLM2 and its trained exits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod
from pathlib import Path

from safetensors import safe_open

from lab.analysis.cost_models import expected_tokens_per_round
from lab.bench.harness.models import Models
from lab.bench.harness.texts import prompts
from lab.bench.papers.fsd_printed import TABLE_5, HardwareTimes
from lab.bench.papers.paper_table import SEEDS, Figures, Labels
from lab.bench.papers.real_pairs import SMOLLM2_NAME, exits_pair, shared_distributions
from lab.bench.papers.testbed import Testbed
from lab.simulation.answer_figures import answers_figures, cache_miss_rate
from tandem.backends.model_description import load_tokenizer
from tandem.backends.model_files import read_json
from tandem.backends.torch.exit_adapters import AUTO, DESCRIPTION
from tandem.backends.torch.loading import find_exits
from tandem.core.probs import SamplingParams
from tandem.specdec.choices import Predraft, PredraftOrder
from tandem.specdec.presets import PRESETS, Preset
from tandem.testing.simulation.answer import (
    Conditions,
    SimulatedAnswer,
    simulate_answer,
    verified_acceptance,
)
from tandem.testing.simulation.model_times import ModelTimes

DRAFT_LENGTH = 4
MOST_EXITS = 10
ANSWERS = 2
"""Of each seed, to other prompts."""
TOKENS = 40
QUICK_TOKENS = 12
ORDERS = {
    "priority": PredraftOrder.CONFIDENCE,
    "FIFO": PredraftOrder.FIFO,
    "random": PredraftOrder.RANDOM,
}
WORKERS = (1, 2, 3)
NARROW_MBPS = 0.1
WIDE_MBPS = 100.0
CLIENT = ("Vicuna-68m/Vicuna-7B", "RTX")
"""Whose times Table 7 and Figure 4a are computed with, a column of Table 5."""


def exits_trained(testbed: Testbed, labels: Labels) -> Figures:
    """Return how many exits the pair that is here has, their parameters in millions and in percent
    of the target's, and the agreement of the first and the last in percent."""
    models = exits_pair()
    if models is None or labels != (SMOLLM2_NAME,):
        return (None,) * 5
    folder = find_exits(models.target, AUTO)
    assert folder is not None, "the pair has exits"
    about = read_json(folder / DESCRIPTION)
    with safe_open(Path(models.target) / "model.safetensors", "np") as weights:
        names = weights.keys()
        whole = sum(prod(weights.get_slice(name).get_shape()) for name in names)
    exits = len(about["layers"])
    parameters = 2 * about["hidden_size"] * about["rank"] * exits
    first, *_, last = about["agreement"]
    return float(exits), parameters / 1e6, 100 * parameters / whole, 100 * first, 100 * last


def averages(testbed: Testbed, labels: Labels) -> Figures:
    """Return AR → SD, SD → FSD, τ and the miss rate in percent; None without a pair with exits."""
    if exits_pair() is None:
        return (None,) * 4
    conditions = conditions_of((str(labels[0]), str(labels[1])))
    plain = answers(testbed, PRESETS["dssd"].with_draft_length(DRAFT_LENGTH), conditions)
    plain_s = _tpot_s(plain)
    tokens = expected_tokens_per_round(verified_acceptance(plain) or 0.0, DRAFT_LENGTH)
    fast = answers(testbed, _with_exits(MOST_EXITS), conditions)
    faster = conditions.times.verify_first_s / plain_s
    return faster, plain_s / _tpot_s(fast), tokens, _missed(fast)


def conditions_of(column: tuple[str, str]) -> Conditions:
    """Return the conditions of a column of Table 5: its hardware, on a wide link."""
    return _conditions(TABLE_5[column], WIDE_MBPS)


def by_queue_order(testbed: Testbed, labels: Labels) -> Figures:
    """Return the miss rate in percent for each number of workers; None without a pair with
    exits."""
    if exits_pair() is None:
        return (None,) * len(WORKERS)
    preset = replace(
        _with_exits(MOST_EXITS),
        predraft_order=ORDERS[str(labels[0])],
        exit_order=ORDERS[str(labels[1])],
    )
    conditions = _conditions(TABLE_5[CLIENT], NARROW_MBPS)
    return tuple(
        _missed(answers(testbed, replace(preset, predraft_workers=workers), conditions))
        for workers in WORKERS
    )


def by_exits_and_workers(testbed: Testbed, labels: Labels) -> Figures:
    """Return SD → FSD and the miss rate in percent; None without a pair with exits."""
    if exits_pair() is None:
        return None, None
    exits, workers = (int(float(one)) for one in labels)
    conditions = _conditions(TABLE_5[CLIENT], WIDE_MBPS)
    plain = replace(_with_exits(exits), predraft=Predraft.OFF, exits=0)
    plain_s = testbed.once("figure 4a, sd", lambda: _tpot_s(answers(testbed, plain, conditions)))
    fast = answers(testbed, replace(_with_exits(exits), predraft_workers=workers), conditions)
    return plain_s / _tpot_s(fast), _missed(fast)


def _conditions(times: HardwareTimes, mbps: float) -> Conditions:
    models = ModelTimes(times.drafting_ms / DRAFT_LENGTH / 1e3, times.verify_ms / 1e3, 0.0)
    return Conditions(models, 2 * times.link_ms / 1e3, mbps)


def _with_exits(exits: int) -> Preset:
    """Return the preset `fsd` with the `exits` deepest exits throughout."""
    fixed = replace(PRESETS["fsd"], exits=exits)
    return fixed.with_draft_length(DRAFT_LENGTH)


def answers(testbed: Testbed, preset: Preset, conditions: Conditions) -> list[SimulatedAnswer]:
    """Return the answers to a seed's prompts, by the pair with exits."""
    models = exits_pair()
    assert models is not None, "callers look for it"
    pair = shared_distributions(testbed, models, SamplingParams())
    tokens = QUICK_TOKENS if testbed.quick else TOKENS
    return [
        simulate_answer(preset, pair, conditions, prompt_ids, tokens, testbed.seed)
        for prompt_ids in testbed.once("fsd prompts", lambda: _prompts(testbed.seed, models))
    ]


def _prompts(seed: int, models: Models) -> list[tuple[int, ...]]:
    tokenizer = load_tokenizer(models.target)
    first = ANSWERS * (seed % SEEDS)
    return [tuple(tokenizer.encode(text)) for text in prompts(first + ANSWERS)[first:]]


def _tpot_s(done: Sequence[SimulatedAnswer]) -> float:
    return float(answers_figures(done)["tpot_s"])


def _missed(done: Sequence[SimulatedAnswer]) -> float | None:
    miss_rate = cache_miss_rate(done)
    return None if miss_rate is None else 100 * miss_rate
