"""Answers by real processes beside the same answers in virtual time, and where the difference is.

Verifier, drafter and aggregator run as processes, one core a side, with a link emulator between
them. The same prompts, seeds and presets then run in virtual time with the distributions of the
same models, so that the same drafts are accepted. What a token takes longer is split in three:
draft steps, and passes of the target, that lasted longer than declared (virtual time once more,
with the times that the run's own services measured); the rest is what is left: gRPC, serialising,
the link emulator, the event loops, and all that nobody has looked for.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from math import sqrt
from statistics import stdev

from lab.bench.harness.models import Models, Pacing
from lab.bench.harness.pass_times import PassSums, pass_sums
from lab.bench.harness.report import counted
from lab.bench.harness.suite import Suite, running_suite
from lab.bench.harness.texts import NoTexts, held_out
from lab.bench.harness.workload import (
    measured_tpot_s,
    one_after_another,
    requests,
    summary_of,
    total,
)
from lab.simulation.answer_figures import answers_figures, cache_miss_rate
from tandem.backends.model_description import load_tokenizer
from tandem.core.probs import SamplingParams
from tandem.generation.client import Generated
from tandem.generation.request import GenerationRequest
from tandem.net.process import run_loop
from tandem.specdec.overrides import with_overrides
from tandem.specdec.presets import PRESETS, Preset
from tandem.testing.simulation.answer import Conditions, SimulatedAnswer, simulate_answer
from tandem.testing.simulation.model_pair import SimulatedPair
from tandem.testing.simulation.model_times import ModelTimes
from tandem.text.tokenizer import TextTokenizer

Simulate = Callable[[ModelTimes], list[SimulatedAnswer]]
WARM_UP_TOKENS = 4
PATIENT = ("--dead-after-s", "60", "--give-up-after-s", "90")
"""Whole distributions of a tree keep a link of 1 Mbit/s busy for longer than a drafter waits."""


@dataclass(frozen=True, slots=True)
class ProcessRun:
    """A method on a link. `rtt_s`: round trip in seconds; `mbps`: 10⁶ bit/s each way."""

    preset: str
    rtt_s: float
    mbps: float | None
    draft_length: int | None = None
    overrides: tuple[str, ...] = ()

    @property
    def composed(self) -> Preset:
        """The preset as a request of this run has it."""
        preset = PRESETS[self.preset]
        if self.draft_length is not None:
            preset = preset.with_draft_length(self.draft_length)
        return with_overrides(preset, self.overrides)

    def __str__(self) -> str:
        link = f"{self.rtt_s * 1e3:g} ms, {self.mbps or float('inf'):g} Mbit/s"
        length = "" if self.draft_length is None else f", draft length {self.draft_length}"
        return ", ".join([f"{self.preset}{length}", *self.overrides, link])


@dataclass(frozen=True, slots=True)
class Questions:
    """What every run of a table is asked, one answer after another, of `tokens` tokens each; the
    answers' seeds count up from `seed`."""

    texts: tuple[str, ...]
    tokens: int
    seed: int
    sampling: SamplingParams = field(default_factory=SamplingParams)


@dataclass(frozen=True, slots=True)
class RunResult:
    """Seconds a token after the first, by processes and in virtual time.

    `tpot_s` = `virtual_s` + `draft_excess_s` + `target_excess_s` + `rest_s`: what is left of
    the difference. `same_texts`: how many answers are the same text as in virtual time.
    """

    tpot_s: float
    virtual_s: float
    draft_excess_s: float
    target_excess_s: float
    rest_s: float
    acceptance_rate: float | None
    miss_rate: float | None
    virtual_miss_rate: float | None
    same_texts: int
    answers_s: tuple[float, ...]
    """Of each answer."""

    def over(self, alone: RunResult) -> tuple[float, float]:
        """Return how many times as fast as `alone` the answers were, and the standard error of that
        by pairs of answers to one question."""
        ratios = [other / own for own, other in zip(self.answers_s, alone.answers_s, strict=True)]
        error = stdev(ratios) / sqrt(len(ratios)) if len(ratios) > 1 else 0.0
        return alone.tpot_s / self.tpot_s, error


def long_prompts(tokenizer: TextTokenizer, count: int, tokens: int) -> tuple[str, ...]:
    """Return the first `count` held-out texts that are long enough, cut to `tokens` tokens. Raises
    NoTexts when there are fewer."""
    chosen = []
    for document in held_out():
        token_ids = tokenizer.encode(document["text"])
        cut = tokenizer.decode(token_ids[:tokens])
        if len(token_ids) >= tokens and len(tokenizer.encode(cut)) == tokens:
            chosen.append(cut)
        if len(chosen) == count:
            return tuple(chosen)
    raise NoTexts(f"{count} texts of {tokens} tokens wanted, {len(chosen)} there")


def run_processes(
    models: Models,
    pair: SimulatedPair,
    pacing: Pacing,
    runs: Sequence[ProcessRun],
    questions: Questions,
) -> dict[ProcessRun, RunResult]:
    """Measure `runs` with one suite: question by question each of them in turn, so that what
    changes on the machine falls on all. `pair`: the models' distributions. `pacing`: declared step
    times. Raises SuiteFailed when a process does not start."""
    tokenizer = load_tokenizer(models.target)
    prompts = [tuple(tokenizer.encode(text)) for text in questions.texts]
    done: dict[ProcessRun, list[Generated]] = {run: [] for run in runs}
    drafting = dict.fromkeys(runs, PassSums(0.0, 0.0))
    with running_suite(models, pacing, with_link=True, drafter_options=PATIENT) as suite:
        assert suite.link is not None, "a link was asked for"
        suite.link.set(0.0, None)
        _warm_up(suite, questions)
        turns = [(number, run) for number in range(len(prompts)) for run in runs]
        for number, run in counted(turns, lambda turn: f"by processes: {turn[1]}"):
            suite.link.set(run.rtt_s, run.mbps)
            before = pass_sums(suite.drafter_metrics)
            done[run] += run_loop(one_after_another(suite, [_requests(run, questions)[number]]))
            drafting[run] += pass_sums(suite.drafter_metrics) - before
    return {
        run: beside(
            done[run],
            partial(_simulated, run, pair, prompts, questions),
            pacing,
            drafting[run].mean_s,
        )
        for run in runs
    }


def _warm_up(suite: Suite, questions: Questions) -> None:
    """Bring the prompts' keys into memory before anything is measured: the figures are of tokens
    after the first."""
    wanted = requests(questions.texts, "dsd", 2, WARM_UP_TOKENS, questions.seed)
    run_loop(one_after_another(suite, wanted))


def _requests(run: ProcessRun, questions: Questions) -> list[GenerationRequest]:
    return requests(
        questions.texts,
        run.preset,
        run.draft_length,
        questions.tokens,
        questions.seed,
        questions.sampling,
        run.overrides,
    )


def _simulated(
    run: ProcessRun,
    pair: SimulatedPair,
    prompts: Sequence[tuple[int, ...]],
    questions: Questions,
    times: ModelTimes,
) -> list[SimulatedAnswer]:
    conditions = Conditions(times, run.rtt_s, run.mbps)
    return [
        simulate_answer(
            run.composed, pair, conditions, prompt_ids, questions.tokens, questions.seed + number
        )
        for number, prompt_ids in enumerate(prompts)
    ]


def beside(
    done: Sequence[Generated],
    simulate: Simulate,
    pacing: Pacing,
    draft_s: float | None,
) -> RunResult:
    """Return how long answers by processes took, beside the same answers in virtual time.
    `simulate`: the same answers at given ModelTimes; `draft_s`: the mean draft step as the drafter
    measured it."""
    tpot_s = measured_tpot_s(done)
    summaries = [summary_of(one) for one in done]
    passes = sum(timed_passes(one.target_passes, one.rounds) for one in summaries)
    pass_s = total(done, "verify_s") / passes
    declared = ModelTimes(pacing.draft_s, pacing.verify_first_s, pacing.verify_further_s)
    answers = simulate(declared)
    virtual_s = _tpot_s(answers)
    own_draft = replace(declared, draft_s=draft_s or declared.draft_s)
    with_draft_s = _tpot_s(simulate(own_draft))
    first_s = declared.verify_first_s + pass_s - _mean_pass_s(answers, declared)
    with_both_s = _tpot_s(simulate(replace(own_draft, verify_first_s=first_s)))
    drafted = total(done, "drafted")
    return RunResult(
        tpot_s=tpot_s,
        answers_s=tuple(measured_tpot_s([one]) for one in done),
        virtual_s=virtual_s,
        draft_excess_s=with_draft_s - virtual_s,
        target_excess_s=with_both_s - with_draft_s,
        rest_s=tpot_s - with_both_s,
        acceptance_rate=total(done, "accepted") / drafted if drafted else None,
        miss_rate=_miss_rate(done),
        virtual_miss_rate=cache_miss_rate(answers),
        same_texts=sum(
            tuple(real.token_ids) == simulated.token_ids
            for real, simulated in zip(done, answers, strict=True)
        ),
    )


def _tpot_s(answers: Sequence[SimulatedAnswer]) -> float:
    return float(answers_figures(answers)["tpot_s"])


def timed_passes(passes: float, rounds: float) -> float:
    """Return how many of an answer's passes have a reported time. Where drafts are judged, the pass
    over the prompt is done when the first ones come, and no verdict has its time."""
    return passes - 1 if rounds else passes


def _mean_pass_s(answers: Sequence[SimulatedAnswer], declared: ModelTimes) -> float:
    """Return the mean seconds of a pass, counted as by processes, where the prompt's keys are in
    memory: the cloud alone then feeds a token a pass, while virtual time's first pass has the whole
    prompt."""
    if not any(answer.stats.rounds for answer in answers):
        return declared.verify_first_s
    passes = sum(timed_passes(one.stats.target_passes, one.stats.rounds) for one in answers)
    return sum(answer.stats.verify_s for answer in answers) / passes


def _miss_rate(done: Sequence[Generated]) -> float | None:
    hits, misses = total(done, "predraft_hits"), total(done, "predraft_misses")
    return misses / (hits + misses) if hits + misses else None
