"""The demo pair by task: how many drafts of a round stand, and which early exit was right first."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from statistics import fmean

import numpy as np

from lab.analysis.cost_models import expected_tokens_per_round
from lab.bench.harness.texts import NoTexts, held_out
from lab.bench.papers import fsd_findings
from lab.bench.papers.fsd_printed import EXIT_TRAINING, TABLE_5, TABLE_6
from lab.bench.papers.paper_table import Basis, Figures, Labels, PaperRow, PaperTable
from lab.bench.papers.testbed import Testbed
from lab.bench.speculation.demo_pair import MAX_CHARACTERS, distributions_along
from tandem.backends.interface import Engine, ForwardRequest, Logits
from tandem.backends.torch.loading import load_engine, load_tokenizer
from tandem.core.probs import Array

DRAFT_LENGTH = 4
MAX_TOKENS = 192
TEXTS, QUICK_TEXTS = 60, 12
HELD_OUT_SOURCES = {"GSM8K": "gsm8k", "PEPs": "peps"}
FILES = {"HumanEval": "HumanEval.jsonl.gz", "WikiText-2": "wikitext2-valid.txt"}
TASKS = ("GSM8K", "HumanEval", "PEPs", "WikiText-2")
COLUMN = ("Vicuna-68m/Vicuna-7B", "RTX")
"""Of Table 6, whose draft and target are nearest in size to the demo pair's."""


def tables() -> tuple[PaperTable, ...]:
    return (
        PaperTable(
            key="tasks",
            paper="FSD",
            place="Table 6, by task",
            title="The demo pair by task: tokens a round, and the early exit that was right first",
            labels=("task",),
            figures=("τ", "α", "average exit, % of the pass", "never right, %"),
            rows=tuple(_row(task) for task in TASKS),
            basis=Basis.DISTRIBUTIONS,
            declared="Texts of each task through demo draft and demo target at temperature 1; α is "
            f"Σ min(P, Q), τ follows by equation 5 at γ = {DRAFT_LENGTH}. GSM8K and PEPs are held "
            "out from the models' training and come with this repository; HumanEval.jsonl.gz and "
            "wikitext2-valid.txt are read from `--tasks FOLDER`, if they are there.",
            compute=_by_task,
            needs=("tasks",),
            printed=f"The printed τ is of {' on '.join(COLUMN)}.",
            finding=lambda rows: fsd_findings.by_task(rows, _printed_exit_share()),
        ),
    )


def _printed_exit_share() -> float:
    """In percent of the pass: an exit follows each layer but the last."""
    exits, *_ = EXIT_TRAINING["lmsys/Vicuna-7B-v1.3"]
    return 100 * TABLE_6["GSM8K"][4][list(TABLE_5).index(COLUMN)] / (exits + 1)


def _row(task: str) -> PaperRow:
    column = list(TABLE_5).index(COLUMN)
    printed = TABLE_6[task][2][column] if task in TABLE_6 else None
    needs = "needs --tasks" if task in FILES else ""
    remark = needs if printed is not None else ", ".join(filter(None, ("not FSD's", needs)))
    return PaperRow((task,), (printed, None, None, None), remark)


def task_texts(task: str, folder: Path | None) -> list[str]:
    """The task's texts; none where its file is not there. Raises NoTexts for a file that is not
    what its name says."""
    if task in HELD_OUT_SOURCES:
        source = HELD_OUT_SOURCES[task]
        return [record["text"] for record in held_out() if record["source"] == source]
    path = None if folder is None else folder / FILES[task]
    if path is None or not path.exists():
        return []
    try:
        return list(_humaneval(path) if task == "HumanEval" else _articles(path))
    except (OSError, ValueError, KeyError) as error:
        raise NoTexts(f"{path}: cannot be read: {error!r}") from None


def _humaneval(path: Path) -> Iterator[str]:
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        for line in lines:
            problem = json.loads(line)
            yield problem["prompt"] + problem["canonical_solution"]


def _articles(path: Path) -> Iterator[str]:
    """WikiText marks an article by a heading of one `=`."""
    article: list[str] = []
    for line in path.read_text("utf-8").splitlines():
        words = line.split()
        if article and words[:1] == ["="] and words[1:2] != ["="]:
            yield "\n".join(article)
            article = []
        article.append(line)
    if article:
        yield "\n".join(article)


def _by_task(testbed: Testbed, labels: Labels) -> Figures:
    texts = task_texts(str(labels[0]), testbed.tasks)
    count = QUICK_TEXTS if testbed.quick else TEXTS
    chosen = texts[:: max(1, len(texts) // count)][:count]
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
    for text in chosen:
        token_ids = tokenizer.encode(text[:MAX_CHARACTERS])[:MAX_TOKENS]
        if len(token_ids) < 2:
            continue
        probs = distributions_along(target, token_ids), distributions_along(draft, token_ids)
        overlaps += np.minimum(*probs).sum(axis=1).tolist()
        first += first_right_exits(target, token_ids, probs[0])
    rate = fmean(overlaps)
    return (expected_tokens_per_round(rate, DRAFT_LENGTH), rate, *_exits(first, target.exit_depths))


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
    """The mean depth of the exits that were right first, and how often none was, in percent."""
    matched = [depths[index] for index in first if index >= 0]
    if not matched:
        return None, None
    return 100 * fmean(matched), 100 * (1 - len(matched) / len(first))
