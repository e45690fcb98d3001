"""The tool that counts which changes tests notice: what it changes, and whom it asks."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.programs import REPOSITORY
from tools.mutants.equivalent import Equivalents
from tools.mutants.mutations import mutants_of
from tools.mutants.selection import chosen_modules, files_to_ask

MODULE = '''"""Text."""
from math import inf

LIMIT = 3


def checked(value: int | None, name: str = "value") -> float:
    if value is None or value >= LIMIT:
        raise ValueError(f"{name} {value}", LIMIT + 1)
    return max(value, 0) * 2.0 if len(name) > 1 else inf
'''


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


def test_a_module_s_own_tests_are_asked_first_and_all_of_its_room_at_last() -> None:
    nearest, others = files_to_ask(REPOSITORY, "tandem/specdec/pacing.py")
    assert nearest[0] == "tests/unit/specdec/test_pacing.py"
    assert "tests/unit/specdec/test_edge.py" in others
    for module in chosen_modules(REPOSITORY, []):
        assert files_to_ask(REPOSITORY, module)
