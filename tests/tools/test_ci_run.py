"""`.ci/run` with a `make` that only writes down what it is asked: which stages run, what the result
says, and when all is known to have passed."""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.programs import REPOSITORY
from tools.gate import Table

MAKE = """#!/bin/sh
echo "$1" >>"$ASKED"
if [ "$1" = "$FAILS" ] && ! [ -e "$ASKED.again" ]; then
  if [ -n "$PASSES_THEN" ]; then touch "$ASKED.again"; fi
  echo "FAILED tests/services/test_tls.py::test_one - too late"
  exit 1
fi
echo "=== 5 passed in 3.00s ==="
"""
PARTS = (".ci/run", ".ci/retry.sh", ".ci/stages.toml", "tools/gate.py", "tests/flaky.md")
ALWAYS = ["setup", "real-pair", "lint", "test"]
STAGES = Table.read(REPOSITORY).stages


@dataclass(frozen=True, slots=True)
class Run:
    """What make was asked, what was written last, and the status."""

    asked: list[str]
    result: list[str]
    status: int


class Checkout:
    """The script with what it reads, in a repository of its own at which all has passed."""

    def __init__(self, folder: Path) -> None:
        self.root = folder / "checkout"
        self.programs = folder / "programs"
        self.programs.mkdir()
        self.program("make", MAKE)
        for name in ("chromium", "npm", "initdb"):
            self.program(name, "#!/bin/sh\n")
        for name in PARTS:
            (self.root / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(REPOSITORY / name, self.root / name)
        self.git("init", "--quiet")
        self.commit()
        (self.root / ".ci" / "passed").write_text(self.git("rev-parse", "HEAD"))
        self.commit()

    def program(self, name: str, text: str) -> None:
        path = self.programs / name
        path.write_text(text)
        path.chmod(0o755)

    def git(self, *arguments: str) -> str:
        command = ["git", "-c", "user.name=one", "-c", "user.email=one@example.com", *arguments]
        done = subprocess.run(command, cwd=self.root, capture_output=True, text=True, check=True)
        return done.stdout

    def commit(self) -> None:
        self.git("add", "--all")
        self.git("commit", "--quiet", "--message", "change")

    def change(self, name: str) -> None:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("changed\n")
        self.commit()

    def run(self, *arguments: str, fails: str = "", passes_then: bool = False) -> Run:
        asked = self.programs / "asked"
        asked.write_text("")
        done = subprocess.run(
            [".ci/run", *arguments],
            cwd=self.root,
            env={
                **os.environ,
                "PATH": f"{self.programs}:{os.environ['PATH']}",
                "ASKED": str(asked),
                "FAILS": fails,
                "PASSES_THEN": "yes" if passes_then else "",
            },
            capture_output=True,
            text=True,
            check=False,
        )
        assert "unbound variable" not in done.stderr
        _, result = done.stdout.split("== result")
        return Run(asked.read_text().split(), result.splitlines()[1:], done.returncode)

    def passed(self) -> str:
        return (self.root / ".ci" / "passed").read_text()


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    return Checkout(tmp_path)


def test_without_a_change_lint_tests_and_the_smoke_of_programs_run(checkout: Checkout) -> None:
    run = checkout.run()
    assert (run.status, run.asked) == (0, [*ALWAYS, "test-smoke"])
    assert run.result[0] == "=== 5 passed in 3.00s ==="
    left = [line.split(",")[0] for line in run.result if line.startswith("left out")]
    assert left == [f"left out: {stage}" for stage in STAGES]
    assert all("changed since" in line for line in run.result if line.startswith("left out"))


def test_a_page_s_change_leads_to_its_stages_and_the_rest_is_named(checkout: Checkout) -> None:
    checkout.change("docs/usage.md")
    run = checkout.run()
    assert sorted(run.asked) == sorted([*ALWAYS, "docs", "test-programs"])
    left = [line.split(",")[0] for line in run.result if line.startswith("left out")]
    assert left == [f"left out: {stage}" for stage in STAGES if stage not in ("docs", "programs")]
    before = checkout.passed()
    assert before != checkout.git("rev-parse", "HEAD")


def test_all_stages_that_pass_are_written_down_as_a_commit(checkout: Checkout) -> None:
    checkout.change("docs/usage.md")
    run = checkout.run("--all")
    environments = ["vllm-env", "clients-env", "deploy-images"]
    made = {f"test-{stage}" for stage in STAGES} - {"test-docs", "test-mutants"}
    assert {*run.asked} == {*ALWAYS, *environments, *made, "docs", "mutants"}
    assert run.status == 0
    assert not [line for line in run.result if line.startswith(("left out", "failed"))]
    assert [line.split()[1] for line in run.result if line.startswith("took")] == [
        *("lint", "docs", "long", "lab", "mutants", "test", "programs"),
        *("vllm", "page", "clients", "deploy"),
    ]
    assert checkout.passed() == checkout.git("rev-parse", "HEAD")
    assert checkout.run().asked == [*ALWAYS, "test-smoke"]


def test_what_is_not_committed_has_not_passed_as_a_commit(checkout: Checkout) -> None:
    before = checkout.passed()
    (checkout.root / "note.md").write_text("not committed\n")
    run = checkout.run()
    assert (run.status, "test-deploy" in run.asked) == (0, True)
    assert checkout.passed() == before


@pytest.mark.parametrize("environment", ["vllm", "clients"])
def test_an_environment_that_cannot_be_had_is_named_and_not_all_has_passed(
    checkout: Checkout, environment: str
) -> None:
    before = checkout.passed()
    checkout.change("Makefile")
    run = checkout.run(fails=f"{environment}-env")
    assert run.status == 0
    assert f"test-{environment}" not in run.asked
    assert any(
        line.startswith(f"left out: {environment}, whose environment cannot be had")
        for line in run.result
    )
    assert checkout.passed() == before


@pytest.mark.parametrize("target", ["lint", "test", "test-long", "test-page", "test-deploy"])
def test_a_stage_that_fails_fails_the_build(checkout: Checkout, target: str) -> None:
    before = checkout.passed()
    checkout.change("Makefile")
    run = checkout.run(fails=target)
    stage = target if target == "test" else target.removeprefix("test-")
    assert run.status == 1
    assert run.result[-1] == f"failed: {stage} (its output is above)"
    assert checkout.passed() == before


def test_what_passes_when_run_again_is_named_with_its_row_for_the_ledger(
    checkout: Checkout,
) -> None:
    run = checkout.run(fails="test", passes_then=True)
    assert run.status == 0
    test = "tests/services/test_tls.py::test_one"
    (row,) = (line for line in run.result if line.startswith("| `"))
    assert row.startswith(f"| `{test}` | {checkout.git('rev-parse', '--short', 'HEAD').strip()} |")
    ledger = checkout.root / "tests" / "flaky.md"
    ledger.write_text(ledger.read_text() + row + "\n")
    checkout.commit()
    (checkout.programs / "asked.again").unlink()
    run = checkout.run(fails="test", passes_then=True)
    assert (run.status, run.result[-1]) == (1, "failed: test (its output is above)")
