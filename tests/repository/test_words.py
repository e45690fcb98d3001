"""No text of the project cites a document that its readers do not have."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from tests.programs import REPOSITORY, tracked_files

UNPUBLISHED = re.compile(r"\bDESI" r"GN\b")
"""A note that is not part of the repository: cite the paper, or a page of docs/."""
OTHER_PEOPLES = ("models/demo-", "models/heldout.jsonl")
"""Texts and vocabularies that the project did not write."""


def test_no_text_cites_an_unpublished_document() -> None:
    cited = [
        f"{name}:{number}: {line.strip()[:120]}"
        for name, text in _texts()
        for number, line in enumerate(text.splitlines(), start=1)
        if UNPUBLISHED.search(line)
    ]
    assert not cited, "\n".join(cited)


def _texts() -> Iterator[tuple[str, str]]:
    """(name, text) of every tracked text of ours, except of this file."""
    for path in tracked_files():
        name = path.relative_to(REPOSITORY).as_posix()
        if path == Path(__file__) or name.startswith(OTHER_PEOPLES):
            continue
        try:
            yield name, path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue  # weights, pictures, archives
