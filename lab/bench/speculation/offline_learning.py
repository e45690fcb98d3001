"""Learning without services, to study it: the target answers all questions first, many at once, and
a draft model then learns from one answer after the other, by the drafter's own code.

Acceptance is computed from the draft's distribution at each token of an answer, not counted while
it is drafted: it does not depend on draft lengths, and each answer is judged by what was learned
before it. `Learned.training_s` is what a drafter would need between two questions.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tandem.backends.interface import Engine, ForwardRequest, Session
from tandem.core.gumbel import coupled_token
from tandem.core.probs import Array, SamplingParams, most_likely, probs_from_logits
from tandem.learning.adaptation import Adaptation
from tandem.learning.evaluation import Outcome, Score
from tandem.learning.examples import Example, TargetProbs
from tandem.learning.tenant import TenantLearning

AT_ONCE = 16
"""Answers of the target that share passes."""


@dataclass(frozen=True, slots=True)
class Learned:
    """One answer: the expected acceptance of the draft as it was installed, and with what it had
    learned before; then the steps and seconds of learning from it, and what judgements said."""

    frozen: Score
    adapted: Score
    steps: int
    training_s: float
    outcomes: tuple[Outcome, ...]


def target_answers(
    engine: Engine,
    prompts: Sequence[Sequence[int]],
    *,
    temperature: float,
    seed: int,
    max_tokens: int,
    top_logprobs: int = 0,
    counted: Callable[[Sequence[int]], Iterable[int]] = iter,
) -> list[Example]:
    """Return the target's answers, each drawn with Gumbel noise by a different seed, as preset
    coupled draws them. `top_logprobs`: how many of the likeliest tokens are kept with each token,
    above temperature 0. `counted` shows the progress; see `harness.report.counted`."""
    answers: list[Example] = []
    sampling = SamplingParams(temperature=temperature)
    for first in counted(range(0, len(prompts), AT_ONCE)):
        group = prompts[first : first + AT_ONCE]
        sessions = [engine.open(len(prompt) + max_tokens) for prompt in group]
        texts = [list(prompt) for prompt in group]
        known: list[dict[int, TargetProbs]] = [{} for _ in group]
        waiting = {number: list(prompt) for number, prompt in enumerate(group)}
        while waiting:
            rows = _rows(engine, sessions, waiting)
            for number, row in rows.items():
                text = texts[number]
                prompt = group[number]
                probs = probs_from_logits(row, sampling)
                token = coupled_token(probs, seed + first + number, len(text))
                if top_logprobs and temperature:
                    known[number][len(text)] = _likeliest(probs, top_logprobs)
                text.append(token)
                ended = token in engine.eos_token_ids or len(text) == len(prompt) + max_tokens
                if ended:
                    del waiting[number]
                else:
                    waiting[number] = [token]
        for session in sessions:
            session.close()
        answers += [
            Example(
                token_ids=np.array(text, dtype=np.int32),
                first=len(prompt),
                temperature=temperature,
                seed=seed + first + number if temperature else None,
                target_probs=known[number],
            )
            for number, (text, prompt) in enumerate(zip(texts, group, strict=True))
        ]
    return answers


def _likeliest(probs: Array, count: int) -> TargetProbs:
    ids = most_likely(probs, count)
    return _known(ids.tolist(), probs[ids].tolist())


def _rows(
    engine: Engine, sessions: Sequence[Session], waiting: dict[int, list[int]]
) -> dict[int, Any]:
    """Feed each session the tokens that wait for it, and return the last logits [V] of each."""
    requests = [ForwardRequest(sessions[number], tuple(ids), 1) for number, ids in waiting.items()]
    logits = engine.forward(requests)
    return {number: rows[-1] for number, rows in zip(list(waiting), logits, strict=True)}


def learned_stream(
    texts: Iterable[Example],
    learning: TenantLearning,
    adaptation: Adaptation,
    idle_s: float,
    clock: Callable[[], float] = time.thread_time,
) -> list[Learned]:
    """Judge each text, then let `learning` learn from it, until nothing is due or `idle_s` seconds
    of processor time, the time between two questions, are over. `learning` must have been read.
    Return what each text gave, in order."""
    stream = []
    for text in texts:
        part = text.part(0, min(len(text), adaptation.max_tokens), context=text.first)
        used = learning.chosen
        frozen = adaptation.score(None, part)
        adapted = frozen if used is None else adaptation.score(used.placed, part)
        learning.record(text)
        began_s, steps = clock(), 0
        outcomes = []
        while learning.due and clock() < began_s + idle_s:
            steps += learning.work(lambda: False)
            if learning.evaluated:
                outcomes.append(learning.conclude().outcome)
        training_s = clock() - began_s
        stream.append(Learned(frozen, adapted, steps, training_s, tuple(outcomes)))
    return stream


def _known(ids: Sequence[int], probs: Sequence[float]) -> TargetProbs:
    known = np.array(probs, dtype=np.float32)
    return TargetProbs(np.array(ids, dtype=np.int32), known, np.zeros_like(known))
