"""`bench memory`: tokens per second with what the drafter remembers, over those without.

Three kinds of tasks: changes of functions, as an editor asks for them (the solutions of HumanEval
with `--tasks`, else functions of this program); chats whose second turn asks for the first answer
again; and answers from documents in the prompt. Verifier, drafter and aggregator run as processes.
Each task is answered once with the memory and once without it, one after the other, and the next
task begins with the other way, so that load from elsewhere meets both. A task is never asked for
twice with the memory: what helps is the prompt, the answer so far and the tasks before it, as in
the work of one person. At temperature 0, so that both ways must give one text.

By default the cloud looks drafts up in the text itself, in both ways, as it does for users. So the
ratio is what is remembered beyond that; `--edge-alone` leaves the cloud's drafts out of both.
"""

from __future__ import annotations

import asyncio
import gzip
import json
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory

from lab.bench.harness.report import Goal, Report, Row, counted
from lab.bench.harness.suite import Models, Suite, running_suite
from lab.bench.harness.texts import NoTexts, read_peps
from lab.bench.harness.workload import ANSWER_TIMEOUT_S, answers_row, total
from lab.bench.speculation.code_edits import code_edits
from tandem.core.probs import SamplingParams
from tandem.core.prompt import Prompt, Turn
from tandem.generation.client import AggregatorClient, Generated
from tandem.generation.request import GenerationRequest
from tandem.net.process import run_loop
from tandem.specdec.messages import GenerationParams

PRESET = "auto"
COUNTS: Mapping[str, int] = {"edits": 50, "chats": 12, "documents": 12}
QUICK_COUNTS: Mapping[str, int] = {"edits": 4, "chats": 2, "documents": 2}
TOKENS = 160
QUICK_TOKENS = 40
GOALS: Mapping[str, float] = {"edits": 1.5, "chats": 1.0, "documents": 1.0}
PASSAGE = 900
"""Characters of a document in a prompt."""
MEMORY_TOKENS = 2**18
SETTLED_S = 0.2
"""Before each answer. What the last one leaves to the services, they do after its caller has it."""
COLUMNS = (
    *("task", "memory", "tokens_per_s", "ratio", "target_passes_per_token", "acceptance_rate"),
    *("accepted_memory", "rejected_memory", "prompts", "tokens", "same_text"),
)


def run(
    report: Report, models: Models, tasks: Path | None = None, edge_alone: bool = False
) -> None:
    """Fill the report with two rows and a goal for each kind of task, and with a goal for the
    texts. `tasks`: folder with HumanEval.jsonl.gz. `edge_alone`: the cloud makes no drafts."""
    counts = QUICK_COUNTS if report.quick else COUNTS
    with (
        running_suite(
            models,
            shares_cores=True,
            target_threads=1,
            drafter_options=("--memory-tokens", str(MEMORY_TOKENS)),
        ) as suite,
    ):
        asked = _Asked(
            seed=report.seed,
            tokens=QUICK_TOKENS if report.quick else TOKENS,
            overrides=("cloud_drafts=none",) if edge_alone else (),
        )
        run_loop(_measure(report, suite, _tasks(counts, report.seed, tasks), asked))
    source = "HumanEval's solutions" if tasks is not None else "functions of this program"
    report.notes.append(
        f"Temperature 0, preset {PRESET}; edits: {source}, a change asked for in words. What is"
        " remembered: the prompt, the answer so far, and the tasks before it. The cloud"
        f" {'makes no drafts of its own' if edge_alone else 'looks drafts up in both ways'}."
    )


@dataclass(frozen=True, slots=True)
class _Asked:
    """What all requests have in common."""

    seed: int
    tokens: int
    overrides: tuple[str, ...] = ()

    def request(self, prompt: Prompt, number: int, remembers: bool) -> GenerationRequest:
        params = GenerationParams(
            sampling=SamplingParams(temperature=0.0),
            max_tokens=self.tokens,
            seed=self.seed + number,
            ignore_eos=True,
        )
        return GenerationRequest(
            prompt, PRESET, params, overrides=self.overrides, no_memory=not remembers
        )


@dataclass(slots=True)
class _Way:
    """With the memory or without it, and what it answered."""

    remembers: bool
    answers: list[Generated] = field(default_factory=list)


async def _measure(
    report: Report, suite: Suite, tasks: Mapping[str, Sequence[Prompt]], asked: _Asked
) -> None:
    rows = list[Row]()
    async with AggregatorClient(suite.aggregator) as client:
        for remembers in (False, True):  # what a process does once is not measured
            await client.generate(asked.request("Hello", 0, remembers), ANSWER_TIMEOUT_S)
        for name, prompts in tasks.items():
            ways = [_Way(False), _Way(True)]
            numbered = counted([*enumerate(prompts)], lambda _: "both ways take turns")
            for number, prompt in numbered:
                for way in ways[:: -1 if number % 2 else 1]:
                    await asyncio.sleep(SETTLED_S)
                    wanted = asked.request(prompt, number, way.remembers)
                    way.answers.append(await _answer(client, wanted))
            rows += _compared(report, name, ways)
    same = min(row["same_text"] for row in rows)
    report.goals.append(Goal("share of answers with one text", same, 1.0, "at least"))
    report.add("With what is remembered, and without", COLUMNS, rows)


async def _answer(client: AggregatorClient, wanted: GenerationRequest) -> Generated:
    """Return the answer; for a chat, that of its second turn, which quotes the first."""
    answer = await client.generate(wanted, ANSWER_TIMEOUT_S)
    if isinstance(wanted.prompt, str):
        return answer
    turns = (
        *wanted.prompt,
        Turn("assistant", answer.text),
        Turn("user", "Say that once more, word by word, then go on with one more sentence."),
    )
    return await client.generate(replace(wanted, prompt=turns), ANSWER_TIMEOUT_S)


def _compared(report: Report, name: str, ways: Sequence[_Way]) -> list[Row]:
    """Return the rows of both ways, and add a goal. `ratio`: tokens per second ÷ those without the
    memory."""
    same = sum(
        tuple(one.token_ids) == tuple(other.token_ids)
        for one, other in zip(ways[0].answers, ways[1].answers, strict=True)
    )
    rows = [
        answers_row(PRESET, None, way.answers)
        | {
            "task": name,
            "seed": report.seed,
            "memory": "on" if way.remembers else "off",
            "accepted_memory": int(total(way.answers, "accepted_memory_tokens")),
            "rejected_memory": int(total(way.answers, "rejected_memory_tokens")),
            "same_text": same / len(way.answers),
        }
        for way in ways
    ]
    rows[1]["ratio"] = rows[1]["tokens_per_s"] / rows[0]["tokens_per_s"]
    goal = f"{name}, with the memory ÷ without: tokens/s"
    report.goals.append(Goal(goal, rows[1]["ratio"], GOALS[name], "at least"))
    return rows


def _tasks(counts: Mapping[str, int], seed: int, folder: Path | None) -> dict[str, list[Prompt]]:
    return {
        "edits": [*edit_prompts(counts["edits"], seed, folder)],
        "chats": [(Turn("user", text),) for text in _questions(counts["chats"], seed)],
        "documents": [*_document_prompts(counts["documents"], seed)],
    }


def edit_prompts(count: int, seed: int, folder: Path | None) -> list[str]:
    """Return prompts that ask for changes of functions: of HumanEval's solutions in the `folder`,
    or of this program. Raises NoTexts for a folder without them."""
    if folder is None:
        return [edit.prompt for edit in code_edits(count, seed)]
    with TemporaryDirectory(prefix="tandem-bench-") as place:
        for number, solution in enumerate(_solutions(folder / "HumanEval.jsonl.gz")):
            (Path(place) / f"{number:03}.py").write_text(solution, encoding="utf-8")
        return [edit.prompt for edit in code_edits(count, seed, Path(place))]


def _solutions(path: Path) -> Iterator[str]:
    try:
        with gzip.open(path, "rt", encoding="utf-8") as lines:
            for line in lines:
                problem = json.loads(line)
                yield problem["prompt"] + problem["canonical_solution"]
    except (OSError, ValueError, KeyError) as error:
        raise NoTexts(f"{path}: cannot be read: {error!r}") from None


def _passages(count: int, seed: int) -> list[tuple[str, str]]:
    """Return titles and beginnings of documents."""
    documents = read_peps()
    random.Random(seed).shuffle(documents)
    return [(each.title, each.text[:PASSAGE]) for each in documents[:count]]


def _questions(count: int, seed: int) -> list[str]:
    return [
        f"{text}\n\nWhat does this text, {title}, propose?"
        for title, text in _passages(count, seed)
    ]


def _document_prompts(count: int, seed: int) -> Iterator[str]:
    """Yield prompts with two documents each, of which the next prompt has one again, as happens
    with searches."""
    passages = _passages(count + 1, seed + 1)
    for first, second in pairwise(passages):
        context = "\n\n".join(f"Document: {title}\n{text}" for title, text in (first, second))
        yield f"{context}\n\nQuestion: What does {second[0]} say?\nAnswer: It says:"
