"""What the papers print of their model pairs, of pairs that are here: how often drafts are
accepted, how many tokens a round has, and how large its messages are."""

from __future__ import annotations

from collections.abc import Sequence
from math import sqrt
from statistics import fmean, stdev

import numpy as np

from lab.analysis.drawn_rounds import tokens_per_round
from lab.bench.papers.paper_table import Basis, Figures, Labels, PaperRow, PaperTable
from lab.bench.papers.picospec_tables import DRAFT_LENGTH
from lab.bench.papers.real_pairs import (
    ANSWERS,
    PAIRS,
    QWEN_NAME,
    TOKENS,
    TOP_K,
    Drawn,
    drawn_answers,
)
from lab.bench.papers.testbed import Testbed
from tandem.core.hashing import hash_words
from tandem.core.probs import Array, SamplingParams, Truncation, truncate
from tandem.specdec.presets import PRESETS
from tandem.testing.simulation.answer import Conditions, simulate_answer
from tandem.testing.simulation.model_pair import Context, ProbsOf, SimulatedPair
from tandem.testing.simulation.model_times import ModelTimes

DSSD_LENGTH = 8
METHODS = ("dsd", "dssd", "dssd-full", "tslt", "mc-dsd", "picospec", "picospec-top-k")
MESSAGE_ANSWERS = 4
MESSAGE_TOKENS = 64
PROMPT = (1, 2, 3)
_DRAWN = (
    f"{ANSWERS} answers of {TOKENS} tokens that the target draws with top-k {TOP_K}, to questions "
    "of GSM8K and beginnings of PEPs in turn; SmolLM2-135M has its own draft model (int8), "
    "Qwen2.5-Coder-1.5B that of 0.5B, both in 4 bits on llama.cpp."
)


def tables() -> tuple[PaperTable, ...]:
    return (_acceptance(), _accepted_length(), _messages())


def _acceptance() -> PaperTable:
    return PaperTable(
        key="dssd-acceptance",
        paper="DSSD",
        place="Section 4.1, α",
        title="How often a draft is accepted, by pairs that are here",
        labels=("target",),
        figures=(
            *(f"α, top-k {TOP_K}", "standard error", "α, temperature 1"),
            *(f"tokens a round, γ = {DSSD_LENGTH}", "by equation 9"),
        ),
        rows=tuple(PaperRow((name,), (None,) * 5) for name in PAIRS),
        basis=Basis.DISTRIBUTIONS,
        declared=f"{_DRAWN} α is the mean of Σ min(target, draft) over positions, its error over "
        "answers. Tokens of a round are exact along these answers; equation 9 has them of one α, "
        "as if all positions were alike.",
        printed="0.61 ± 0.05 with OPT-125M and 6.7B, 0.53 ± 0.05 with 13B. Its 31 rounds for 128 "
        "tokens are 4.1 tokens a round.",
        compute=_accepted,
        downloads=True,
    )


def _accepted_length() -> PaperTable:
    rows = tuple(
        PaperRow((name, task), (2.50 if (name, task) == (QWEN_NAME, "GSM8K") else None, None))
        for name in PAIRS
        for task in ("GSM8K", "PEPs")
    )
    return PaperTable(
        key="picospec-accepted-length",
        paper="PicoSpec",
        place="Table 1, accepted length",
        title=f"Tokens of a round at γ = {DRAFT_LENGTH}, by pairs that are here",
        labels=("target", "texts"),
        figures=("tokens a round", "standard error"),
        rows=rows,
        basis=Basis.DISTRIBUTIONS,
        declared=f"{_DRAWN} The expectation over rounds is exact along these answers.",
        printed="Its Qwen pair, 0.6B and 32B, has 2.50 on GSM8K and 1.88 on HumanEval.",
        compute=_accepted_lengths,
        downloads=True,
    )


def _messages() -> PaperTable:
    return PaperTable(
        key="picospec-messages",
        paper="PicoSpec",
        place="Section 3, what is sent",
        title="Bytes of a round of every method, 151,936 tokens",
        labels=("preset",),
        figures=("up, bytes", "down, bytes", "up a token", "down a token"),
        rows=tuple(PaperRow((name,), (None,) * 4) for name in METHODS),
        basis=Basis.DISTRIBUTIONS,
        declared=f"Serialized messages of the state machines, {MESSAGE_ANSWERS} answers of "
        f"{MESSAGE_TOKENS} tokens with γ = {DRAFT_LENGTH}, where each position has the "
        "distributions of one of the positions of Qwen2.5-Coder's answers, at temperature 1. "
        "`dssd-full` is DSSD as published, `picospec-top-k` PicoSpec.",
        compute=_sent,
        downloads=True,
    )


def _accepted(testbed: Testbed, labels: Labels) -> Figures:
    drawn = drawn_answers(testbed, str(labels[0]))
    if not drawn:
        return (None,) * 5
    cut = [fmean(_overlap(*_cut(*pair)) for pair in _positions([one])) for one in drawn]
    whole = fmean(_overlap(*pair) for pair in _positions(drawn))
    rate = fmean(cut)
    equation = (1 - rate ** (DSSD_LENGTH + 1)) / (1 - rate)
    return rate, _error(cut), whole, *_lengths(drawn, DSSD_LENGTH)[:1], equation


def _accepted_lengths(testbed: Testbed, labels: Labels) -> Figures:
    name, task = map(str, labels)
    drawn = drawn_answers(testbed, name)[0 if task == "GSM8K" else 1 :: 2]
    return _lengths(drawn, DRAFT_LENGTH) if drawn else (None, None)


def _lengths(drawn: Sequence[Drawn], draft_length: int) -> tuple[float, float]:
    """Return the tokens of a round, and the standard error over answers."""
    lengths = [
        tokens_per_round(
            [
                min(1.0, float(draft[token] / target[token]))
                for token, (target, draft) in zip(
                    one.token_ids, (_cut(*pair) for pair in _positions([one])), strict=True
                )
            ],
            draft_length,
        )
        for one in drawn
    ]
    return fmean(lengths), _error(lengths)


def _error(figures: Sequence[float]) -> float:
    return stdev(figures) / sqrt(len(figures)) if len(figures) > 1 else 0.0


def _positions(drawn: Sequence[Drawn]) -> list[tuple[Array, Array]]:
    """Return target's and draft's distribution at every position."""
    return [pair for one in drawn for pair in zip(one.target, one.draft, strict=True)]


def _cut(target: Array, draft: Array) -> tuple[Array, Array]:
    kept = Truncation(top_k=TOP_K)
    return truncate(target, kept), truncate(draft, kept)


def _overlap(target: Array, draft: Array) -> float:
    return float(np.minimum(target, draft).sum())


def _sent(testbed: Testbed, labels: Labels) -> Figures:
    positions = _positions(drawn_answers(testbed, QWEN_NAME))
    if not positions:
        return (None,) * 4
    target, draft = (_at_random([pair[side] for pair in positions]) for side in (0, 1))
    pair = SimulatedPair(len(positions[0][0]), draft, target, SamplingParams())
    preset = PRESETS[str(labels[0])]
    if not preset.expansion:
        preset = preset.with_draft_length(DRAFT_LENGTH)
    answers = [
        simulate_answer(
            preset, pair, Conditions(ModelTimes(0.01, 0.05, 0.0)), PROMPT, MESSAGE_TOKENS, seed
        )
        for seed in range(1 if testbed.quick else MESSAGE_ANSWERS)
    ]
    up, down = (
        float(sum(counts))
        for counts in zip(*((one.uplink_bytes, one.downlink_bytes) for one in answers), strict=True)
    )
    rounds = sum(one.stats.rounds for one in answers)
    tokens = MESSAGE_TOKENS * len(answers)
    return up / rounds, down / rounds, up / tokens, down / tokens


def _at_random(distributions: Sequence[Array]) -> ProbsOf:
    """Return the distribution of one of the positions, always the same for a context."""

    def probs_of(context: Context) -> Array:
        return distributions[hash_words(0, len(context), *context[-3:]) % len(distributions)]

    return probs_of
