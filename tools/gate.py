"""Which stages `.ci/run` runs: those that always run, and those that a changed path leads to.

Changed is what differs from the commit in `.ci/passed`, at which every stage passed. Where nothing
can be said of that commit, every stage runs. Needs nothing but Python and git, on a bare machine.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import tomllib
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TABLE = Path(".ci", "stages.toml")
PASSED = Path(".ci", "passed")
IMPORTED = re.compile(r"^(?:from|import) (tests\.[\w.]+)", re.MULTILINE)
OLDEST_S = 7 * 24 * 3600
"""A commit that passed longer ago says too little: packages and images have moved on."""


class NothingToCompareWith(Exception):
    """Why no difference can be told."""


@dataclass(frozen=True, slots=True)
class Table:
    """The stages beside those that always run, and what leads to them."""

    stages: tuple[str, ...]
    paths: Mapping[str, tuple[str, ...]]

    @classmethod
    def read(cls, root: Path) -> Table:
        tables = tomllib.loads((root / TABLE).read_text(encoding="utf-8"))
        stages = tuple(tables["stages"])
        paths = {
            path: stages if names == "all" else tuple(names)
            for path, names in tables["paths"].items()
        }
        return cls(stages, paths)

    def entry(self, path: str) -> str | None:
        """The longest of the table's paths that is `path` or holds it."""
        holding = [one for one in self.paths if path == one or path.startswith(f"{one}/")]
        return max(holding, key=len, default=None)

    def stages_of(self, path: str) -> tuple[str, ...]:
        """All, for a path that the table does not name."""
        entry = self.entry(path)
        return self.stages if entry is None else self.paths[entry]


@dataclass(frozen=True, slots=True)
class Plan:
    """The stages to run, why, and the commit that was compared with ("" where none was)."""

    stages: tuple[str, ...]
    why: str
    since: str = ""


def plan(root: Path, everything: bool = False) -> Plan:
    """Choose the stages for the checkout at `root`, as it is, committed or not."""
    table = Table.read(root)
    if everything:
        return Plan(table.stages, "all were asked for")
    try:
        since = last_passed(root)
    except NothingToCompareWith as why:
        return Plan(table.stages, str(why))
    touched = with_importers(root, changed(root, since))
    wanted = {stage for path in touched for stage in table.stages_of(path)}
    stages = tuple(stage for stage in table.stages if stage in wanted)
    return Plan(stages, f"changed since {since[:10]}, at which every stage passed", since)


def last_passed(root: Path) -> str:
    """The commit in `.ci/passed`; raises `NothingToCompareWith` where it cannot be used."""
    file = root / PASSED
    commit = file.read_text(encoding="utf-8").strip() if file.is_file() else ""
    if not commit:
        raise NothingToCompareWith(f"{PASSED} names no commit")
    if _git(root, "merge-base", "--is-ancestor", commit, "HEAD") is None:
        raise NothingToCompareWith(f"{commit[:10]} of {PASSED} is no commit before this one here")
    then, now = (_git(root, "log", "-1", "--format=%ct", one) for one in (commit, "HEAD"))
    if then is None or now is None or int(now) - int(then) > OLDEST_S:
        raise NothingToCompareWith(f"{commit[:10]} of {PASSED} is more than a week older")
    return commit


def changed(root: Path, since: str) -> list[str]:
    """Paths that differ from those of a commit, that git does not know yet, or that are gone; both
    names of what was renamed."""
    differing = _git(root, "diff", "--name-only", "--no-renames", "-z", since)
    unknown = _git(root, "ls-files", "--others", "--exclude-standard", "-z")
    return sorted(_names(differing) | _names(unknown))


def with_importers(root: Path, paths: Iterable[str]) -> set[str]:
    """`paths`, and the tests that import any of them, directly or by others."""
    importers = defaultdict[str, set[str]](set)
    for file in (root / "tests").rglob("*.py"):
        for module in IMPORTED.findall(file.read_text(encoding="utf-8")):
            importers[module.replace(".", "/") + ".py"].add(file.relative_to(root).as_posix())
    found, to_follow = set[str](), [*paths]
    while to_follow:
        path = to_follow.pop()
        if path not in found:
            found.add(path)
            to_follow += importers[path]
    return found


def _names(listed: str | None) -> set[str]:
    if listed is None:
        raise RuntimeError("git does not list what has changed")
    return {name for name in listed.split("\0") if name}


def _git(root: Path, *arguments: str) -> str | None:
    """What it writes; None where it fails."""
    command = ["git", "-C", str(root), *arguments]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    return ended.stdout if ended.returncode == 0 else None


def lines(chosen: Plan, stages: Iterable[str]) -> list[str]:
    """For a shell: "since" with the commit, "run" or "leave" with each stage, "why"."""
    return [
        f"since {chosen.since}",
        *(f"{'run' if stage in chosen.stages else 'leave'} {stage}" for stage in stages),
        f"why {chosen.why}",
    ]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Print which stages .ci/run runs.")
    parser.add_argument("--all", action="store_true", help="every stage")
    asked = parser.parse_args()
    print("\n".join(lines(plan(ROOT, asked.all), Table.read(ROOT).stages)))
