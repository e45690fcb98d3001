"""What is mutated, and which tests are asked about a module."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Subject:
    """A pure room, and the folders and files of its fast tests."""

    room: str
    tests: tuple[str, ...]

    def files(self, root: Path) -> list[str]:
        """Of tests that import any of the room, and nothing that takes long to import."""
        places = (root / place for place in self.tests)
        found = (
            file
            for path in places
            for file in (sorted(path.glob("test_*.py")) if path.is_dir() else [path])
        )
        texts = {str(file.relative_to(root)): file.read_text("utf-8") for file in found}
        room = dotted_name(self.room)
        return [
            file
            for file, text in texts.items()
            if room in text and not any(name in text for name in _HEAVY)
        ]


_HEAVY = ("import asyncio", "torch", "tandem.telemetry")

SUBJECTS = (
    Subject("tandem/core", ("tests/unit/core",)),
    Subject(
        "tandem/control",
        (
            *("tests/unit/control", "tests/unit/specdec", "tests/lab/analysis"),
            "tests/virtual_time/test_auto.py",  # what a user notices of its choices
        ),
    ),
    Subject("tandem/specdec", ("tests/unit/specdec", "tests/lab/analysis")),
    Subject("tandem/two_sided/protocol", ("tests/unit/two_sided", "tests/lab/analysis")),
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
    texts = {file: (root / file).read_text(encoding="utf-8") for file in subject.files(root)}
    stem, dotted = Path(module).stem, dotted_name(module)
    named = [file for file in texts if Path(file).stem == f"test_{stem}"]
    importing = [file for file in texts if f"from {dotted} import" in texts[file]]
    nearest = list(dict.fromkeys(named + sorted(importing, key=lambda file: len(texts[file]))))
    others = [file for file in texts if file not in nearest]
    return [files for files in (nearest, others) if files]
