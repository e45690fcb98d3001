"""A draft's card: figures after held-out prompts, and what its steps cost."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from statistics import median
from textwrap import wrap
from time import perf_counter, process_time
from typing import Self

from lab.machine import this_machine
from lab.training.distilling.evaluation import AnswerFigures
from lab.training.distilling.export import STORED, stored_facts
from lab.training.distilling.gain import best_speedup
from lab.training.distilling.making import overall, read_figures
from tandem.backends.interface import Engine, ForwardRequest
from tandem.backends.model_source import HEAD_TOKENS
from tandem.backends.torch.loading import load_engine
from tandem.control.conditions import PairTimes

CONTEXT = 128
PASSES = 30
FURTHER = 4
"""Tokens of a pass beside the first, from which the time of each further one is taken."""
ROUND_TRIPS_S = (0.0, 0.03)
LEAST_GAIN = 1.05
"""What the cost model must predict somewhere before the card speaks of a gain."""


@dataclass(frozen=True, slots=True)
class Facts:
    """How a draft was trained, as it is stored with it. `layers` are the target's that it began
    with, none if it began as a model of its own. `tokens` were seen in `steps`, of `distinct`
    tokens; `train_s` of `wall_s` seconds were training."""

    layers: list[int]
    kept: int
    parameters: int
    answers: int
    texts: int
    distinct: int
    steps: int
    tokens: int
    train_s: float
    wall_s: float
    seed: int
    command: str
    machine: str

    @classmethod
    def of(cls, stored: Path) -> Self:
        """Read the facts of a stored draft. Raises ValueError for one that does not say how it was
        trained."""
        facts = stored_facts(stored)
        try:
            return cls(**{field.name: facts[field.name] for field in fields(cls)})
        except KeyError as error:
            raise ValueError(f"{stored / STORED} does not say {error}") from None


@dataclass(frozen=True, slots=True)
class CardWords:
    """What a card says beside figures and facts. `storage` is what the folder holds, `prompts`
    where they come from, `licence` what holds for the weights; plain text, in Markdown."""

    target: str
    storage: str
    prompts: str
    licence: str


def write_draft_card(
    stored: Path, target: Path, whole: Path, words: CardWords, folder: Path | None = None
) -> None:
    """Write README.md to `folder` (default: where the draft is stored) for the draft in `stored`,
    whose figures `measure` has written there. Its steps are timed here and now, with the whole
    draft in `whole`."""
    drafting = load_engine(whole, drafts=True, dtype="int8")
    times = pass_times(drafting, load_engine(target))
    text = card_text(
        Facts.of(stored),
        read_figures(stored),
        times,
        pass_s(_with_whole_head(whole), 1),
        (stored / STORED).stat().st_size,
        words,
    )
    folder = folder or stored
    partial = folder / "README.partial"
    partial.write_text(text, encoding="utf-8")
    os.replace(partial, folder / "README.md")


def _with_whole_head(whole: Path) -> Engine:
    """Return the same draft, without the file that names the tokens of its head."""
    with tempfile.TemporaryDirectory() as folder:
        for path in whole.iterdir():
            if path.name != HEAD_TOKENS:
                (Path(folder) / path.name).symlink_to(path.resolve())
        return load_engine(Path(folder), drafts=True, dtype="int8")


def pass_times(draft: Engine, target: Engine) -> PairTimes:
    """Measure passes with a context of CONTEXT tokens: medians of the process's computing time, so
    that other programs count little."""
    one = pass_s(target, 1)
    further = max(0.0, pass_s(target, 1 + FURTHER) - one) / FURTHER
    return PairTimes(pass_s(draft, 1), one, further)


def pass_s(engine: Engine, tokens: int) -> float:
    """Return the seconds of a pass over `tokens` tokens, as `pass_times` measures it; the elapsed
    time where the ticks of the process's clock are longer."""
    session, times_s, passed_s = engine.open(CONTEXT + tokens), list[float](), list[float]()
    prompt = tuple(number * 37 % engine.vocabulary_size for number in range(CONTEXT))
    engine.forward([ForwardRequest(session, prompt, 1)])
    for _ in range(PASSES):
        began, began_s = process_time(), perf_counter()
        engine.forward([ForwardRequest(session, prompt[:tokens], tokens)])
        times_s.append(process_time() - began)
        passed_s.append(perf_counter() - began_s)
        session.rollback(CONTEXT)
    session.close()
    return median(times_s) or median(passed_s)


def card_text(
    facts: Facts,
    figures: Mapping[tuple[str, float], AnswerFigures],
    times: PairTimes,
    whole_step_s: float,
    stored_bytes: int,
    words: CardWords,
) -> str:
    """Return a draft's card. `whole_step_s`: the seconds of a step of a draft that computes its
    whole head."""
    tasks = sorted({task for task, _ in figures})
    sampled, greedy = overall(dict(figures))
    rates = ((1, sampled), (0, greedy))
    gain = max(best_speedup(times, rtt, rate)[1] for rtt in ROUND_TRIPS_S for _, rate in rates)
    layers = ", ".join(map(str, facts.layers))
    text = _TEXT.format(
        words=words,
        verdict=_GAINS if gain > LEAST_GAIN else _NO_GAIN,
        origin=_LAYERS.format(layers=layers) if facts.layers else _MODEL,
        kept=f"{facts.kept:,}",
        parameters=f"{facts.parameters / 1e6:.1f} M",
        stored=f"{stored_bytes / 1e6:.1f} MB",
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
        minutes=f"{facts.train_s / 60:.1f}",
        whole_minutes=f"{facts.wall_s / 60:.1f}",
        seed=facts.seed,
        command=facts.command,
        machine=facts.machine,
        timed_on=this_machine().line().splitlines()[0],
    )
    return _wrapped(text.rstrip()) + "\n"


def _wrapped(text: str) -> str:
    """Return the text with its paragraphs in lines of at most 100 characters; tables, commands and
    headings stay as they are."""
    parts = text.split("\n\n")
    return "\n\n".join(
        part if part.startswith(("#", "|", "```")) else "\n".join(wrap(part, 100)) for part in parts
    )


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

_LAYERS = "decoder layers that began as layers {layers} of the target"
_MODEL = "a small model that was given"

_TEXT = """\
# A draft for {words.target}

{verdict}

{parameters} parameters in 8 bits ({stored}): {origin} and were distilled from the whole target, and
the {kept} tokens that the draft can propose. {words.storage}
The engine `torch` computes only the head's rows of those tokens when it drafts. Tokens outside are
never proposed, so the text stays exactly the target's.

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
takes {target_ms} ms, and {further_ms} ms more for each further token ({timed_on}). With these times
and the acceptance of all tasks together, the cost model of rounds (`lab/analysis/cost_models.py`)
predicts, relative to the target alone and at the best draft length (in brackets):

| temperature | accepted | RTT 0 | RTT 30 ms |
|---|---|---|---|
{speeds}

## Training

KL(target ‖ draft) over the tokens that it can propose, blending into total variation, after what
the target said of {distinct} tokens: {answers} answers of its own (sampled at temperature 1, 0.6
and 0) with their prompts, and {texts} texts by others that it only read. {tokens} tokens in
{steps} steps, with pads, in {minutes} minutes of training; sampling and all else included it took
{whole_minutes} minutes. Muon for matrices, AdamW for norms, bfloat16 autocast where the processor
is quick at it. Seed {seed}. Machine: {machine}.

```bash
{command}
```

{words.prompts} A longer `--minutes` goes on from the checkpoint in `--cache`.

## Licence and limits

{words.licence} The draft says nothing sensible by itself; it belongs to these very weights of the
target, and is joined with no others.
"""
