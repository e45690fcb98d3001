"""Whether this commit can be tagged as a release: `python -m tools.release_check`.

Invariant: it changes no tracked file by itself, and reports every problem that it finds.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import yaml

REPOSITORY = Path(__file__).resolve().parents[1]
CHART = "deploy/k8s/tandem/Chart.yaml"
LICENSE_NAME = "Apache-2.0"
LICENSE_TITLE = "Apache License"


def main() -> int:
    """The exit code: 0 if the commit can be tagged."""
    problems = [*version_problems(REPOSITORY), *license_problems(REPOSITORY)]
    problems += [*tree_problems(REPOSITORY), *build_problems(REPOSITORY)]
    for problem in problems:
        print(f"release-check: {problem}", file=sys.stderr)
    if not problems:
        print(f"release-check: ready to tag v{version_of(REPOSITORY)}")
    return 1 if problems else 0


def version_of(folder: Path) -> str:
    """`__version__` of the package, read without importing it."""
    text = (folder / "tandem" / "core" / "version.py").read_text(encoding="utf-8")
    found = re.search(r'^__version__ = "([^"]+)"$', text, re.MULTILINE)
    assert found is not None, "tandem/core/version.py has no __version__"
    return found[1]


def version_problems(folder: Path) -> Iterator[str]:
    """The version is the newest in the changelog, and the one to cite."""
    version = version_of(folder)
    changelog = (folder / "CHANGELOG.md").read_text(encoding="utf-8")
    headings = re.findall(r"^## \[(\d[^\]]*)\] - (\d{4}-\d\d-\d\d)$", changelog, re.MULTILINE)
    newest, date = headings[0] if headings else ("none", "none")
    if newest != version:
        yield f"CHANGELOG.md: the newest version is {newest}, the package's is {version}"
    unreleased = re.search(r"^## \[Unreleased\]\n(.*?)(?=^## |^\[|\Z)", changelog, re.M | re.S)
    if unreleased is not None and unreleased[1].strip():
        yield f"CHANGELOG.md: Unreleased has entries: move them below a heading [{version}]"
    citation = yaml.safe_load((folder / "CITATION.cff").read_text(encoding="utf-8"))
    if citation["version"] != version:
        yield f"CITATION.cff: version is {citation['version']}, the package's is {version}"
    cited = str(citation.get("date-released", "none"))
    if cited != date:
        yield f"CITATION.cff: date-released is {cited}, the changelog's {date}"
    chart = yaml.safe_load((folder / CHART).read_text(encoding="utf-8"))
    for field in ("version", "appVersion"):
        if chart[field] != version:
            yield f"{CHART}: {field} is {chart[field]}, the package's version is {version}"


def license_problems(folder: Path) -> Iterator[str]:
    """All files name the same license."""
    for name in ("LICENSE", "NOTICE"):
        if LICENSE_TITLE not in (folder / name).read_text(encoding="utf-8"):
            yield f"{name}: does not name the {LICENSE_TITLE}"
    citation = yaml.safe_load((folder / "CITATION.cff").read_text(encoding="utf-8"))
    if citation["license"] != LICENSE_NAME:
        yield f"CITATION.cff: license is {citation['license']}, not {LICENSE_NAME}"


def tree_problems(folder: Path) -> Iterator[str]:
    """Nothing is uncommitted, and the tag is free."""
    changed = _git(folder, "status", "--porcelain").splitlines()
    if changed:
        yield f"the working tree is not clean: {', '.join(line[3:] for line in changed[:5])}"
    tag = f"v{version_of(folder)}"
    if _git(folder, "tag", "--list", tag):
        yield f"the tag {tag} exists already"


def build_problems(folder: Path) -> Iterator[str]:
    """Documentation, linters and the wheel; docs must leave the tree as it was."""
    makefile = (folder / "Makefile").read_text(encoding="utf-8")
    before = _git(folder, "status", "--porcelain")
    for target in ("docs", "lint", "wheel"):
        if not re.search(rf"^{target}:", makefile, re.MULTILINE):
            continue
        if subprocess.run(["make", target], cwd=folder).returncode:
            yield f"make {target} failed"
    if _git(folder, "status", "--porcelain") != before:
        yield "the builds changed tracked files: commit the generated pages"


def _git(folder: Path, *arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=folder, capture_output=True, text=True)
    return done.stdout.rstrip("\n")


if __name__ == "__main__":
    sys.exit(main())
