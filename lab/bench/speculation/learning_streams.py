"""The questions that a draft learns from: of GSM8K, which the shipped draft of the real pair was
distilled on, or of one application that it has never seen."""

from __future__ import annotations

import gzip
import json
from itertools import product
from pathlib import Path

from lab.bench.harness.texts import NoTexts, held_out

GSM8K_FILES = ("gsm8k-test.jsonl", "gsm8k-train.jsonl")
HUMANEVAL_FILE = "HumanEval.jsonl.gz"
STREAMS = ("gsm8k", "tables")
_THINGS = (
    *("books", "bicycles", "flights", "patients", "songs", "recipes", "students", "trees"),
    *("orders", "rooms", "museums", "invoices", "animals", "films", "employees", "boats"),
    *("letters", "cars", "concerts", "gardens", "lessons", "machines", "parcels", "players"),
    *("shops", "teams", "tickets", "villages", "wines", "bridges", "cameras", "cheeses"),
    *("courses", "exhibits", "farms", "games", "horses", "islands", "libraries", "paintings"),
)
_TASKS = (
    "Write a SQL statement that creates a table of {} with five columns.",
    "Write SQL that inserts three rows into a table of {}.",
    "Write a SQL query that counts the {} of each year.",
    "Write a SQL query that lists the ten newest {} with their names.",
    "Write a SQL statement that adds a column with the price to a table of {}.",
    "Write a SQL query that finds {} without an owner.",
    "Write a SQL statement that deletes all {} older than ten years.",
    "Write a SQL query that joins {} with the cities that they are in.",
    "Write a SQL statement that creates an index on the names of {}.",
    "Write a SQL query that gives the average price of {} for each city.",
)


def stream_questions(stream: str, tasks: Path | None) -> list[str]:
    """Return at least 400 questions of a stream; of GSM8K fewer where `tasks` does not have it."""
    if stream == "gsm8k":
        return questions(tasks)
    pairs = [task.format(things) for things, task in product(_THINGS, _TASKS)]
    # Neighbours differ in both; each pair comes once, since 7 has no factor in common with 400.
    return [pairs[7 * 11 * number % len(pairs)] for number in range(len(pairs))]


def questions(tasks: Path | None) -> list[str]:
    """Return questions of GSM8K: the test split, else the training split, else those of the
    held-out texts here."""
    for name in GSM8K_FILES:
        if tasks is not None and (tasks / name).exists():
            return [record["question"] for record in _records(tasks / name, "question")]
    prompts = [record["prompt"] for record in held_out() if record["source"] == "gsm8k"]
    return [each.removeprefix("Question: ").removesuffix("\nAnswer:") for each in prompts]


def other_questions(tasks: Path | None) -> list[str]:
    """Return prompts of another kind: functions to complete, else beginnings of PEPs to go on
    with."""
    if tasks is not None and (tasks / HUMANEVAL_FILE).exists():
        records = _records(tasks / HUMANEVAL_FILE, "prompt")
        return [f"Complete this function:\n\n{record['prompt']}" for record in records]
    prompts = [record["prompt"] for record in held_out() if record["source"] == "peps"]
    return [f"Go on with this text:\n\n{prompt}" for prompt in prompts]


def _records(path: Path, field: str) -> list[dict[str, str]]:
    opened = gzip.open if path.suffix == ".gz" else open
    try:
        with opened(path, "rt", encoding="utf-8") as lines:
            records = [json.loads(line) for line in lines if line.strip()]
        if not all(isinstance(record[field], str) for record in records):
            raise ValueError(f"{field} is not always a text")
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise NoTexts(f"{path}: cannot be read: {error!r}") from None
    return records
