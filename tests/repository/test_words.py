"""Words that the project gave up stay out. docs/glossary.md has today's."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.programs import REPOSITORY, tracked_files

RETIRED = {
    r"\bDESI" r"GN\b": "cite the paper, or a page of docs/",
    r"(?i)shared noise": "Gumbel coupling",
    r"\b[Mm]akers?\b": "token source",
    r"\bTicket\b": "JobHandle",
    r"\bPostings\b": "LoopNotifier",
    r"\bSight\b": "ImageEmbeddings",
    r"(?i)\brivals?\b": "runners-up",
    r"(?i)\bfarewells?\b": "closing tasks",
    r"\b_happen": "event, _dispatch",
    r"(?i)\blean forward\b": "Llama fast path",
    r"(?i)\bgeneral forward\b": "generic path",
    r"(?i)\bhops?\b": "round overhead",
    r"(?i)must not import": "import-linter says it",
}
OTHER_PEOPLES = ("models/demo-", "models/heldout.jsonl")
"""Texts and vocabularies that the project did not write."""
GLOSSARY = "docs/glossary.md"
LINES_WITH_LAW = 20
"""Mathematics has laws too, such as that of large numbers; a token's is its distribution."""


@pytest.mark.parametrize("pattern", RETIRED)
def test_a_retired_word_stays_out(pattern: str) -> None:
    found = list(_lines_with(pattern))
    assert not found, f"write {RETIRED[pattern]!r} instead:\n" + "\n".join(found)


def test_a_law_is_a_distribution() -> None:
    found = list(_lines_with(r"(?i)\blaws?\b"))
    assert len(found) <= LINES_WITH_LAW, "\n".join(found)


def _lines_with(pattern: str) -> Iterator[str]:
    wanted = re.compile(pattern)
    for name, text in _texts():
        if wanted.search(text):
            for number, line in enumerate(text.splitlines(), start=1):
                if wanted.search(line):
                    yield f"{name}:{number}: {line.strip()[:120]}"


@cache
def _texts() -> list[tuple[str, str]]:
    """(name, text) of every tracked text of ours, except of the glossary and of this file."""
    skipped = {GLOSSARY, Path(__file__).relative_to(REPOSITORY).as_posix()}
    texts = []
    for path in tracked_files():
        name = path.relative_to(REPOSITORY).as_posix()
        if name in skipped or name.startswith(OTHER_PEOPLES):
            continue
        try:
            texts.append((name, path.read_text(encoding="utf-8")))
        except UnicodeDecodeError:
            continue  # weights, pictures, archives
    return texts
