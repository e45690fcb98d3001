"""The demo pair by task: how many drafts of a round stand, which early exit was right first, and
what that makes of FSD's speedups."""

from __future__ import annotations

from itertools import islice
from statistics import fmean

import numpy as np

from lab.analysis.cost_models import expected_tokens_per_round
from lab.bench.papers.fsd_printed import TABLE_5, TABLE_6
from lab.bench.papers.fsd_runs import conditions_of, speeds
from lab.bench.papers.paper_table import Basis, Figures, Labels, PaperRow, PaperTable
from lab.bench.papers.task_files import FILES as FILES
from lab.bench.papers.task_files import TaskText, task_items
from lab.bench.papers.task_files import task_texts as task_texts
from lab.bench.papers.testbed import Testbed
from lab.bench.speculation.demo_pair import MAX_CHARACTERS, distributions_along
from lab.bench.speculation.methods_grid import Question
from tandem.backends.interface import Engine, ForwardRequest, Logits
from tandem.backends.model_description import load_tokenizer
from tandem.backends.torch.loading import load_engine
from tandem.core.probs import Array
from tandem.specdec.presets import PRESETS
from tandem.testing.simulation.answer import simulate_answer

DRAFT_LENGTH = 4
MAX_TOKENS = 192
MAX_PROMPT_TOKENS = 128
OWN_ANSWER_TOKENS = 64
TEXTS = 60
QUICK_TEXTS = 12
PROMPTS = 12
QUICK_PROMPTS = 4
TASKS = ("MT-bench", "HumanEval", "GSM8K", "Alpaca", "CNN/DM", "NQ", "PEPs", "WikiText-2")
COLUMN = ("Vicuna-68m/Vicuna-7B", "RTX")
"""Of Table 6, whose draft and target are nearest in size to the demo pair's."""
_FILES = (
    "GSM8K and PEPs are held out from the models' training and come with this repository; the "
    "others, and GSM8K's test split, are read from `--tasks FOLDER`, where they are there: "
    "docs/benchmarks.md says as which files."
)


def tables() -> tuple[PaperTable, ...]:
    return (
        PaperTable(
            key="tasks",
            paper="FSD",
            place="Table 6, by task",
            title="The demo pair by task: tokens a round, and the early exit that was right first",
            labels=("task",),
            figures=("τ", "α", "average exit, % of the pass", "never right, %"),
            rows=tuple(_row(task, (_printed(task, 2), None, None, None)) for task in TASKS),
            basis=Basis.DISTRIBUTIONS,
            declared="Texts of each task through demo draft and demo target at temperature 1; α is "
            f"Σ min(P, Q), τ follows by equation 5 at γ = {DRAFT_LENGTH}. Where a file has "
            f"questions alone, the text is the question and the target's own answer. {_FILES}",
            compute=_by_task,
            needs=("tasks",),
            printed=f"The printed τ is of {' on '.join(COLUMN)}.",
        ),
        PaperTable(
            key="tasks-speed",
            paper="FSD",
            place="Table 6, by task",
            title="Speedups by task, in virtual time",
            labels=("task",),
            figures=("AR → SD", "SD → FSD", "τ", "r, %"),
            rows=tuple(_row(task, _printed_speeds(task)) for task in TASKS),
            basis=Basis.VIRTUAL_TIME,
            declared=f"Prompts of each task, step times and round trip of {' on '.join(COLUMN)} "
            f"(Table 5), 100 Mbit/s; distributions and exits are those of the pair that is here, "
            f"at temperature 1, all of its exits throughout. {_FILES}",
            compute=_speed_by_task,
            needs=("tasks",),
            printed="The printed figures are of the same column of Table 6.",
        ),
    )


def _printed(task: str, line: int) -> float | None:
    return TABLE_6[task][line][list(TABLE_5).index(COLUMN)] if task in TABLE_6 else None


def _printed_speeds(task: str) -> Figures:
    return tuple(_printed(task, line) for line in (0, 1, 2, 3))


def _row(task: str, printed: Figures) -> PaperRow:
    needs = "needs --tasks" if task in FILES else ""
    remark = ", ".join(filter(None, ("" if task in TABLE_6 else "not FSD's", needs)))
    return PaperRow((task,), printed, remark)


def _chosen(testbed: Testbed, task: str, count: int) -> list[TaskText]:
    """Return up to `count` items of a task, from all parts of its file."""
    items = task_items(task, testbed.tasks)
    return items[:: max(1, len(items) // count)][:count]


def _by_task(testbed: Testbed, labels: Labels) -> Figures:
    chosen = _chosen(testbed, str(labels[0]), QUICK_TEXTS if testbed.quick else TEXTS)
    if not chosen:
        return (None,) * 4
    models = testbed.models
    target, draft, tokenizer = testbed.once(
        "task engines",
        lambda: (
            load_engine(models.target, exits="auto"),
            load_engine(models.draft),
            load_tokenizer(models.target),
        ),
    )
    overlaps: list[float] = []
    first: list[int] = []
    for item in chosen:
        token_ids = tokenizer.encode(item.whole[:MAX_CHARACTERS])[:MAX_TOKENS]
        if not item.answer:
            token_ids = _answered(testbed, token_ids)
        if len(token_ids) < 2:
            continue
        probs = distributions_along(target, token_ids), distributions_along(draft, token_ids)
        overlaps += np.minimum(*probs).sum(axis=1).tolist()
        first += first_right_exits(target, token_ids, probs[0])
    rate = fmean(overlaps)
    return (expected_tokens_per_round(rate, DRAFT_LENGTH), rate, *_exits(first, target.exit_depths))


def _answered(testbed: Testbed, token_ids: list[int]) -> list[int]:
    """Return the tokens of a question and of the target's answer to it."""
    prompt_ids = tuple(token_ids[:MAX_PROMPT_TOKENS])
    conditions = conditions_of(COLUMN)
    answer = simulate_answer(
        PRESETS["ar"], testbed.pair, conditions, prompt_ids, OWN_ANSWER_TOKENS, testbed.seed
    )
    return [*prompt_ids, *answer.token_ids]


def _speed_by_task(testbed: Testbed, labels: Labels) -> Figures:
    count = QUICK_PROMPTS if testbed.quick else PROMPTS
    chosen = _chosen(testbed, str(labels[0]), count)
    if not chosen:
        return (None,) * 4
    tokenizer = load_tokenizer(testbed.models.target)
    encoded = (tokenizer.encode(item.prompt[:MAX_CHARACTERS]) for item in chosen)
    questions = [
        Question(tuple(token_ids[-MAX_PROMPT_TOKENS:]), testbed.seed + number, 0)
        for number, token_ids in enumerate(islice(encoded, count))
        if token_ids
    ]
    return speeds(testbed, conditions_of(COLUMN), questions)


def first_right_exits(target: Engine, token_ids: list[int], probs: Array) -> list[int]:
    """Return, after each token but the last, the first exit whose likeliest token is the target's;
    -1 where none is right. Empty without exits."""
    exits = tuple(range(len(target.exit_depths)))
    likeliest: dict[int, Array] = {}

    def keep(index: int, logits: Logits) -> None:
        likeliest[index] = np.asarray(logits).argmax(axis=-1)

    session = target.open(len(token_ids) - 1)
    try:
        fed = tuple(token_ids[:-1])
        target.forward([ForwardRequest(session, fed, len(fed), exits=exits, on_exit=keep)])
    finally:
        session.close()
    right = [likeliest[index] == probs.argmax(axis=-1) for index in exits]
    if not right:
        return []
    stacked = np.stack(right)
    first_right: list[int] = np.where(stacked.any(axis=0), stacked.argmax(axis=0), -1).tolist()
    return first_right


def _exits(first: list[int], depths: tuple[float, ...]) -> tuple[float | None, float | None]:
    """Return the mean depth of the exits that were right first, and how often none was, both in
    percent."""
    matched = [depths[index] for index in first if index >= 0]
    if not matched:
        return None, None
    return 100 * fmean(matched), 100 * (1 - len(matched) / len(first))
