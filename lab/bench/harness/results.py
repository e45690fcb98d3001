"""Where raw rows of published figures are kept, and how a row knows the code that it is of.

A row's `code` is a hash of the modules that it was computed by: all of `lab` and `tandem` that the
experiment's module imports, directly or through others. A row whose hash differs from today's was
made by other code: it is stale, whatever its commit.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from hashlib import sha256
from pathlib import Path

from lab.bench.harness.models import ROOT

RESULTS = ROOT / "lab" / "results"
PACKAGES = ("lab", "tandem")


def code_of(module: str) -> str:
    """Return the hash of a module and all that it imports of PACKAGES, as twelve digits."""
    digest = sha256()
    for path in sources_of(module):
        digest.update(f"{path}\0{(ROOT / path).read_text(encoding='utf-8')}\0".encode())
    return digest.hexdigest()[:12]


def sources_of(module: str) -> list[str]:
    """Return the files of a module and all that it imports of PACKAGES, relative to the
    repository, sorted."""
    found: dict[str, Path] = {}
    waiting = [module]
    while waiting:
        name = waiting.pop()
        path = _file_of(name)
        if path is None or name in found:
            continue
        found[name] = path
        waiting += _imported(path)
    return sorted(path.relative_to(ROOT).as_posix() for path in found.values())


@cache
def _imported(path: Path) -> tuple[str, ...]:
    return tuple(_names(ast.parse(path.read_text(encoding="utf-8"))))


def _names(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def _file_of(name: str) -> Path | None:
    """Return the file of a module of PACKAGES; None for what is none."""
    if name.split(".")[0] not in PACKAGES:
        return None
    place = ROOT.joinpath(*name.split("."))
    for path in (place.with_suffix(".py"), place / "__init__.py"):
        if path.is_file():
            return path
    return None
