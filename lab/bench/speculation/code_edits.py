"""Changes of Python source, as an editor asks a model for them: the old text, what is to change,
the new text. Invariant: the same seed and the same sources give the same changes."""

from __future__ import annotations

import ast
import random
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from lab.bench.harness.suite import ROOT

SHORTEST = 8
LONGEST = 20
"""Lines of the functions and classes that are changed."""
_WORD = re.compile(r"[a-z][a-z_]{3,}")


@dataclass(frozen=True, slots=True)
class CodeEdit:
    """`change` says in words how `new` differs from `old`; `kind` is one of `KINDS`."""

    kind: str
    change: str
    old: str
    new: str

    @property
    def prompt(self) -> str:
        return (
            f"```python\n{self.old}```\nThe same code with this change: {self.change}.\n```python\n"
        )


def code_edits(count: int, seed: int, folder: Path = ROOT / "tandem") -> list[CodeEdit]:
    """Return up to `count` changes of functions and classes of the Python files in a folder, chosen
    by the seed."""
    source = random.Random(seed)
    pieces = sorted(_pieces(folder))
    source.shuffle(pieces)
    found: list[CodeEdit] = []
    for number, old in enumerate(pieces):
        if len(found) == count:
            break
        kinds = tuple(KINDS)
        kind = kinds[number % len(kinds)]
        if (edit := KINDS[kind](old, source)) is not None and edit[1] != old:
            found.append(CodeEdit(kind, edit[0], old, edit[1]))
    return found


def _pieces(folder: Path) -> Iterator[str]:
    """Yield whole functions and classes of a length that fits a small context."""
    for path in sorted(folder.rglob("*.py")):
        text = path.read_text("utf-8")
        lines = text.splitlines(keepends=True)
        for node in ast.parse(text).body:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                assert node.end_lineno is not None
                if SHORTEST <= node.end_lineno - node.lineno + 1 <= LONGEST:
                    yield "".join(lines[node.lineno - 1 : node.end_lineno])


def _rename(old: str, source: random.Random) -> tuple[str, str] | None:
    """Rename a name, wherever it stands. Return the change in words and the new code, or None where
    there is nothing to change."""
    names = {node.id for node in ast.walk(ast.parse(old)) if isinstance(node, ast.Name)}
    known = sorted(name for name in names if _WORD.fullmatch(name))
    if not known:
        return None
    name = source.choice(known)
    other = f"{name}_value"
    return f"rename {name} to {other}", re.sub(rf"\b{name}\b", other, old)


def _insert(old: str, source: random.Random) -> tuple[str, str] | None:
    """Insert two lines before a line of a body; return as `_rename` does."""
    lines, places = _statements(old)
    if not places:
        return None
    place = source.choice(places)
    indent = lines[place][: len(lines[place]) - len(lines[place].lstrip())]
    added = [f'{indent}log.debug("reached line {place}")\n', f"{indent}count_call({place})\n"]
    words = f"before line {place + 1} log that it is reached, and count it"
    return words, "".join([*lines[:place], *added, *lines[place:]])


def _delete(old: str, source: random.Random) -> tuple[str, str] | None:
    """Delete one or two lines of a body; return as `_rename` does."""
    lines, places = _statements(old)
    if len(places) < 3:
        return None
    place = source.choice(places[1:])
    length = source.choice((1, 2))
    return f"delete {length} lines from {place + 1} on", "".join(
        [*lines[:place], *lines[place + length :]]
    )


def _reword(old: str, source: random.Random) -> tuple[str, str] | None:
    """Write a word backwards on each of one or two lines, be it of a comment, a message or a name;
    return as `_rename` does."""
    lines, places = _statements(old)
    chosen = sorted(source.sample(places, min(2, len(places))))
    for place in chosen:
        words = _WORD.findall(lines[place])
        if words:
            word = source.choice(words)
            lines[place] = lines[place].replace(word, word[::-1])
    if not chosen:
        return None
    return f"write a word of lines {chosen[0] + 1} and {chosen[-1] + 1} backwards", "".join(lines)


def _statements(text: str) -> tuple[list[str], Sequence[int]]:
    """Return the lines of the code, and the numbers of those below the first that have words."""
    lines = text.splitlines(keepends=True)
    places = [number for number, line in enumerate(lines[1:], 1) if _WORD.search(line)]
    return lines, places


KINDS: dict[str, Callable[[str, random.Random], tuple[str, str] | None]] = {
    "rename": _rename,
    "insert": _insert,
    "delete": _delete,
    "reword": _reword,
}
