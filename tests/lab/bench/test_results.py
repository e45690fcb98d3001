"""Which code a row is of."""

from __future__ import annotations

from pathlib import Path

import pytest

from lab.bench.harness import results
from lab.bench.harness.results import code_of, sources_of


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Modules of `lab` and `tandem` that import each other, and others."""
    for name, text in {
        "lab/__init__.py": "",
        "lab/made.py": "import json\nfrom tandem import rules\nfrom tandem.rules import one\n",
        "lab/other.py": "",
        "tandem/__init__.py": "",
        "tandem/rules/__init__.py": "from tandem.rules.one import rate\n",
        "tandem/rules/one.py": "def rate():\n    import lab.late\n",
        "lab/late.py": "from lab.made import something\n",
    }.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    monkeypatch.setattr(results, "ROOT", tmp_path)
    return tmp_path


def test_the_code_is_all_that_is_imported(tree: Path) -> None:
    assert sources_of("lab.made") == [
        *("lab/late.py", "lab/made.py"),
        *("tandem/__init__.py", "tandem/rules/__init__.py", "tandem/rules/one.py"),
    ]


def test_the_hash_follows_what_is_imported_and_nothing_else(tree: Path) -> None:
    before = code_of("lab.made")
    assert len(before) == 12
    (tree / "lab" / "other.py").write_text("rate = 2\n")
    assert code_of("lab.made") == before
    (tree / "lab" / "late.py").write_text("from lab.made import something\nrate = 2\n")
    assert code_of("lab.made") != before


def test_tables_of_virtual_time_know_the_state_machines() -> None:
    found = sources_of("lab.bench.papers.picospec_tables")
    assert {"tandem/specdec/edge.py", "tandem/specdec/presets.py"} <= set(found)
