"""Fenced blocks of the documentation, and the commands in them."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.programs import REPOSITORY

PAGES = tuple(
    sorted(
        page.relative_to(REPOSITORY)
        for pattern in (
            *("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "SECURITY.md"),
            *("docs/**/*.md", "lab/README.md", "lab/docs/**/*.md"),
            *("services/*/README.md", "deploy/k8s/tandem/README.md"),
        )
        for page in REPOSITORY.glob(pattern)
    )
)
"""Every page whose blocks are checked."""

SHELLS = ("bash", "sh", "console")
FENCE = re.compile(r"^(?P<indent> *)```(?P<language>\w*)\s*$")
MARKER = re.compile(r"<!-- not run: (?P<reason>\S.*?) -->")
WORDS = {"&&", "||", "|", ";"}


@dataclass(frozen=True, slots=True)
class Block:
    """A fenced block. `reason`: why it is not run, None if it is."""

    page: Path
    line: int
    language: str
    text: str
    reason: str | None

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"

    @property
    def is_shell(self) -> bool:
        return self.language in SHELLS


@dataclass(frozen=True, slots=True)
class Command:
    """One simple command: its words, without assignments before them."""

    words: tuple[str, ...]

    @property
    def program(self) -> str:
        return Path(self.words[0]).name


def blocks_of(page: Path) -> list[Block]:
    """All fenced blocks of `page`, which is relative to the repository."""
    found: list[Block] = []
    lines = (REPOSITORY / page).read_text(encoding="utf-8").splitlines()
    number, before = 0, ""
    while number < len(lines):
        fence = FENCE.match(lines[number])
        if fence is None:
            before = lines[number] or before
            number += 1
            continue
        first = number + 1
        number = first
        while lines[number].strip() != "```":
            number += 1
        indent = len(fence["indent"])
        text = "\n".join(line[indent:] for line in lines[first:number])
        marker = MARKER.fullmatch(before.strip())
        reason = None if marker is None else marker["reason"]
        found.append(Block(page, first, fence["language"], text, reason))
        before = ""
        number += 1
    return found


def lines_of(block: Block) -> Iterator[str]:
    """The block's lines, continued ones joined, prompts and comment lines left out."""
    joined = re.sub(r"\\\n\s*", " ", block.text)
    for line in joined.splitlines():
        line = line.removeprefix("$ ").strip()
        if line and not line.startswith("#"):
            yield line


def commands_of(block: Block) -> Iterator[Command]:
    """The simple commands of a shell block, in their order."""
    joined = re.sub(r"\\\n\s*", " ", block.text)
    lexer = shlex.shlex(joined.replace("\n", "\n; "), posix=True, punctuation_chars=";|&")
    lexer.whitespace_split = True
    lexer.commenters = "#"
    words: list[str] = []
    for word in [*lexer, ";"]:
        if word not in WORDS:
            words.append(word)
            continue
        while words and (re.match(r"\w+=", words[0]) or words[0] in {"do", "$"}):
            del words[0]
        if words and words[0] not in {"for", "done"}:
            yield Command(tuple(words))
        words = []
