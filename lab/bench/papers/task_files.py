"""Texts of the tasks that the papers measure with, from files as their publishers offer them.

| task | file in the folder | format |
|---|---|---|
| HumanEval | `HumanEval.jsonl.gz` | JSON lines: `prompt`, `canonical_solution` |
| GSM8K | `gsm8k-test.jsonl` | JSON lines: `question`, `answer` |
| WikiText-2 | `wikitext2-valid.txt` | articles, each begun by a heading of one `=` |
| MT-bench | `mt-bench.jsonl` | JSON lines: `turns`, of which the first is asked |
| Alpaca | `alpaca_data.json` | a JSON list: `instruction`, `input`, `output` |
| CNN/DM | `spec-bench.jsonl` | JSON lines: `category` "summarization", `turns` |
| NQ | `spec-bench.jsonl` | JSON lines: `category` "qa", `turns` |

MT-bench is FastChat's `question.jsonl`; Spec-Bench's has both others. GSM8K and PEPs are in this
repository as well: texts that the demo pair was not trained on.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lab.bench.harness.texts import NoTexts, held_out

HELD_OUT_SOURCES = {"GSM8K": "gsm8k", "PEPs": "peps"}
FILES = {
    "HumanEval": "HumanEval.jsonl.gz",
    "WikiText-2": "wikitext2-valid.txt",
    "MT-bench": "mt-bench.jsonl",
    "Alpaca": "alpaca_data.json",
    "CNN/DM": "spec-bench.jsonl",
    "NQ": "spec-bench.jsonl",
}
GSM8K_TEST = "gsm8k-test.jsonl"
_PROMPT_SHARE = 3
"""A text without a question is asked for by its first third."""


@dataclass(frozen=True, slots=True)
class TaskText:
    """What is asked, and what a person answered: empty where the file has no answer."""

    prompt: str
    answer: str = ""

    @property
    def whole(self) -> str:
        return self.prompt + self.answer


def task_items(task: str, folder: Path | None) -> list[TaskText]:
    """Return the task's texts; none where its file is not there. Raises NoTexts for a file that is
    not what its name says."""
    if task == "GSM8K" and folder is not None and (folder / GSM8K_TEST).exists():
        return _read(folder / GSM8K_TEST, _gsm8k)
    if task in HELD_OUT_SOURCES:
        source = HELD_OUT_SOURCES[task]
        records = (record for record in held_out() if record["source"] == source)
        return [_split(record["text"], record["prompt"]) for record in records]
    path = None if folder is None else folder / FILES[task]
    if path is None or not path.exists():
        return []
    return _read(path, _READERS[task])


def task_texts(task: str, folder: Path | None) -> list[str]:
    """Return the texts of `task_items`, questions and answers in one."""
    return [item.whole for item in task_items(task, folder)]


def _read(path: Path, reader: Callable[[Path], Iterator[TaskText]]) -> list[TaskText]:
    try:
        return list(reader(path))
    except (OSError, ValueError, KeyError, TypeError, IndexError) as error:
        raise NoTexts(f"{path}: cannot be read: {error!r}") from None


def _split(text: str, prompt: str) -> TaskText:
    """Return a text as a prompt and an answer. Without a prompt that it begins with, its first part
    is taken as one."""
    if prompt and text.startswith(prompt):
        return TaskText(prompt, text[len(prompt) :])
    end = len(text) // _PROMPT_SHARE
    return TaskText(text[:end], text[end:])


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    opened = gzip.open if path.suffix == ".gz" else open
    with opened(path, "rt", encoding="utf-8") as lines:
        for line in lines:
            if line.strip():
                yield json.loads(line)


def _humaneval(path: Path) -> Iterator[TaskText]:
    for problem in _lines(path):
        yield TaskText(problem["prompt"], problem["canonical_solution"])


def _gsm8k(path: Path) -> Iterator[TaskText]:
    for problem in _lines(path):
        yield TaskText(f"Question: {problem['question']}\nAnswer:", f" {problem['answer']}")


def _mt_bench(path: Path) -> Iterator[TaskText]:
    for question in _lines(path):
        yield TaskText(question["turns"][0])


def _spec_bench(category: str) -> Callable[[Path], Iterator[TaskText]]:
    def read(path: Path) -> Iterator[TaskText]:
        for question in _lines(path):
            if question["category"] == category:
                yield TaskText(question["turns"][0])

    return read


def _alpaca(path: Path) -> Iterator[TaskText]:
    for record in json.loads(path.read_text("utf-8")):
        asked = "\n".join(filter(None, (record["instruction"], record.get("input", ""))))
        yield TaskText(f"{asked}\n", record["output"])


def _articles(path: Path) -> Iterator[TaskText]:
    """Yield the articles of WikiText, each of which begins with a heading of one `=`."""
    article: list[str] = []
    for line in path.read_text("utf-8").splitlines():
        words = line.split()
        if article and words[:1] == ["="] and words[1:2] != ["="]:
            yield _split("\n".join(article), "")
            article = []
        article.append(line)
    if article:
        yield _split("\n".join(article), "")


_READERS: dict[str, Callable[[Path], Iterator[TaskText]]] = {
    "HumanEval": _humaneval,
    "WikiText-2": _articles,
    "MT-bench": _mt_bench,
    "Alpaca": _alpaca,
    "CNN/DM": _spec_bench("summarization"),
    "NQ": _spec_bench("qa"),
}
