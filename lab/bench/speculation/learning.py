"""`bench learning`: the acceptance of a draft that learns while it is used, against the same draft
that does not, without services.

The target answers all questions first; the draft then learns from one answer after the other, and
each is judged by what was learned before it (`offline_learning`): at temperature 0 as agreement, at
1 as the overlap of both distributions. After the stream come questions of another kind, which show
whether what was learned harms elsewhere.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean

from lab.bench.harness.models import Models
from lab.bench.harness.report import Goal, Report, Row, counted, make_row
from lab.bench.speculation.learning_streams import STREAM, other_questions, stream_questions
from lab.bench.speculation.offline_learning import AT_ONCE, Learned, learned_stream, target_answers
from tandem.backends.model_description import load_tokenizer
from tandem.backends.torch.loading import load_engine
from tandem.core.errors import InvalidArgument
from tandem.core.prompt import Turn
from tandem.learning.adaptation import adaptation_of
from tandem.learning.evaluation import Outcome, acceptance
from tandem.learning.examples import Example
from tandem.learning.tenant import LearningSetup, TenantLearning
from tandem.text.tool_prompt import conversation_ids

PRESET = "coupled"
TEMPERATURES = (0.0, 1.0)
QUESTIONS = 200
QUICK_QUESTIONS = 24
OTHERS = 100
QUICK_OTHERS = 6
WINDOW = 50
QUICK_WINDOW = 8
TOKENS = 128
QUICK_TOKENS = 48
MOST_PAUSE_S = 30.0
QUICK_PAUSE_S = 6.0
"""Of processor time to learn after each question."""
LOGPROBS = 8
"""Likeliest tokens that the target tells with each token, above temperature 0."""
MAX_BYTES = 4 * 2**20
LEAST_GAIN = 1.15
LEAST_ELSEWHERE = 0.97
OTHER = "another kind"
COLUMNS = (
    *("kind", "temperature", "window", "questions", "frozen_acceptance", "acceptance_rate"),
    *("gain", "steps", "training_s"),
)
LEARNED_COLUMNS = (
    *("temperature", "adopted", "rejected", "rolled_back", "steps", "training_cpu_s"),
)


def run(report: Report, models: Models, tasks: Path | None = None) -> None:
    """Fill the report with acceptance over windows of the stream, and on questions of another kind.
    `tasks`: folder with HumanEval.jsonl.gz, whose functions are the other kind; without it
    beginnings of PEPs. Raises InvalidArgument("draft") for one that cannot learn."""
    quick = report.quick
    stream = stream_questions()[: QUICK_QUESTIONS if quick else QUESTIONS]
    others = other_questions(tasks)[: QUICK_OTHERS if quick else OTHERS]
    window = QUICK_WINDOW if quick else WINDOW
    draft = load_engine(models.draft, drafts=True)
    adaptation = adaptation_of(draft)
    if adaptation is None:
        raise InvalidArgument("draft", f"{draft.model_name} cannot learn")
    setup = LearningSetup(
        adaptation=adaptation,
        vocabulary_hash=draft.vocabulary_hash,
        vocabulary_size=draft.vocabulary_size,
        model_hash=models.draft,
        max_bytes=MAX_BYTES,
    )
    idle_s = QUICK_PAUSE_S if quick else MOST_PAUSE_S
    learned_rows = []
    for temperature in TEMPERATURES:
        texts = _answers(models, [*stream, *others], temperature, report)
        with tempfile.TemporaryDirectory() as place:
            learning = TenantLearning(Path(place), setup)
            learning.read()
            answers = counted(texts, lambda _: "answer")
            learned = learned_stream(answers, learning, adaptation, idle_s)
        rows = [
            *window_rows(learned[: len(stream)], STREAM, temperature, window),
            *window_rows(learned[len(stream) :], OTHER, temperature, max(1, len(others))),
        ]
        for row in rows:
            row["seed"] = report.seed
        report.add(f"Acceptance at temperature {temperature:g}", COLUMNS, rows)
        report.goals += goals(rows, temperature)
        outcomes = [outcome for each in learned for outcome in each.outcomes]
        learned_rows.append(
            make_row(
                preset=PRESET,
                seed=report.seed,
                temperature=temperature,
                **{str(outcome): outcomes.count(outcome) for outcome in Outcome},
                steps=sum(each.steps for each in learned),
                training_cpu_s=sum(each.training_s for each in learned),
            )
        )
    report.add("Learning", LEARNED_COLUMNS, learned_rows)
    report.notes.append(
        f"{len(stream)} questions, then {len(others)} of another kind. Acceptance is computed from"
        f" the draft's distributions; after each question at most {idle_s:g} s of processor time to"
        " learn. gain: acceptance ÷ that of the draft that does not learn."
    )


def _answers(
    models: Models, questions: Sequence[str], temperature: float, report: Report
) -> list[Example]:
    tokenizer = load_tokenizer(models.target)
    return target_answers(
        load_engine(models.target),
        [conversation_ids(tokenizer, [Turn("user", question)]) for question in questions],
        temperature=temperature,
        seed=report.seed,
        max_tokens=QUICK_TOKENS if report.quick else TOKENS,
        top_logprobs=LOGPROBS if temperature else 0,
        counted=lambda firsts: counted(firsts, lambda _: f"{AT_ONCE} answers of the target"),
    )


def window_rows(answers: Sequence[Learned], kind: str, temperature: float, size: int) -> list[Row]:
    """Return a row for each whole window of `size` answers; if there are fewer, one row of all."""
    rows = []
    for number, some in enumerate(_windows(answers, size), start=1):
        frozen = acceptance([each.frozen for each in some])
        adapted = acceptance([each.adapted for each in some])
        rows.append(
            make_row(
                preset=PRESET,
                kind=kind,
                temperature=temperature,
                window=number,
                questions=len(some),
                frozen_acceptance=frozen,
                acceptance_rate=adapted,
                gain=adapted / frozen if frozen else None,
                steps=sum(each.steps for each in some),
                training_s=fmean(each.training_s for each in some),
            )
        )
    return rows


def _windows(answers: Sequence[Learned], size: int) -> list[Sequence[Learned]]:
    size = min(size, len(answers)) or 1
    return [answers[first : first + size] for first in range(0, len(answers) - size + 1, size)]


def goals(rows: Sequence[Row], temperature: float) -> list[Goal]:
    """Return the goals of a draft that learns, at this temperature."""
    stream = [row for row in rows if row["kind"] == STREAM]
    others = [row for row in rows if row["kind"] == OTHER]
    at = f"temperature {temperature:g}"
    found = [
        Goal(
            f"{at}: acceptance in the last window ÷ the frozen draft's",
            stream[-1]["gain"] or 0.0,
            LEAST_GAIN,
            "at least",
        )
    ]
    if others:
        found.append(
            Goal(
                f"{at}: the same on questions of another kind",
                min(row["gain"] or 0.0 for row in others),
                LEAST_ELSEWHERE,
                "at least",
            )
        )
    return found
