"""The questions that a draft learns from, of one application that it has never seen, and others."""

from __future__ import annotations

import gzip
import json
from itertools import product
from pathlib import Path

from lab.bench.harness.texts import NoTexts, held_out

HUMANEVAL_FILE = "HumanEval.jsonl.gz"
STREAM = "SQL about tables"
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


def stream_questions() -> list[str]:
    """Return 400 questions."""
    pairs = [task.format(things) for things, task in product(_THINGS, _TASKS)]
    # Neighbours differ in both; each pair comes once, since 7 has no factor in common with 400.
    return [pairs[7 * 11 * number % len(pairs)] for number in range(len(pairs))]


def other_questions(tasks: Path | None) -> list[str]:
    """Return prompts of another kind: functions to complete, else beginnings of PEPs to go on
    with."""
    if tasks is not None and (tasks / HUMANEVAL_FILE).exists():
        records = _records(tasks / HUMANEVAL_FILE, "prompt")
        return [f"Complete this function:\n\n{record['prompt']}" for record in records]
    prompts = [record["prompt"] for record in held_out() if record["source"] == "peps"]
    return [f"Go on with this text:\n\n{prompt}" for prompt in prompts]


def _records(path: Path, field: str) -> list[dict[str, str]]:
    try:
        with gzip.open(path, "rt", encoding="utf-8") as lines:
            records = [json.loads(line) for line in lines if line.strip()]
        if not all(isinstance(record[field], str) for record in records):
            raise ValueError(f"{field} is not always a text")
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise NoTexts(f"{path}: cannot be read: {error!r}") from None
    return records
