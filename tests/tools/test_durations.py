"""Reports of pytest become the order of test files."""

from __future__ import annotations

import json
from pathlib import Path

from tests.programs import REPOSITORY
from tools.durations import DURATIONS, LEAST_S, longest_files

CASE = '<testcase classname="tests.{name}" name="test_one" time="{seconds}" />'


def report(path: Path, **seconds: float) -> Path:
    cases = "".join(CASE.format(name=name, seconds=took) for name, took in seconds.items())
    path.write_text(f"<testsuites><testsuite>{cases}{cases}</testsuite></testsuites>")
    return path


def test_files_that_take_long_are_listed_the_longest_first(tmp_path: Path) -> None:
    for name in ("slow", "slower", "quick"):
        (tmp_path / "tests").mkdir(exist_ok=True)
        (tmp_path / "tests" / f"test_{name}.py").touch()
    reports = [
        report(tmp_path / "one.xml", test_slow=LEAST_S, test_quick=LEAST_S / 3, test_gone=9.0),
        report(tmp_path / "two.xml", test_slower=2 * LEAST_S),
    ]
    expected = {"tests/test_slower.py": 4 * LEAST_S, "tests/test_slow.py": 2 * LEAST_S}
    assert [*longest_files(reports, tmp_path).items()] == [*expected.items()]


def test_the_list_is_in_that_order() -> None:
    seconds = json.loads(DURATIONS.read_text(encoding="utf-8"))
    assert [*seconds.values()] == sorted(seconds.values(), reverse=True)
    assert DURATIONS.parent == REPOSITORY / "tests"
