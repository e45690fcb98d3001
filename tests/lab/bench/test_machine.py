"""On what a measurement was made."""

import subprocess
from pathlib import Path

from lab.machine import CHANGED, commit_of


def test_each_state_of_the_sources_has_a_commit_of_its_own(tmp_path: Path) -> None:
    """What was computed by one state is not taken for another's."""

    def git(*arguments: str) -> None:
        identity = ("-c", "user.name=A", "-c", "user.email=a@example.org")
        subprocess.run(["git", *identity, *arguments], cwd=tmp_path, check=True)

    source = tmp_path / "source.py"
    git("init", "-q")
    source.write_text("rate = 1\n")
    git("add", ".")
    git("commit", "-q", "-m", "Begin")
    clean = commit_of(tmp_path)
    source.write_text("rate = 2\n")
    second = commit_of(tmp_path)
    source.write_text("rate = 3\n")
    third = commit_of(tmp_path)
    assert len({clean, second, third}) == 3
    assert second.startswith(f"{clean}{CHANGED}")
    source.write_text("rate = 2\n")
    assert commit_of(tmp_path) == second
    source.write_text("rate = 1\n")
    (tmp_path / "lab" / "results").mkdir(parents=True)
    (tmp_path / "lab" / "results" / "papers.json").write_text("[]")
    (tmp_path / "lab" / "docs").mkdir()
    (tmp_path / "lab" / "docs" / "page.md").write_text("a page")
    assert commit_of(tmp_path) == clean, "kept rows and pages are no sources"
    (tmp_path / "new.py").write_text("rate = 1\n")
    assert CHANGED in commit_of(tmp_path)


def test_sources_without_a_repository_have_no_commit(tmp_path: Path) -> None:
    assert commit_of(tmp_path) == "unknown"
