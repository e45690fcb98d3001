"""What keeps a commit from being tagged is named."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.programs import REPOSITORY
from tools.release_check import license_problems, tree_problems, version_problems

FILES = {
    "tandem/core/version.py": '__version__ = "1.2.0"\n',
    "CHANGELOG.md": "## [Unreleased]\n\n## [1.2.0] - 2030-01-02\n\n## [1.1.0] - 2029-01-02\n",
    "CITATION.cff": "version: 1.2.0\ndate-released: 2030-01-02\nlicense: Apache-2.0\n",
    "deploy/k8s/tandem/Chart.yaml": 'version: 1.2.0\nappVersion: "1.2.0"\n',
    "LICENSE": "Apache License\n",
    "NOTICE": "Licensed under the Apache License.\n",
}


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    git(tmp_path, "init", "--quiet")
    git(tmp_path, "add", ".")
    git(tmp_path, "-c", "user.name=T", "-c", "user.email=t@example.com", "commit", "-qm", "first")
    return tmp_path


def git(folder: Path, *arguments: str) -> None:
    subprocess.run(["git", *arguments], cwd=folder, check=True, capture_output=True)


def problems(repository: Path) -> list[str]:
    return [
        *version_problems(repository),
        *license_problems(repository),
        *tree_problems(repository),
    ]


def test_a_consistent_commit_has_no_problem(repository: Path) -> None:
    assert problems(repository) == []


@pytest.mark.parametrize(
    ("file", "old", "new", "named"),
    [
        ("tandem/core/version.py", "1.2.0", "1.3.0", "the newest version is 1.2.0"),
        ("CHANGELOG.md", "1.2.0", "1.2.1", "the newest version is 1.2.1"),
        (
            "CHANGELOG.md",
            "[Unreleased]\n",
            "[Unreleased]\n\n- A change.\n",
            "Unreleased has entries",
        ),
        ("CITATION.cff", "version: 1.2.0", "version: 1.1.0", "version is 1.1.0"),
        ("CITATION.cff", "2030-01-02", "2030-01-03", "date-released is 2030-01-03"),
        ("CITATION.cff", "date-released: 2030-01-02\n", "", "date-released is none"),
        ("CITATION.cff", "Apache-2.0", "MIT", "license is MIT"),
        ("deploy/k8s/tandem/Chart.yaml", "version: 1.2.0", "version: 1.1.0", "version is 1.1.0"),
        ("deploy/k8s/tandem/Chart.yaml", '"1.2.0"', '"1.1.0"', "appVersion is 1.1.0"),
        ("NOTICE", "Apache License", "MIT license", "NOTICE: does not name"),
    ],
)
def test_what_disagrees_is_named(
    repository: Path, file: str, old: str, new: str, named: str
) -> None:
    path = repository / file
    path.write_text(path.read_text().replace(old, new, 1))
    found = problems(repository)
    assert any(named in problem for problem in found), found
    assert any("not clean" in problem and file in problem for problem in found), found


def test_this_repository_cites_a_release_only_if_its_changelog_has_one() -> None:
    found = [*version_problems(REPOSITORY)]
    assert [problem for problem in found if problem.startswith("CITATION.cff")] == []


def test_a_tag_that_exists_is_named(repository: Path) -> None:
    git(repository, "tag", "v1.2.0")
    assert problems(repository) == ["the tag v1.2.0 exists already"]
