"""A test that fails and then passes: once it is named, the second time it fails the build."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from tests.programs import REPOSITORY

ONE = "tests/services/test_laptop.py::test_a_prompt[coupled]"
JUDGE = """
set -euo pipefail
say() { echo "$*"; }
make_tests() { echo "make $*"; return "$then"; }
flaky=()
source RETRY
LEDGER=ledger.md
judge test report "$failed" && status=0 || status=$?
echo "status $status flaky ${flaky[*]}"
"""


def judged(
    folder: Path, report: str, failed: int = 1, again: int = 0, ledger: str = "| test |\n"
) -> list[str]:
    (folder / "report").write_text(report)
    (folder / "ledger.md").write_text(ledger)
    script = JUDGE.replace("RETRY", str(REPOSITORY / ".ci" / "retry.sh"))
    done = subprocess.run(
        ["bash", "-c", f"failed={failed} then={again}\n{script}"],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    assert not done.stderr
    return done.stdout.splitlines()


def failures(count: int) -> str:
    return "".join(f"FAILED {ONE.replace('coupled', str(one))} - why\n" for one in range(count))


def test_what_passed_is_not_run_again(tmp_path: Path) -> None:
    assert judged(tmp_path, "", failed=0) == ["status 0 flaky "]


def test_what_passes_when_run_again_is_named(tmp_path: Path) -> None:
    *run, last = judged(tmp_path, f"FAILED {ONE} - AssertionError\n")
    assert run[0] == f"once more: {ONE}"
    assert run[1].startswith("make test -n 0 --last-failed")
    assert last == f"status 0 flaky {ONE}"


def test_what_passes_when_run_again_a_second_time_fails_the_build(tmp_path: Path) -> None:
    ledger = f"| `{ONE}` | 0123abcd | One | too late |\n"
    *_, words, last = judged(tmp_path, f"ERROR {ONE}\n", ledger=ledger)
    assert words.startswith(f"{ONE} passed only when run again, for the second time")
    assert last == "status 1 flaky "
    other = ledger.replace("[coupled]", "[coupled-1]")
    assert judged(tmp_path, f"FAILED {ONE}\n", ledger=other)[-1] == f"status 0 flaky {ONE}"


def test_what_fails_again_fails_the_build(tmp_path: Path) -> None:
    assert judged(tmp_path, f"FAILED {ONE}\n", again=1)[-1] == "status 1 flaky "


@pytest.mark.parametrize(("count", "status"), [(0, 1), (3, 0), (4, 1)])
def test_up_to_three_are_run_again(tmp_path: Path, count: int, status: int) -> None:
    assert judged(tmp_path, failures(count))[-1].startswith(f"status {status}")


def test_a_run_that_broke_off_is_begun_anew(tmp_path: Path) -> None:
    _, run, last = judged(tmp_path, "..INTERNALERROR> why\n")
    assert run == "make test "
    assert last == "status 0 flaky test, which broke off"


def test_the_ledger_names_tests_that_exist_with_commit_person_and_words() -> None:
    text = (REPOSITORY / "tests" / "flaky.md").read_text(encoding="utf-8")
    _, rows = text.split("|---|---|---|---|\n")
    for row in rows.splitlines():
        found = re.fullmatch(r"\| `([^`]+)` \| ([0-9a-f]{7,40}) \| ([^|]+) \| ([^|]+) \|", row)
        assert found, row
        if "::" in found[1]:
            file, name = found[1].split("::")
            assert f"def {name.split('[')[0]}(" in (REPOSITORY / file).read_text(encoding="utf-8")
