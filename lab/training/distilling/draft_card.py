"""The card of the real pair's draft: figures after held-out prompts, and what its steps cost."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf
from pathlib import Path
from statistics import median
from time import process_time

from lab.analysis.cost_models import LinkTimes, dssd
from lab.training.distilling.evaluation import AnswerFigures
from tandem.backends.interface import Engine, ForwardRequest
from tandem.control.conditions import PairTimes

CONTEXT, PASSES = 128, 30
FURTHER = 4
"""Tokens of a pass beside the first, from which the time of each further one is taken."""
ROUND_TRIPS_S = (0.0, 0.03)
DRAFT_LENGTHS = range(1, 9)
LEAST_GAIN = 1.05
"""What the cost model must predict somewhere before the card speaks of a gain."""


@dataclass(frozen=True, slots=True)
class Facts:
    """What the card says beside the figures. `tokens` were seen in `steps`, of `distinct` tokens;
    `compute_s` on one core."""

    layers: tuple[int, ...]
    kept: int
    parameters: int
    stored_bytes: int
    answers: int
    texts: int
    distinct: int
    steps: int
    tokens: int
    compute_s: float
    seed: int
    command: str
    machine: str


def pass_times(draft: Engine, target: Engine) -> PairTimes:
    """Medians of the process's computing time, so that other programs count little, with a context
    of CONTEXT tokens."""
    one = pass_s(target, 1)
    further = max(0.0, pass_s(target, 1 + FURTHER) - one) / FURTHER
    return PairTimes(pass_s(draft, 1), one, further)


def pass_s(engine: Engine, tokens: int) -> float:
    """Return the seconds of a pass over so many tokens, as `pass_times` measures."""
    session, times_s = engine.open(CONTEXT + tokens), list[float]()
    prompt = tuple(number * 37 % engine.vocabulary_size for number in range(CONTEXT))
    engine.forward([ForwardRequest(session, prompt, 1)])
    for _ in range(PASSES):
        began = process_time()
        engine.forward([ForwardRequest(session, prompt[:tokens], tokens)])
        times_s.append(process_time() - began)
        session.rollback(CONTEXT)
    session.close()
    return median(times_s)


def best_speedup(pair: PairTimes, rtt_s: float, acceptance: float) -> tuple[int, float]:
    """The draft length at which the rejection rule gains most over the target alone by the cost
    model, and that gain."""
    link = LinkTimes(rtt_s, inf, inf)  # so that no size counts
    gains = {
        length: dssd(
            pair,
            link,
            acceptance_rate=acceptance,
            draft_length=length,
            vocabulary_size=1,
            precision_bytes=2.0,
        ).speedup_over_ar
        for length in DRAFT_LENGTHS
    }
    best = max(gains, key=gains.__getitem__)
    return best, gains[best]


def write_card(
    folder: Path,
    facts: Facts,
    figures: Mapping[tuple[str, float], AnswerFigures],
    times: PairTimes,
    whole_step_s: float,
) -> None:
    """`whole_step_s`: of a draft that computes its whole head."""
    tasks = sorted({task for task, _ in figures})
    sampled = _mean([figures[task, 1.0] for task in tasks], "acceptance")
    greedy = _mean([figures[task, 0.0] for task in tasks], "agreement")
    rates = ((1, sampled), (0, greedy))
    gain = max(best_speedup(times, rtt, rate)[1] for rtt in ROUND_TRIPS_S for _, rate in rates)
    text = _TEXT.format(
        verdict=_GAINS if gain > LEAST_GAIN else _NO_GAIN,
        layers=", ".join(map(str, facts.layers)),
        kept=f"{facts.kept:,}",
        parameters=f"{facts.parameters / 1e6:.1f} M",
        stored=f"{facts.stored_bytes / 1e6:.1f} MB",
        figures="\n".join(_row(task, figures[task, 1.0], figures[task, 0.0]) for task in tasks),
        positions=f"{sum(one.tokens for one in figures.values()):,}",
        draft_ms=f"{times.draft_s * 1e3:.1f}",
        whole_ms=f"{whole_step_s * 1e3:.1f}",
        target_ms=f"{times.verify_first_s * 1e3:.1f}",
        further_ms=f"{times.verify_further_s * 1e3:.1f}",
        speeds="\n".join(_speed_row(times, *one) for one in rates),
        answers=f"{facts.answers:,}",
        texts=f"{facts.texts:,}",
        distinct=f"{facts.distinct:,}",
        steps=f"{facts.steps:,}",
        tokens=f"{facts.tokens:,}",
        minutes=f"{facts.compute_s / 60:.1f}",
        seed=facts.seed,
        command=facts.command,
        machine=facts.machine,
    )
    partial = folder / "README.partial"
    partial.write_text(text, encoding="utf-8")
    os.replace(partial, folder / "README.md")


def _mean(figures: Sequence[AnswerFigures], name: str) -> float:
    tokens = sum(one.tokens for one in figures)
    return float(sum(getattr(one, name) * one.tokens for one in figures)) / max(tokens, 1)


def _row(task: str, sampled: AnswerFigures, greedy: AnswerFigures) -> str:
    return (
        f"| {task} | {sampled.tokens + greedy.tokens:,} | {sampled.acceptance:.3f} "
        f"| {greedy.agreement:.3f} | {sampled.outside:.3f} | {sampled.target_cross_entropy:.3f} "
        f"| {sampled.draft_cross_entropy:.3f} |"
    )


def _speed_row(times: PairTimes, temperature: int, rate: float) -> str:
    gains = (best_speedup(times, rtt_s, rate) for rtt_s in ROUND_TRIPS_S)
    cells = " | ".join(f"{gain:.2f} ({length})" for length, gain in gains)
    return f"| {temperature} | {rate:.3f} | {cells} |"


_GAINS = (
    "The cost model predicts a gain over the target alone in some settings, and none where its\n"
    "factor below is less than 1."
)
_NO_GAIN = "The cost model predicts no gain over the target alone: train it for longer."

_TEXT = """\
# A draft for SmolLM2-135M-Instruct

{verdict}

{parameters} parameters in 8 bits ({stored}): decoder layers that began as layers {layers} (of 0
to 29) of SmolLM2-135M-Instruct and were distilled from the whole model, its last norm, and the
{kept} tokens that the draft can propose. Embedding and head are the target's, and are not stored:
`make real-pair` (the stage `join` of the training) writes the whole draft to
`models/real/smollm2-draft`, a Llama model that any program reads. The engine `torch` computes
only the head's rows of those tokens when it drafts. Tokens outside are never proposed, so the
text stays exactly the target's.

## Held-out figures

After prompts that no training saw, on the target's own answers of at most 144 tokens, {positions}
positions in all; draft in float32 before it was rounded to 8 bits, the target's states in bfloat16.
*Acceptance* is the mean of Σ min(target_probs, draft_probs) at temperature 1, on answers sampled
at it; *agreement* how often both likeliest tokens are equal, on greedy answers. *Outside* is the
target's mass on tokens that the draft cannot propose, and cross-entropy (nats per token) is that
of sampled tokens that it can.

| task | positions | acceptance | agreement | outside | CE: target | draft |
|---|---|---|---|---|---|---|
{figures}

## What a step costs

One thread, 128 tokens of context, medians of computing time: a step of the draft (`--dtype-draft
int8`) takes {draft_ms} ms, {whole_ms} ms with its whole head; a pass of the target in float32
takes {target_ms} ms, and {further_ms} ms more for each further token. With these times and the
acceptance of all tasks together, the cost model of rounds (`tandem plan --method dssd`) predicts,
relative to the target alone and at the best draft length (in brackets):

| temperature | accepted | RTT 0 | RTT 30 ms |
|---|---|---|---|
{speeds}

## Training

KL(target ‖ draft) over the tokens that it can propose, blending into total variation, after what
the target said of {distinct} tokens: {answers} answers of its own (sampled at temperature 1, 0.6
and 0) with their prompts, and {texts} texts by others that it only read. {tokens} tokens in
{steps} steps, with pads, in {minutes} minutes of computing on one core. Muon for matrices, AdamW
for norms, bfloat16 autocast where the processor is quick at it. Seed {seed}. Machine: {machine}.

```bash
{command}
```

Prompts come from GSM8K's training split, the PEPs, HumanEval, WikiText-2 and lists of everyday
things (`lab/training/distilling/prompts.py`); the repository does not have these files (`--data`
names a folder). A longer `--minutes` goes on from the checkpoint in `--cache`, and more `--answers`
are added to those there are.

## Licence and limits

A derivation of SmolLM2-135M-Instruct's weights (Hugging Face, Apache-2.0), see `../NOTICE`.
English only. The draft says nothing sensible by itself; it belongs to these very weights of the
target, and is joined with no others.
"""
