"""FSD's Table 8 with a pair that sees: the robot's times, and a task in miniature.

The pair and its exits are trained when the table is made; exits once with pictures and once on the
same texts without them, which is what training them on texts alone would give."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import chain
from pathlib import Path
from statistics import fmean

import numpy as np

from lab.analysis.cost_models import expected_tokens_per_round
from lab.bench.harness.report import progress
from lab.bench.papers import fsd_findings
from lab.bench.papers.fsd_printed import ROBOT
from lab.bench.papers.paper_table import Basis, Figures, Labels, PaperRow, PaperTable
from lab.bench.papers.robot_task import RobotTask, robot_task
from lab.bench.papers.testbed import Testbed
from lab.bench.papers.vision_pair import train_pair
from lab.simulation.answer_figures import answers_figures, cache_miss_rate
from lab.training.exit_texts import PicturedText
from lab.training.exit_training import ExitTraining, train_exits
from tandem.backends.interface import Engine, Session
from tandem.backends.torch.loading import load_engine
from tandem.core.probs import SamplingParams
from tandem.specdec.presets import PRESETS, Preset
from tandem.testing.simulation.answer import (
    Conditions,
    SimulatedAnswer,
    simulate_answer,
    verified_acceptance,
)
from tandem.testing.simulation.model_pair import SimulatedPair, simulated_pair
from tandem.testing.simulation.model_times import ModelTimes

DRAFT_LENGTH = 4
WORKERS = 6
EXITS = 5
STEPS = 600
QUICK_STEPS = 250
EXIT_STEPS = 300
QUICK_EXIT_STEPS = 100
ANSWERS = 60
QUICK_ANSWERS = 20
ANSWER_TOKENS = 24
EXIT_TEXTS = 200
TASKS_FROM = 10**9
"""Seeds of the tasks that are asked; those trained on lie below."""
ON_PICTURES = "texts with pictures"
ON_TEXTS = "the texts alone"


def tables() -> tuple[PaperTable, ...]:
    return (
        PaperTable(
            key="fsd-table-8-pair",
            paper="FSD",
            place="Table 8, section 4.4, with a pair that sees",
            title="The robot in miniature: exits of a vision target, trained with pictures",
            labels=("exits trained on",),
            figures=("AR → SD", "SD → FSD", "τ", "r, %", "exits right, %"),
            rows=(
                PaperRow((ON_PICTURES,), (0.90, 1.34, 2.92, 55.63, None)),
                PaperRow((ON_TEXTS,), (None,) * 5, "not in the paper"),
            ),
            basis=Basis.VIRTUAL_TIME,
            declared="Table 8a's times are declared (288, 620, 120 ms), 100 Mbit/s, six workers, "
            "γ = 4. Target and draft are Qwen2-VL in miniature (six layers of 64, one of 48), "
            "trained for this table on pictures of 24 × 24 pixels: find the square of a colour "
            "among two, say where both are, and move. Five exits, by `tandem train-exits` with "
            "and without `--pictures`. Exits right: how often their likeliest token is the "
            "target's own in answers to other pictures.",
            printed="No weights of Qwen2-VL-2B and -7B are here: what is shown is that exits of a "
            "model that sees work, not how often the paper's pair agrees.",
            finding=fsd_findings.robot_pair,
            compute=_with_exits,
        ),
    )


def _with_exits(testbed: Testbed, labels: Labels) -> Figures:
    """Return AR → SD, SD → FSD, τ, and in percent the miss rate and the exits' agreement."""
    trained = testbed.once("robot pair", lambda: _TrainedPair(testbed))
    target = load_engine(trained.target, exits=str(trained.exits[str(labels[0])]))
    draft = load_engine(trained.draft)
    tasks = [
        robot_task(TASKS_FROM + testbed.seed * ANSWERS + number)
        for number in range(QUICK_ANSWERS if testbed.quick else ANSWERS)
    ]
    pairs = [_seeing(draft, target, task) for task in tasks]
    times = ModelTimes(ROBOT.drafting_ms / DRAFT_LENGTH / 1e3, ROBOT.verify_ms / 1e3, 0.0)
    conditions = Conditions(times, 2 * ROBOT.link_ms / 1e3, 100.0)
    fsd = replace(
        PRESETS["fsd"].with_draft_length(DRAFT_LENGTH),
        exits=len(target.exit_depths),
        predraft_workers=WORKERS,
    )
    sd = PRESETS["dssd"].with_draft_length(DRAFT_LENGTH)
    plain, fast = (_answers(one, pairs, tasks, conditions, testbed.seed) for one in (sd, fsd))
    plain_s, fast_s = (float(answers_figures(answers)["tpot_s"]) for answers in (plain, fast))
    tokens = expected_tokens_per_round(verified_acceptance(plain) or 0.0, DRAFT_LENGTH)
    missed = cache_miss_rate(fast)
    return (
        *(times.verify_first_s / plain_s, plain_s / fast_s, tokens),
        None if missed is None else 100 * missed,
        100 * fmean(_agreement(pair, task) for pair, task in zip(pairs, tasks, strict=True)),
    )


class _TrainedPair:
    """Folders of a pair that learnt the task, and of its target's exits; gone with the report."""

    def __init__(self, testbed: Testbed) -> None:
        self._folder = tempfile.TemporaryDirectory()
        folder = Path(self._folder.name)
        seed = testbed.seed
        progress("training a pair that sees")
        self.target, self.draft = train_pair(folder, seed, QUICK_STEPS if testbed.quick else STEPS)
        tasks = [robot_task(seed * EXIT_TEXTS + number) for number in range(EXIT_TEXTS)]
        stream = np.array(list(chain.from_iterable(one.unseen_ids for one in tasks)))
        steps = QUICK_EXIT_STEPS if testbed.quick else EXIT_STEPS
        training = ExitTraining(exits=EXITS, rank=32, steps=steps, length=64, seed=seed)
        pictured = [PicturedText(one.token_ids, (one.image,)) for one in tasks]
        self.exits = {ON_PICTURES: folder / "pictures", ON_TEXTS: folder / "texts"}
        progress("training its exits")
        train = partial(train_exits, self.target, stream)
        train(self.exits[ON_PICTURES], training, on_step=_progress_of(steps), pictured=pictured)
        train(self.exits[ON_TEXTS], training, on_step=_progress_of(steps))


def _progress_of(steps: int) -> Callable[[int, float], None]:
    """Return a callback that reports each finished fifth of the training."""

    def on_step(done: int, _: float) -> None:
        if done % max(1, steps // 5) == 0:
            progress(f"{done} of {steps} steps")

    return on_step


def _seeing(draft: Engine, target: Engine, task: RobotTask) -> SimulatedPair:
    """Return the distributions of both models while they look at the task's picture."""

    def attach(engine: Engine, session: Session) -> None:
        assert engine.vision is not None
        engine.vision.attach(session, task.prompt_ids, engine.vision.prepare([task.image]))

    return simulated_pair(draft, target, SamplingParams(), attach)


def _answers(
    preset: Preset,
    pairs: list[SimulatedPair],
    tasks: list[RobotTask],
    conditions: Conditions,
    seed: int,
) -> list[SimulatedAnswer]:
    """Return an answer to each task, each with another seed."""
    return [
        simulate_answer(preset, pair, conditions, task.prompt_ids, ANSWER_TOKENS, seed + number)
        for number, (pair, task) in enumerate(zip(pairs, tasks, strict=True))
    ]


def _agreement(pair: SimulatedPair, task: RobotTask) -> float:
    """Return how often an exit's likeliest token along the answer is the target's, over all
    exits."""
    ends = range(len(task.prompt_ids), len(task.token_ids))
    contexts = [task.token_ids[:end] for end in ends]
    likeliest = [int(pair.target_probs(context).argmax()) for context in contexts]
    return fmean(
        int(exit_probs(context).argmax()) == token
        for exit_probs in pair.exit_distributions
        for context, token in zip(contexts, likeliest, strict=True)
    )
