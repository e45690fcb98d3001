"""`bench lookup`: drafts without a model on prompts that answers repeat, against Hugging Face's
prompt lookup with the same target, precision, prompts and number of tokens, at temperature 0.

A summary, an answer from a document, a changed function. Ours runs as edge and cloud processes over
loopback gRPC with one core each; the peer is one process with both cores. Configurations take
turns, so that load from elsewhere meets all alike. Best against best counts, and every text must be
the one that Hugging Face's model gives alone. With `--target` of a real model, which `make
real-pair` makes: the demo target was trained to repeat nothing.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import Any

from lab.bench.harness.peer_process import PeerProcess
from lab.bench.harness.report import Goal, Report, Row, counted, make_row
from lab.bench.harness.suite import Models, Suite, running_suite
from lab.bench.harness.texts import read_peps
from lab.bench.harness.workload import answers_row, one_after_another, requests
from lab.bench.speculation.hugging_face import running_peer
from tandem.core.probs import SamplingParams
from tandem.core.tree import check_path
from tandem.generation.client import Generated
from tandem.net.process import run_loop

LOOKUPS = (3, 6, 10)
"""Tokens that either side drafts at most; 10 is transformers' advice."""
GOAL = 1.0
COLUMNS = (
    *("task", "method", "draft_length", "tokens_per_s", "ratio_to_alone"),
    *("target_passes_per_token", "equal_texts", "tokens"),
)


def run(report: Report, models: Models) -> None:
    """Fill the report; each task has a goal for the speed and one for the texts."""
    max_tokens, turns = (48, 1) if report.quick else (128, 3)
    with ExitStack() as stack:
        ours = replace(models, draft=models.target, draft_engine="lookup")
        suite = stack.enter_context(running_suite(ours))
        peer = stack.enter_context(running_peer(models, 2))
        for task, prompts in tasks(turns).items():
            methods = _methods(suite, peer)
            for method in methods:
                method.answer(prompts[:1], 4)
                method.forget()
            for prompt in counted(prompts, lambda prompt: "both take turns"):
                for method in methods:
                    method.answer([prompt], max_tokens)
            _add(report, task, methods)
    report.notes.append(
        "Ours is edge and cloud over loopback gRPC, one core each, preset lookup; Hugging Face's is"
        " generate(prompt_lookup_num_tokens=…) with both cores. Temperature 0: all texts should be"
        " the target's own."
    )


def tasks(turns: int) -> dict[str, list[str]]:
    """Return up to `turns` prompts of each task, by its name."""
    documents = [peps.text[:1200] for peps in read_peps()[:turns]]
    functions = [inspect.getsource(function) for function in (check_path, answers_row, requests)]
    return {
        "summary": [
            f"Text:\n{text}\n\nThe main sentences of the text, word by word:\n-"
            for text in documents
        ],
        "document": [
            f"Document:\n{text}\n\nQuestion: What does the document say?\nAnswer: It says: "
            for text in documents
        ],
        "code": [
            f"```python\n{text}```\nThe same function with a logging call at its beginning:\n"
            "```python\n"
            for text in functions[:turns]
        ],
    }


class Method:
    """One way to answer, with what it answered so far."""

    name: str
    draft_length: int | None

    def answer(self, prompts: Sequence[str], max_tokens: int) -> None:
        raise NotImplementedError

    def forget(self) -> None:
        """Drop the answers so far, so that they do not count."""
        raise NotImplementedError

    def row(self) -> Row:
        raise NotImplementedError

    def texts(self) -> list[list[int]]:
        raise NotImplementedError


@dataclass(slots=True)
class Ours(Method):
    suite: Suite
    name: str
    draft_length: int | None
    answers: list[Generated] = field(default_factory=list)

    def answer(self, prompts: Sequence[str], max_tokens: int) -> None:
        greedy = SamplingParams(temperature=0.0)
        wanted = requests(prompts, self.name, self.draft_length, max_tokens, 1, greedy)
        self.answers += run_loop(one_after_another(self.suite, wanted))

    def forget(self) -> None:
        self.answers.clear()

    def row(self) -> Row:
        return answers_row(self.name, self.draft_length, self.answers)

    def texts(self) -> list[list[int]]:
        return [list(answer.token_ids) for answer in self.answers]


@dataclass(slots=True)
class HuggingFaces(Method):
    peer: PeerProcess
    name: str
    draft_length: int | None
    answers: list[dict[str, Any]] = field(default_factory=list)

    def answer(self, prompts: Sequence[str], max_tokens: int) -> None:
        request = {
            "prompts": list(prompts),
            "max_tokens": max_tokens,
            "temperature": 0.0,
            "seed": 1,
        }
        policy = None if self.draft_length is None else {"lookup": self.draft_length}
        self.answers.append(self.peer.answer({**request, "assistant": policy}))

    def forget(self) -> None:
        self.answers.clear()

    def row(self) -> Row:
        tokens = sum(answer["tokens"] for answer in self.answers)
        return make_row(
            preset=None,
            draft_length=self.draft_length,
            tokens_per_s=tokens / sum(answer["duration_s"] for answer in self.answers),
            target_passes_per_token=sum(a["target_passes"] for a in self.answers) / tokens,
            tokens=tokens,
        )

    def texts(self) -> list[list[int]]:
        return [text for answer in self.answers for text in answer["texts"]]


def _methods(suite: Suite, peer: PeerProcess) -> list[Method]:
    return [
        HuggingFaces(peer, "hf-plain", None),
        *(HuggingFaces(peer, "hf-lookup", count) for count in LOOKUPS),
        Ours(suite, "ar", None),
        *(Ours(suite, "lookup", count) for count in LOOKUPS),
    ]


def _add(report: Report, task: str, methods: Sequence[Method]) -> None:
    alone = methods[0].texts()
    rows = []
    for method in methods:
        row = method.row() | {"task": task, "method": method.name, "seed": report.seed}
        same = sum(text == baseline for text, baseline in zip(method.texts(), alone, strict=True))
        rows.append(row | {"equal_texts": same / len(alone)})
    for row in rows:
        baseline = rows[0] if row["method"].startswith("hf") else _best(rows, "ar")
        row["ratio_to_alone"] = row["tokens_per_s"] / baseline["tokens_per_s"]
    report.add(f"{task}, float32, temperature 0", COLUMNS, rows)
    ours, theirs = _best(rows, "lookup"), _best(rows, "hf-lookup")
    name = f"{task}: lookup n={ours['draft_length']} ÷ hf-lookup n={theirs['draft_length']}"
    ratio = ours["tokens_per_s"] / theirs["tokens_per_s"]
    report.goals.append(Goal(f"{name}, tokens/s", ratio, GOAL, "at least"))
    least = min(row["equal_texts"] for row in rows)
    report.goals.append(Goal(f"{task}: texts equal to hf-plain's", least, 1.0, "at least"))


def _best(rows: Sequence[Row], method: str) -> Row:
    chosen = (row for row in rows if row["method"] == method)
    return max(chosen, key=lambda row: row["tokens_per_s"])
