"""Messages on the page of troubleshooting are those of the program."""

from __future__ import annotations

import re
from functools import cache
from types import CodeType

from tests.programs import REPOSITORY

PAGE = REPOSITORY / "docs" / "troubleshooting.md"
GAP = "…"
"""Stands for what the program fills in."""
LEAST_LETTERS = 6
"""A piece between gaps that is shorter is not looked for: "of" stands in every program."""


def messages(page: str) -> list[str]:
    """The messages in the first column of tables whose header begins with `message`."""
    found = []
    for table in re.findall(r"(?:^\|.*\n)+", page, re.MULTILINE):
        header, _, *rows = table.splitlines()
        if header.startswith("| message"):
            cells = [row.split(" | ")[0].removeprefix("| ") for row in rows]
            found += [cell.strip("`") for cell in cells if cell.startswith("`")]
    return found


def pieces(message: str) -> list[str]:
    """What stands between the gaps, without punctuation at its ends."""
    between = (piece.strip(" ;:,.?()'") for piece in message.split(GAP))
    return [piece for piece in between if len(piece) >= LEAST_LETTERS]


@cache
def program_strings() -> str:
    """Every string of the program, literals that follow each other put together."""
    texts: list[str] = []
    for path in (REPOSITORY / "tandem").rglob("*.py"):
        # Compiled, as that takes a third of the time that the nodes of its syntax take.
        waiting: list[object] = [compile(path.read_bytes(), path, "exec", dont_inherit=True)]
        while waiting:
            constant = waiting.pop()
            if isinstance(constant, CodeType):
                waiting += constant.co_consts
            elif isinstance(constant, tuple | frozenset):
                waiting += constant
            elif isinstance(constant, str):
                texts.append(constant)
    return "\n".join(texts)


def test_every_message_is_one_that_the_program_writes() -> None:
    listed = messages(PAGE.read_text(encoding="utf-8"))
    assert len(listed) > 25
    unknown = [
        (message, piece)
        for message in listed
        for piece in pieces(message) or ["nothing to look for"]
        if piece not in program_strings()
    ]
    assert unknown == []


def test_a_message_that_the_program_does_not_write_is_noticed() -> None:
    page = "| message | cause |\n|---|---|\n| `the … cannot be frobnicated: …` | none |\n"
    (message,) = messages(page)
    assert pieces(message) == ["cannot be frobnicated"]
    assert "cannot be frobnicated" not in program_strings()
    assert messages("| symptom | cause |\n|---|---|\n| `a word` | none |\n") == []
