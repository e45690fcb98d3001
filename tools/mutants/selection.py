"""What is mutated, and which tests are asked about a module."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Subject:
    """A pure room, and the folders and files of its fast tests."""

    room: str
    tests: tuple[str, ...]


SUBJECTS = (
    Subject("tandem/core", ("tests/unit/core",)),
    Subject("tandem/specdec", ("tests/unit/specdec", "tests/virtual_time/test_schedules.py")),
    Subject("tandem/two_sided/protocol", ("tests/unit/two_sided",)),
)


def chosen_modules(root: Path, patterns: Sequence[str]) -> list[str]:
    """The modules that one of `patterns` names, by path or by dots; all of them without any."""
    modules = [
        path.relative_to(root).as_posix()
        for subject in SUBJECTS
        for path in sorted((root / subject.room).glob("*.py"))
    ]
    if not patterns:
        return modules
    return [module for module in modules if any(_named(module, pattern) for pattern in patterns)]


def _named(module: str, pattern: str) -> bool:
    dotted = dotted_name(module)
    return fnmatch(module, pattern) or fnmatch(dotted, pattern) or fnmatch(dotted, f"*.{pattern}")


def dotted_name(path: str) -> str:
    return path.removesuffix(".py").replace("/", ".")


def files_to_ask(root: Path, module: str) -> list[list[str]]:
    """Test files in the order to ask them: named like the module or importing it, then the others
    of its room that import any of it."""
    (subject,) = (one for one in SUBJECTS if Path(module).parent.as_posix() == one.room)
    texts = {file: (root / file).read_text(encoding="utf-8") for file in _files(root, subject)}
    stem, dotted = Path(module).stem, dotted_name(module)
    named = [file for file in texts if Path(file).stem == f"test_{stem}"]
    importing = [file for file in texts if f"from {dotted} import" in texts[file]]
    nearest = list(dict.fromkeys(named + sorted(importing, key=lambda file: len(texts[file]))))
    room = dotted_name(subject.room)
    others = [file for file in texts if file not in nearest and room in texts[file]]
    return [files for files in (nearest, others) if files]


def _files(root: Path, subject: Subject) -> Iterable[str]:
    for place in subject.tests:
        path = root / place
        for file in sorted(path.glob("test_*.py")) if path.is_dir() else [path]:
            yield file.relative_to(root).as_posix()
