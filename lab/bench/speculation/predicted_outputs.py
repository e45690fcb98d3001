"""`bench prediction`: predicted outputs on changes of source code, against the draft model alone.

The caller sends the old text as `prediction`, the answer is the new one. No small model edits code
well, so the target is made to say the new text, whatever its weights would: a scripted engine over
the demo pair's tokenizer that recites it. The draft model likewise: it is right as often as
`ACCEPTANCE` declares, at places that a hash chooses, and its steps and the target's passes take
declared times. All else is real: services, gRPC, schedules, acceptance, an emulated link. So the
figures compare ways to draft for texts that are this alike; they say nothing of how well a model
edits. Answers of both ways take turns.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from lab.bench.harness.report import Goal, Report, Row, counted
from lab.bench.harness.suite import Models, Pacing
from lab.bench.harness.workload import ANSWER_TIMEOUT_S, answers_row, total
from lab.bench.speculation.code_edits import CodeEdit, code_edits
from tandem.backends.interface import Engine
from tandem.backends.model_description import load_tokenizer
from tandem.core.hashing import hash_words, unit
from tandem.core.probs import one_hot
from tandem.generation.client import AggregatorClient, Generated
from tandem.generation.request import GenerationRequest
from tandem.net.process import run_loop
from tandem.netem.link_model import shape_from
from tandem.specdec.messages import GenerationParams
from tandem.suite.embedded import EmbeddedSuite
from tandem.suite.models import ModelPair
from tandem.testing.context_engine import ContextEngine
from tandem.testing.paced import PacedEngine
from tandem.text.tokenizer import TextTokenizer

EDITS = 50
QUICK_EDITS = 6
ACCEPTANCE = 0.7
"""Of the draft model's tokens: usual for a distilled pair on code."""
PACING = Pacing(draft_s=0.006, verify_first_s=0.018, verify_further_s=0.0002)
RTT_S = 0.030
PRESETS = ("auto", "coupled")
MOST_PASSES = 0.5
LEAST_SPEED = 1.5
CONTEXT = 4096
COLUMNS = (
    *("preset", "drafts", "tokens_per_s", "ratio", "target_passes_per_token", "acceptance_rate"),
    *("accepted_prediction", "rejected_prediction", "uplink_bytes_per_token", "same_text"),
)

Ids = tuple[int, ...]


def run(report: Report, models: Models) -> None:
    """Fill the report with a row for each preset and way to draft, and with goals for each
    preset."""
    tokenizer = load_tokenizer(models.target, None)
    edits = code_edits(QUICK_EDITS if report.quick else EDITS, report.seed)
    tasks = [Task.of(edit, tokenizer) for edit in edits]
    run_loop(_measure(report, tasks, tokenizer))
    report.notes.append(
        f"{len(edits)} changes of functions and classes of this program, by the seed: names"
        " changed, lines inserted, deleted, reworded; prediction: the old text."
    )
    report.notes.append(
        "The target recites the new text, and the draft model is right with a declared probability"
        f" of {ACCEPTANCE}. Declared times: draft step {PACING.draft_s * 1e3:g} ms, pass"
        f" {PACING.verify_first_s * 1e3:g} ms and {PACING.verify_further_s * 1e3:g} ms a further"
        f" token, round trip {RTT_S * 1e3:g} ms."
    )


@dataclass(frozen=True, slots=True)
class Task:
    """A change as token ids, and the text that its caller predicts."""

    prompt_ids: Ids
    answer_ids: Ids
    prediction: str

    @classmethod
    def of(cls, edit: CodeEdit, tokenizer: TextTokenizer) -> Task:
        answer_ids = tuple(tokenizer.encode_piece(edit.new))
        return cls(tuple(tokenizer.encode(edit.prompt)), answer_ids, edit.old)

    def request(self, preset: str, seed: int, predicts: bool) -> GenerationRequest:
        params = GenerationParams(max_tokens=len(self.answer_ids), seed=seed, ignore_eos=True)
        prediction = self.prediction if predicts else ""
        return GenerationRequest(self.prompt_ids, preset, params, prediction=prediction)


@dataclass(slots=True)
class _Way:
    """One preset with one way to draft, and what it answered."""

    preset: str
    predicts: bool
    answers: list[Generated] = field(default_factory=list)
    same: int = 0


async def _measure(report: Report, tasks: Sequence[Task], tokenizer: TextTokenizer) -> None:
    ways = [_Way(preset, predicts) for preset in PRESETS for predicts in (False, True)]
    link = shape_from(RTT_S)
    async with (
        EmbeddedSuite(recited_pair(tasks, tokenizer), link=link) as suite,
        AggregatorClient(suite.target) as client,
    ):
        for way in ways:  # what a process does once is not measured
            await client.generate(tasks[0].request(way.preset, 0, way.predicts), ANSWER_TIMEOUT_S)
        for number, task in enumerate(counted(tasks, lambda task: "all take turns")):
            for way in ways[number % 2 :: 2] + ways[1 - number % 2 :: 2]:
                request = task.request(way.preset, report.seed + number, way.predicts)
                answer = await client.generate(request, ANSWER_TIMEOUT_S)
                way.answers.append(answer)
                way.same += tuple(answer.token_ids) == task.answer_ids
            await asyncio.sleep(0)
    rows = [_row(way, report.seed) for way in ways]
    _compare(report, rows)


def _row(way: _Way, seed: int) -> Row:
    row = answers_row(way.preset, None, way.answers)
    return row | {
        "seed": seed,
        "pacing": PACING.to_json(),
        "rtt_s": RTT_S,
        "drafts": "prediction" if way.predicts else "draft model",
        "accepted_prediction": int(total(way.answers, "accepted_prediction_tokens")),
        "rejected_prediction": int(total(way.answers, "rejected_prediction_tokens")),
        "same_text": way.same / len(way.answers),
    }


def _compare(report: Report, rows: Sequence[Row]) -> None:
    """Add the rows and their goals to the report. `ratio`: tokens per second ÷ those of the draft
    model alone."""
    for preset in PRESETS:
        alone, predicted = (row for row in rows if row["preset"] == preset)
        predicted["ratio"] = predicted["tokens_per_s"] / alone["tokens_per_s"]
        passes = predicted["target_passes_per_token"] / alone["target_passes_per_token"]
        name = f"{preset}, with the prediction ÷ with the draft model alone"
        report.goals.append(
            Goal(f"{name}: target passes per token", passes, MOST_PASSES, "at most")
        )
        report.goals.append(Goal(f"{name}: tokens/s", predicted["ratio"], LEAST_SPEED, "at least"))
    least = min(row["same_text"] for row in rows)
    report.goals.append(Goal("share of answers that are the new text", least, 1.0, "at least"))
    report.add("Changes of source code, paced models, emulated link", COLUMNS, rows)


def recited_pair(
    tasks: Sequence[Task], tokenizer: TextTokenizer, acceptance: float = ACCEPTANCE
) -> ModelPair:
    """Return a pair of scripted models: a target that says each task's answer after its prompt,
    whatever was said so far, and a draft model that is right with probability `acceptance`; both
    paced as `PACING` declares."""
    answers = {task.prompt_ids: task.answer_ids for task in tasks}
    target = PacedEngine(
        _engine(Recited(answers, tokenizer.model_size), tokenizer),
        PACING.verify_first_s,
        PACING.verify_further_s,
        PACING.verify_further_s,
    )
    draft = PacedEngine(
        _engine(Recited(answers, tokenizer.model_size, acceptance), tokenizer), PACING.draft_s, 0.0
    )
    return ModelPair(draft=draft, target=target, tokenizer=tokenizer)


def _engine(recited: Recited, tokenizer: TextTokenizer) -> Engine:
    return ContextEngine(
        tokenizer.model_size,
        recited,
        model_name="recited",
        vocabulary_hash=tokenizer.vocabulary_hash,
        context_length=CONTEXT,
        eos_token_ids=tokenizer.eos_token_ids,
    )


class Recited:
    """The distribution after a context that begins with one of the prompts: certain of the answer's
    token there, or with probability 1 - `acceptance` of another one. A position and a prompt decide
    which, so that an answer asked for again meets the same drafts."""

    def __init__(
        self, answers: Mapping[Ids, Ids], vocabulary_size: int, acceptance: float = 1.0
    ) -> None:
        self._answers = answers
        self._vocabulary_size = vocabulary_size
        self._acceptance = acceptance
        self._lengths = sorted({len(prompt) for prompt in answers}, reverse=True)
        self._last: Ids = ()

    def __call__(self, context: Ids) -> NDArray[np.float32]:
        prompt = self._prompt(context)
        answer = self._answers.get(prompt, ())
        place = len(context) - len(prompt)
        token_id = answer[place] if place < len(answer) else 0
        word = hash_words(len(prompt), len(answer), place)
        if unit(word) >= self._acceptance:
            token_id = (token_id + 1 + word % (self._vocabulary_size - 1)) % self._vocabulary_size
        return one_hot(self._vocabulary_size, token_id)

    def _prompt(self, context: Ids) -> Ids:
        """Return the prompt that the context begins with: the last one if it fits, as most often,
        else the longest; empty where none fits."""
        if self._last and context[: len(self._last)] == self._last:
            return self._last
        for length in self._lengths:
            if (prompt := context[:length]) in self._answers:
                self._last = prompt
                return prompt
        return ()
