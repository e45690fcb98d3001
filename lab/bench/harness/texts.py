"""The texts that experiments use, all of them files of this repository.

`models/heldout.jsonl` has documents that no demo model was trained on;
`models/peps-excerpt.jsonl.gz`
has excerpts of PEPs, made by `models/excerpt_peps.py`.
"""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

from lab.bench.harness.models import ROOT
from tandem.core.errors import TandemError
from tandem.index.records import Document

HELD_OUT = ROOT / "models" / "heldout.jsonl"
PEPS = ROOT / "models" / "peps-excerpt.jsonl.gz"


class NoTexts(TandemError):
    """A file of texts cannot be used."""


def held_out(path: Path = HELD_OUT) -> list[dict[str, str]]:
    """Return the held-out documents: id, source, prompt, text. Raises NoTexts."""
    return _records(path)


def prompts(count: int) -> list[str]:
    """Return the first `count` held-out prompts, sources in turn. Raises NoTexts when there are
    fewer."""
    by_source: dict[str, list[str]] = {}
    for document in held_out():
        by_source.setdefault(document["source"], []).append(document["prompt"])
    queues = list(by_source.values())
    chosen = [queue[turn] for turn in range(count) for queue in queues if turn < len(queue)]
    if len(chosen) < count:
        raise NoTexts(f"{HELD_OUT}: {count} prompts wanted, {len(chosen)} there")
    return chosen[:count]


def read_peps(path: Path = PEPS) -> list[Document]:
    """Return the records of a JSON-lines file with `id`, `title` and `text`. Raises NoTexts."""
    try:
        return [
            Document(record["id"], record["text"], record["title"]) for record in _records(path)
        ]
    except KeyError as error:
        raise NoTexts(f"{path}: a record has no {error}") from None


def _records(path: Path) -> list[dict[str, Any]]:
    """Return the records of a JSON-lines file, which is gzip-compressed if its name ends in .gz.
    Raises NoTexts if it cannot be read."""
    opened = gzip.open if path.suffix == ".gz" else open
    try:
        with opened(path, "rt", encoding="utf-8") as lines:
            return [json.loads(line) for line in lines]
    except (OSError, ValueError) as error:
        raise NoTexts(f"{path}: cannot be read: {error}") from None
