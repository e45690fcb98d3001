"""Which stages a change leads to: with doubt about what to compare with, all of them."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tools.gate import Plan, lines, plan

TABLE = """
stages = ["long", "page", "programs"]
[paths]
".ci" = "all"
".ci/passed" = []
"docs" = ["programs"]
"web" = ["page", "long"]
"web/words" = []
"tests" = []
"tests/page" = ["page"]
"""
STAGES = ("long", "page", "programs")


class Checkout:
    """A repository in which every stage passed at its first commit."""

    def __init__(self, root: Path) -> None:
        self.root = root
        root.mkdir()
        self.git("init", "--quiet", "--initial-branch=main")
        self.write(".ci/stages.toml", TABLE)
        for name in ("docs/page.md", "web/page.mjs", "web/words/de.mjs", "other.txt"):
            self.write(name)
        self.write("tests/helper.py")
        self.write("tests/near.py", "from tests.helper import one\n")
        self.write(
            "tests/page/test_page.py", "import json\n\nfrom tests.near import (\n    one,\n)\n"
        )
        self.commit()
        self.first = self.git("rev-parse", "HEAD").strip()
        self.write(".ci/passed", f"{self.first}\n")
        self.commit()

    def git(self, *arguments: str, date: str = "2026-11-01T12:00:00Z") -> str:
        command = ["git", "-c", "user.name=one", "-c", "user.email=one@example.com", *arguments]
        environment = {"GIT_COMMITTER_DATE": date, "GIT_CONFIG_GLOBAL": "/dev/null"}
        done = subprocess.run(
            command, cwd=self.root, env=environment, capture_output=True, text=True, check=True
        )
        return done.stdout

    def write(self, name: str, text: str = "") -> None:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text or f"{name}\n")

    def commit(self, date: str = "2026-11-01T12:00:00Z") -> None:
        self.git("add", "--all")
        self.git("commit", "--quiet", "--message", "change", date=date)

    def stages(self) -> tuple[str, ...]:
        return plan(self.root).stages


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    return Checkout(tmp_path / "checkout")


def test_nothing_but_the_record_changed_since_all_passed(checkout: Checkout) -> None:
    found = plan(checkout.root)
    assert (found.stages, found.since) == ((), checkout.first)
    assert checkout.first[:10] in found.why


@pytest.mark.parametrize(
    ("path", "stages"),
    [
        ("docs/page.md", ("programs",)),
        ("web/page.mjs", ("long", "page")),
        ("web/words/de.mjs", ()),
        (".ci/run", STAGES),
        ("other.txt", STAGES),
        ("webs/page.mjs", STAGES),
        ("tests/helper.py", ("page",)),
        ("tests/other.py", ()),
    ],
)
@pytest.mark.parametrize("committed", [True, False])
def test_a_path_leads_to_the_stages_of_its_longest_entry(
    checkout: Checkout, path: str, stages: tuple[str, ...], committed: bool
) -> None:
    checkout.write(path, "changed\n")
    if committed:
        checkout.commit()
    assert checkout.stages() == stages


def test_stages_of_several_paths_are_in_the_table_s_order(checkout: Checkout) -> None:
    checkout.write("docs/page.md", "changed\n")
    checkout.write("web/page.mjs", "changed\n")
    assert checkout.stages() == STAGES


def test_what_is_gone_and_both_names_of_what_moved_count(checkout: Checkout) -> None:
    (checkout.root / "docs" / "page.md").unlink()
    assert checkout.stages() == ("programs",)
    checkout.commit()
    checkout.git("mv", "web/page.mjs", "docs/page.mjs")
    checkout.commit()
    assert checkout.stages() == STAGES


def test_all_are_run_where_asked(checkout: Checkout) -> None:
    assert plan(checkout.root, everything=True) == Plan(STAGES, "all were asked for")


@pytest.mark.parametrize("recorded", ["", "0" * 40, "no commit at all"])
def test_all_are_run_where_the_record_names_no_known_commit(
    checkout: Checkout, recorded: str
) -> None:
    checkout.write(".ci/passed", f"{recorded}\n")
    assert checkout.stages() == STAGES
    (checkout.root / ".ci" / "passed").unlink()
    assert checkout.stages() == STAGES


def test_all_are_run_where_the_commit_is_not_one_before_this(checkout: Checkout) -> None:
    checkout.git("checkout", "--quiet", "--orphan", "other")
    checkout.commit()
    assert checkout.stages() == STAGES


def test_all_are_run_where_the_history_is_cut_off(checkout: Checkout, tmp_path: Path) -> None:
    shallow = tmp_path / "shallow"
    checkout.git("clone", "--quiet", "--depth=1", f"file://{checkout.root}", str(shallow))
    assert plan(shallow).stages == STAGES


def test_all_are_run_a_week_later(checkout: Checkout) -> None:
    checkout.write("docs/page.md", "changed\n")
    checkout.commit(date="2026-11-08T11:00:00Z")
    assert checkout.stages() == ("programs",)
    checkout.write("docs/page.md", "once more\n")
    checkout.commit(date="2026-11-08T13:00:00Z")
    found = plan(checkout.root)
    assert found.stages == STAGES
    assert "more than a week older" in found.why


def test_a_shell_reads_a_stage_a_line() -> None:
    assert lines(Plan(("page",), "two words", "abc"), STAGES) == [
        *("since abc", "leave long", "run page", "leave programs", "why two words"),
    ]
