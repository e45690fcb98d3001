"""Which mutants are of functions that differ from those of an older commit."""

from __future__ import annotations

import ast
import re
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

from tools.mutants.mutations import Mutant
from tools.mutants.selection import SUBJECTS

_HUNK = re.compile(r"^@@ -\S+ \+(\d+)(?:,(\d+))? @@", re.MULTILINE)


def of_changed_functions(root: Path, commit: str, mutants: Sequence[Mutant]) -> list[Mutant]:
    """Those of functions, or of lines outside any, that changed; all of a room whose tests did."""
    names = _git(root, "diff", "--name-only", "--no-renames", commit).splitlines()
    names += _git(root, "ls-files", "--others", "--exclude-standard").splitlines()
    rooms = {
        subject.room
        for subject in SUBJECTS
        if any(name.startswith(f"{tests}/") for tests in subject.tests for name in names)
    }
    chosen: list[Mutant] = []
    for path in dict.fromkeys(mutant.path for mutant in mutants):
        of_path = [mutant for mutant in mutants if mutant.path == path]
        if Path(path).parent.as_posix() in rooms:
            chosen += of_path
        elif path in names:
            touched = touched_lines(root, commit, path)
            chosen += [mutant for mutant in of_path if touched(mutant.line)]
    return chosen


def touched_lines(root: Path, commit: str, path: str) -> Callable[[int], bool]:
    """Whether a line of a module, or the function that holds it, differs from the commit's."""
    difference = _git(root, "diff", "--unified=0", commit, "--", path)
    source = (root / path).read_text(encoding="utf-8")
    if not difference:  # git does not know it yet
        return lambda line: True
    changed = {line for hunk in _HUNK.finditer(difference) for line in _lines(hunk)}
    for function in _functions(ast.parse(source)):
        if not changed.isdisjoint(function):
            changed.update(function)
    return changed.__contains__


def _lines(hunk: re.Match[str]) -> range:
    """Of the new file; of lines that are gone, those on both sides of the gap."""
    first, count = int(hunk[1]), int(hunk[2] or 1)
    return range(first, first + count) if count else range(first, first + 2)


def _functions(tree: ast.Module) -> list[range]:
    """The lines of each function and method, with its decorators."""
    return [
        range(min([node.lineno, *(one.lineno for one in node.decorator_list)]), _end(node))
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]


def _end(node: ast.stmt) -> int:
    assert node.end_lineno is not None
    return node.end_lineno + 1


def _git(root: Path, *arguments: str) -> str:
    command = ["git", "-C", str(root), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout
