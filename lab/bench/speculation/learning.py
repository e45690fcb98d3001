"""`bench learning`: the acceptance of a draft that learns while it is used, against the same draft
that does not.

Two suites run side by side as processes, one with a drafter that learns. Both answer the same
stream of questions with the same seeds, one question after the other; in between, the learning
drafter has time to learn: until it has nothing left to do, but no longer than `MOST_PAUSE_S`. Every
fifth question comes at once, and interrupts it. After the stream come questions of another kind,
which show whether what was learned harms elsewhere.

Acceptance is the share of the drafts sent that were accepted, over windows of 50 questions. Answers
of both suites to a question are the same text (Gumbel coupling), so that they are compared on the
same tokens. `--offline` computes acceptance without services (`offline_learning`).
"""

from __future__ import annotations

import asyncio
import hashlib
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import TypeVar
from urllib.request import urlopen

from prometheus_client.parser import text_string_to_metric_families

from lab.bench.harness.plots import panels
from lab.bench.harness.report import Goal, Report, Row, counted, make_row
from lab.bench.harness.suite import Models, Suite, running_suite
from lab.bench.harness.workload import ANSWER_TIMEOUT_S
from lab.bench.speculation.learning_streams import STREAMS, other_questions, stream_questions
from lab.bench.speculation.offline_learning import (
    AT_ONCE,
    Learned,
    learned_stream,
    save_answers,
    saved_answers,
    target_answers,
)
from tandem.backends.model_description import load_tokenizer
from tandem.backends.torch.loading import load_engine
from tandem.core.errors import InvalidArgument
from tandem.core.probs import SamplingParams
from tandem.core.prompt import Turn
from tandem.generation.client import AggregatorClient, Generated
from tandem.generation.request import GenerationRequest
from tandem.learning.adaptation import adaptation_of
from tandem.learning.evaluation import Outcome, acceptance
from tandem.learning.examples import Example
from tandem.learning.tenant import LearningSetup, TenantLearning
from tandem.net.process import run_loop
from tandem.specdec.messages import GenerationParams
from tandem.text.tool_prompt import conversation_ids

T = TypeVar("T")

PRESET = "coupled"
TEMPERATURES = (0.0, 1.0)
QUESTIONS = 400
QUICK_QUESTIONS = 24
OTHERS = 100
QUICK_OTHERS = 6
WINDOW = 50
QUICK_WINDOW = 8
TOKENS = 128
QUICK_TOKENS = 48
MOST_PAUSE_S = 30.0
QUICK_PAUSE_S = 6.0
SETTLING_S = 1.0
"""After an answer, before a drafter that has nothing to learn is believed: it learns when idle."""
INTERRUPTS_EVERY = 5
LEAST_GAIN = 1.15
LEAST_ELSEWHERE = 0.97
MOST_TPOT = 1.05
STREAM = "stream"
OTHER = "another kind"
COLUMNS = (
    *("kind", "temperature", "window", "questions", "frozen_acceptance", "acceptance_rate"),
    *("gain", "frozen_tpot_s", "tpot_s", "same_text"),
)
LEARNED_COLUMNS = (
    *("temperature", "adopted", "rejected", "rolled_back", "steps", "interrupted"),
    *("training_s", "training_cpu_s"),
)
OFFLINE_COLUMNS = (
    *("kind", "temperature", "window", "questions", "frozen_acceptance", "acceptance_rate"),
    *("gain", "steps", "training_s"),
)
OFFLINE_LEARNED_COLUMNS = (
    *("temperature", "adopted", "rejected", "rolled_back", "steps", "training_cpu_s"),
)
OFFLINE_BYTES = 4 * 2**20


@dataclass(frozen=True, slots=True)
class Asked:
    """A question's answers by the draft that stays as it is, and by the one that learns."""

    frozen: Generated
    learning: Generated


def run(
    report: Report,
    models: Models,
    tasks: Path | None = None,
    offline: bool = False,
    answers: Path | None = None,
    idle_s: float | None = None,
    logprobs: int = 8,
    stream: str | None = None,
    count: int | None = None,
) -> None:
    """Fill the report with rows for each window and temperature, and with goals for the last window
    and for questions of another kind. `tasks`: folder with gsm8k-test.jsonl or gsm8k-train.jsonl,
    and HumanEval.jsonl.gz; without them held-out texts of this repository, which are fewer.
    `idle_s`: how long the draft may learn after each question. `offline`: without services;
    `answers` is a folder that keeps the target's answers for it. `logprobs`: how many of the
    likeliest tokens the target reports. `stream`: one of `learning_streams.STREAMS`; `count`: how
    many of its questions."""
    quick = report.quick
    if idle_s is None:
        idle_s = QUICK_PAUSE_S if quick else MOST_PAUSE_S
    stream = stream or STREAMS[0]
    asked_first = stream_questions(stream, tasks)[
        : count or (QUICK_QUESTIONS if quick else QUESTIONS)
    ]
    others = other_questions(tasks)[: QUICK_OTHERS if quick else OTHERS]
    window = QUICK_WINDOW if quick else WINDOW
    if offline:
        _run_offline(
            report,
            models,
            asked_first,
            others,
            window=window,
            folder=answers,
            idle_s=idle_s,
            logprobs=logprobs,
        )
        return
    learned = []
    for temperature in TEMPERATURES:
        with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
            frozen = stack.enter_context(running_suite(models, shares_cores=True))
            options = (
                *("--learn", "true", "--learn-folder", folder),
                *("--learn-logprobs", str(logprobs)),
            )
            learning = stack.enter_context(
                running_suite(models, shares_cores=True, drafter_options=options)
            )
            asking = _Asking(frozen, learning, temperature, report.seed, quick, idle_s)
            asked = run_loop(asking.ask_all([*asked_first, *others]))
            learned.append(_learned_row(learning, temperature, report.seed))
        rows = [
            *window_rows(asked[: len(asked_first)], STREAM, temperature, window),
            *window_rows(asked[len(asked_first) :], OTHER, temperature, max(1, len(others))),
        ]
        for row in rows:
            row["seed"] = report.seed
        report.add(f"Acceptance at temperature {temperature:g}", COLUMNS, rows)
        report.goals += goals(rows, temperature)
    report.add("Learning", LEARNED_COLUMNS, learned)
    report.notes.append(
        f"{len(asked_first)} questions ({stream}), then {len(others)} of another kind; at most"
        f" {QUICK_TOKENS if quick else TOKENS} tokens each, preset {PRESET}. `gain`: acceptance ÷"
        " that of the draft that does not learn, on the same questions."
    )


def _run_offline(
    report: Report,
    models: Models,
    stream: Sequence[str],
    others: Sequence[str],
    *,
    window: int,
    folder: Path | None,
    idle_s: float,
    logprobs: int,
) -> None:
    """Fill the report as `run` does, with acceptance that is computed without services."""
    tokens = QUICK_TOKENS if report.quick else TOKENS
    draft = load_engine(models.draft, drafts=True)
    adaptation = adaptation_of(draft)
    if adaptation is None:
        raise InvalidArgument("draft", f"{draft.model_name} cannot learn")
    learned_rows = []
    for temperature in TEMPERATURES:
        texts = _offline_answers(
            models,
            [*stream, *others],
            temperature=temperature,
            seed=report.seed,
            max_tokens=tokens,
            top_logprobs=logprobs if temperature else 0,
            path=None if folder is None else folder / f"answers-{temperature:g}.json",
        )
        setup = LearningSetup(
            adaptation=adaptation,
            vocabulary_hash=draft.vocabulary_hash,
            vocabulary_size=draft.vocabulary_size,
            model_hash=models.draft,
            max_bytes=OFFLINE_BYTES,
        )
        with tempfile.TemporaryDirectory() as place:
            learning = TenantLearning(Path(place), setup)
            learning.read()
            learned = learned_stream(
                counted(texts, lambda _: "answer"), learning, adaptation, idle_s
            )
        rows = [
            *offline_rows(learned[: len(stream)], STREAM, temperature, window),
            *offline_rows(learned[len(stream) :], OTHER, temperature, max(1, len(others))),
        ]
        for row in rows:
            row["seed"] = report.seed
        report.add(f"Acceptance at temperature {temperature:g}", OFFLINE_COLUMNS, rows)
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
    report.add("Learning", OFFLINE_LEARNED_COLUMNS, learned_rows)
    report.notes.append(
        f"{len(stream)} questions, then {len(others)} of another kind; at most {tokens}"
        f" tokens each. Acceptance is computed from the draft's distributions; after each question"
        f" at most {idle_s:g} s of processor time to learn."
    )


def _offline_answers(
    models: Models,
    questions: Sequence[str],
    *,
    temperature: float,
    seed: int,
    max_tokens: int,
    top_logprobs: int,
    path: Path | None,
) -> list[Example]:
    """Return the target's answers to the questions: those kept in the file `path`, else new ones,
    which are then kept there."""
    made_for = {
        "target": models.target,
        "questions": hashlib.sha256("\0".join(questions).encode()).hexdigest(),
        "temperature": temperature,
        "seed": seed,
        "max_tokens": max_tokens,
        "top_logprobs": top_logprobs,
    }
    kept = None if path is None else saved_answers(path, made_for)
    if kept is not None:
        return kept
    tokenizer = load_tokenizer(models.target)
    target = load_engine(models.target)
    prompts = [conversation_ids(tokenizer, [Turn("user", question)]) for question in questions]
    made = target_answers(
        target,
        prompts,
        temperature=temperature,
        seed=seed,
        max_tokens=max_tokens,
        top_logprobs=top_logprobs,
        counted=lambda firsts: counted(firsts, lambda _: f"{AT_ONCE} answers of the target"),
    )
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        save_answers(path, made, made_for)
    return made


def offline_rows(answers: Sequence[Learned], kind: str, temperature: float, size: int) -> list[Row]:
    """Return rows as `window_rows` does, for answers whose acceptance was computed."""
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


def window_rows(answers: Sequence[Asked], kind: str, temperature: float, size: int) -> list[Row]:
    """Return a row for each whole window of `size` answers; if there are fewer, one row of all."""
    return [
        _window_row(some, kind, temperature, number)
        for number, some in enumerate(_windows(answers, size), start=1)
    ]


def _windows(answers: Sequence[T], size: int) -> list[Sequence[T]]:
    size = min(size, len(answers)) or 1
    return [answers[first : first + size] for first in range(0, len(answers) - size + 1, size)]


def _window_row(answers: Sequence[Asked], kind: str, temperature: float, window: int) -> Row:
    frozen = _acceptance([each.frozen for each in answers])
    learning = _acceptance([each.learning for each in answers])
    same = [each.frozen.token_ids == each.learning.token_ids for each in answers]
    return make_row(
        preset=PRESET,
        kind=kind,
        temperature=temperature,
        window=window,
        questions=len(answers),
        frozen_acceptance=frozen,
        acceptance_rate=learning,
        gain=learning / frozen if frozen else None,
        frozen_tpot_s=_tpot_s([each.frozen for each in answers]),
        tpot_s=_tpot_s([each.learning for each in answers]),
        same_text=sum(same) / len(same),
    )


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
    times = [row for row in rows if row["tpot_s"] and row["frozen_tpot_s"]]
    if times:
        ratio = fmean(row["tpot_s"] / row["frozen_tpot_s"] for row in times)
        found.append(Goal(f"{at}: TPOT ÷ the frozen draft's", ratio, MOST_TPOT, "at most"))
    same = [row["same_text"] for row in rows if "same_text" in row]
    if same:
        name = f"{at}: share of answers with the same text"
        found.append(Goal(name, min(same), 1.0, "at least"))
    return found


def draw(report: Report, folder: Path) -> None:
    """Draw the acceptance over the windows of the stream, with learning and without."""
    rows = [row for row in report.rows if row.get("kind") == STREAM]
    curves = [
        {**row, "draft": draft, "acceptance": row[name], "stream": "questions"}
        for row in rows
        for draft, name in (("learning", "acceptance_rate"), ("frozen", "frozen_acceptance"))
    ]
    panels(
        folder / "learning.png",
        curves,
        x="window",
        y="acceptance",
        columns="stream",
        lines="temperature",
        by="draft",
        title="Acceptance of a draft that learns",
    )


@dataclass(frozen=True, slots=True)
class _Asking:
    """Asks both suites the same questions."""

    frozen: Suite
    learning: Suite
    temperature: float
    seed: int
    quick: bool
    idle_s: float

    async def ask_all(self, texts: Sequence[str]) -> list[Asked]:
        answers = []
        async with (
            AggregatorClient(self.frozen.aggregator) as frozen,
            AggregatorClient(self.learning.aggregator) as learning,
        ):
            for number, text in enumerate(counted(texts, lambda _: "question")):
                request = self._request(text, number)
                pair = [
                    await client.generate(request, ANSWER_TIMEOUT_S)
                    for client in (frozen, learning)
                ]
                answers.append(Asked(*pair))
                if number % INTERRUPTS_EVERY:
                    await asyncio.to_thread(self._pause)
        return answers

    def _request(self, text: str, number: int) -> GenerationRequest:
        params = GenerationParams(
            sampling=SamplingParams(temperature=self.temperature),
            max_tokens=QUICK_TOKENS if self.quick else TOKENS,
            seed=self.seed + number,
        )
        return GenerationRequest((Turn("user", text),), PRESET, params)

    def _pause(self) -> None:
        """Wait until the drafter has nothing left to learn, but not for ever."""
        ends_s = time.monotonic() + self.idle_s
        time.sleep(SETTLING_S)
        while time.monotonic() < ends_s and learning_figures(self.learning)["backlog_tokens"]:
            time.sleep(0.2)


def learning_figures(suite: Suite) -> dict[str, float]:
    """Return what the drafter's metrics report of its learning, by their names without the prefix;
    counts of judgements by their outcome."""
    with urlopen(f"http://{suite.drafter_metrics}/metrics", timeout=10) as answer:
        text = answer.read().decode()
    figures = {"backlog_tokens": 0.0}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            name = sample.name.removeprefix("tandem_learning_")
            if name != sample.name:
                figures[sample.labels.get("outcome", name)] = sample.value
    return figures


def _learned_row(suite: Suite, temperature: float, seed: int) -> Row:
    figures = learning_figures(suite)
    return make_row(
        preset=PRESET,
        seed=seed,
        temperature=temperature,
        **{name: int(figures.get(name, 0)) for name in ("adopted", "rejected", "rolled_back")},
        steps=int(figures.get("steps_total", 0)),
        interrupted=int(figures.get("interrupted_total", 0)),
        training_s=figures.get("seconds_total", 0.0),
        training_cpu_s=figures.get("cpu_seconds_total", 0.0),
    )


def _acceptance(answers: Sequence[Generated]) -> float:
    """Return the acceptance over all drafts of several answers; 0 without drafts."""
    summaries = [answer.summary for answer in answers if answer.summary is not None]
    drafted = sum(summary.drafted for summary in summaries)
    return sum(summary.accepted for summary in summaries) / drafted if drafted else 0.0


def _tpot_s(answers: Sequence[Generated]) -> float | None:
    times = [answer.tpot_s for answer in answers if answer.tpot_s is not None]
    return fmean(times) if times else None
