"""The tool that counts which changes tests notice: what it changes, and whom it asks."""

from __future__ import annotations

import functools
import gc
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.long_runs import LONG
from tests.programs import REPOSITORY
from tools.mutants.equivalent import Equivalents
from tools.mutants.in_place import LiveFunctions, changed_function, forget_results
from tools.mutants.mutations import mutants_of
from tools.mutants.selection import SUBJECTS, chosen_modules, files_to_ask
from tools.mutants.since import of_changed_functions

MODULE = '''"""Text."""
from math import inf

LIMIT = 3


def checked(value: int | None, name: str = "value") -> float:
    pairs = zip(name, name, strict=True)
    if value is None or value >= LIMIT:
        raise ValueError(f"{name} {value}", LIMIT + 1)
    return max(value, 0) * 2.0 if len(name) > 1 else inf
'''


ROOM = """LIMIT = 3


class Counter:
    def __init__(self, start=0):
        self.total = start

    def count(self, steps):
        while self.total < steps:
            self.total += 1
        return self.total

    @property
    def full(self):
        return self.total >= LIMIT


def bounded(number):
    return min(
        number,
        LIMIT,
    )


def unasked(number):
    return number + 1
"""

TESTS = """from roomy import Counter, bounded


def test_counter():
    assert Counter().count(3) == 3
    assert Counter().count(0) == 0
    assert not Counter(2).full


def test_bounded():
    assert [bounded(n) for n in (2, 3, 4)] == [2, 3, 3]
"""

JUDGE = """import json, sys
from pathlib import Path
from tools.mutants import room
from tools.mutants.mutations import mutants_of
root = Path(sys.argv[1])
room.SPARE_CPU_S = 0.5
mutants = mutants_of(root, "roomy.py")
verdicts = room.Room(root, mutants, 2).judge(["test_roomy.py"])
found = {one.mutant: one.found_by for one in verdicts}
print(json.dumps([[*mutants[number].change(), found[number]] for number in sorted(found)]))
"""


def judged(folder: Path) -> subprocess.CompletedProcess[str]:
    (folder / "roomy.py").write_text(ROOM)
    paths = {"PYTHONPATH": f"{folder}:{REPOSITORY}", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    return subprocess.run(
        (sys.executable, "-c", JUDGE, str(folder)),
        cwd=folder,
        env={**os.environ, **paths},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


@LONG  # some mutants never end; `make mutants` tries many in place, and the parts are tested below
def test_a_mutant_is_tried_in_place_by_the_tests_of_its_lines(tmp_path: Path) -> None:
    (tmp_path / "test_roomy.py").write_text(TESTS)
    done = judged(tmp_path)
    lines = done.stdout.splitlines()
    found = {becomes: by for _, becomes, by in json.loads(lines[-1])}
    counter = "test_roomy.py::test_counter"
    assert found["while self.total <= steps:"] == counter
    assert found["self.total -= 1"] == counter, "it never ends"
    assert found["self.total = 1"] == found["self.total += 2"] == counter
    assert found["return self.total > LIMIT"] == ""
    assert found["return number - 1"] == "", "no test runs it"
    assert found["LIMIT = 4"] is None, "the tests would not see it in place"
    assert found["def __init__(self, start=1):"] is None
    assert "survived: roomy.py:26" in done.stdout


def test_tests_must_pass_without_a_mutant(tmp_path: Path) -> None:
    (tmp_path / "test_roomy.py").write_text(TESTS.replace("== 3", "== 5"))
    done = judged(tmp_path)
    assert done.returncode
    assert "FAILED test_roomy.py::test_counter" in done.stderr


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "module.py").write_text(MODULE)
    return tmp_path


def test_borders_numbers_and_conditions_change_and_nothing_that_others_check(folder: Path) -> None:
    mutants = mutants_of(folder, "module.py")
    put = {mutant.change()[1] for mutant in mutants}
    assert {
        "LIMIT = 4",
        "if value is None or value > LIMIT:",
        "if value is not None or value >= LIMIT:",
        "if value is None and value >= LIMIT:",
        "return max(value, 1) * 2.0 if len(name) > 1 else inf",
        "return max(value, 0) / 2.0 if len(name) > 1 else inf",
        "return max(value, 0) * 2.0 if len(name) >= 1 else inf",
    } <= put
    for line in put:
        assert "None" not in line or "value is" in line
        assert "raise" not in line
        assert "XX" not in line
        assert "zip" not in line or "strict=True" in line
    for mutant in mutants:
        compile(mutant.source(), "module.py", "exec")
        assert mutant.source() != MODULE
        assert len(mutant.change()[0].splitlines()) == 1


def test_equivalent_mutants_are_left_out_and_need_a_reason(folder: Path) -> None:
    listed = folder / "equivalent.toml"
    entry = '[[mutant]]\nmodule = "module.py"\nline = "LIMIT = 3"\nbecomes = "LIMIT = 4"\n'
    listed.write_text(f'{entry}reason = "nothing is 3"\n{entry.replace("4", "5")}reason = "x"\n')
    equivalents = Equivalents.read(listed)
    left = [mutant for mutant in mutants_of(folder, "module.py") if mutant in equivalents]
    assert [mutant.change() for mutant in left] == [("LIMIT = 3", "LIMIT = 4")]
    assert equivalents.unused(["module.py"]) == [("module.py", "LIMIT = 3", "LIMIT = 5")]
    assert not equivalents.unused(["other.py"])
    listed.write_text(entry)
    with pytest.raises(ValueError, match="no reason"):
        Equivalents.read(listed)


def test_modules_are_chosen_by_path_or_name() -> None:
    every = chosen_modules(REPOSITORY, [])
    assert {"tandem/core/probs.py", "tandem/specdec/edge.py"} < set(every)
    assert chosen_modules(REPOSITORY, ["edge", "core.probs"]) == [
        "tandem/core/probs.py",
        "tandem/specdec/edge.py",
    ]
    assert chosen_modules(REPOSITORY, ["tandem/core/*"]) == [
        module for module in every if module.startswith("tandem/core/")
    ]
    assert not chosen_modules(REPOSITORY, ["nonsense"])


def test_only_tests_that_import_the_room_and_little_else_are_asked() -> None:
    for subject in SUBJECTS:
        files = subject.files(REPOSITORY)
        assert len(files) >= 2
        for file in files:
            assert "torch" not in (REPOSITORY / file).read_text()


def test_a_module_s_own_tests_are_asked_first_and_all_of_its_room_at_last() -> None:
    nearest, others = files_to_ask(REPOSITORY, "tandem/specdec/judge.py")
    assert nearest[0] == "tests/unit/specdec/test_judge.py"
    assert "tests/unit/specdec/test_edge.py" in others
    for module in chosen_modules(REPOSITORY, []):
        assert files_to_ask(REPOSITORY, module)


@functools.cache
def remembered(number: int) -> int:
    return 2 * number


def test_functions_are_found_though_the_garbage_collector_does_not_look_at_them() -> None:
    """As `tests/conftest.py` leaves it after the imports: a function that is not found has to be
    imported again with its mutant, which takes seconds for each."""
    assert remembered(2) == 4
    gc.freeze()
    try:
        functions = LiveFunctions(Path(__file__).parent)
        assert remembered.__wrapped__.__code__ in functions
        assert changed_function.__code__ not in functions, "it is another folder's"
        gc.freeze()
        forget_results()
        assert remembered.cache_info().currsize == 0
    finally:
        gc.freeze()


OLD = """LIMIT = 3
OTHER = 4


def same(number):
    return number + 1


def changed(number):
    twice = 2 * number
    return twice + 1


def shorter(number):
    twice = 2 * number
    twice += 0
    return twice + 2
"""
NEW = OLD.replace("OTHER = 4", "OTHER = 5").replace("twice + 1", "twice + 3")
NEW = NEW.replace("    twice += 0\n", "")


def test_mutants_of_functions_that_changed_since_a_commit(tmp_path: Path) -> None:
    def git(*arguments: str) -> str:
        user = ("-c", "user.name=one", "-c", "user.email=one@example.com")
        command = ["git", *user, *arguments]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
        return done.stdout.strip()

    room, tests = SUBJECTS[0].room, SUBJECTS[0].tests[0]
    module, unknown = f"{room}/module.py", f"{room}/unknown.py"
    (tmp_path / room).mkdir(parents=True)
    (tmp_path / module).write_text(OLD)
    git("init", "--quiet")
    git("add", "--all")
    git("commit", "--quiet", "--message", "one")
    commit = git("rev-parse", "HEAD")
    (tmp_path / module).write_text(NEW)
    (tmp_path / unknown).write_text(OLD)
    mutants = [*mutants_of(tmp_path, module), *mutants_of(tmp_path, unknown)]
    chosen = of_changed_functions(tmp_path, commit, mutants)
    changed = [mutant for mutant in chosen if mutant.path == module]
    assert {mutant.line for mutant in changed} == {2, 10, 11, 15, 16}
    assert all(mutant in chosen for mutant in mutants if mutant.path == unknown)
    (tmp_path / tests).mkdir(parents=True)
    (tmp_path / tests / "test_module.py").write_text("import json\n")
    assert of_changed_functions(tmp_path, commit, mutants) == mutants, "their tests have changed"
