"""An experiment is added as the docstring of lab/bench/main.py says: a module and an entry."""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
import sys
from pathlib import Path

import lab.bench.main
from lab.bench.harness.report import FIELDS
from tests.programs import REPOSITORY, tracked_files

MODULE = '''
"""`bench toy`: one row."""

from lab.bench.harness.report import Goal, Report, make_row
from lab.bench.harness.models import Models


def run(report: Report, models: Models) -> None:
    rows = [make_row(preset="ar", seed=report.seed, tokens_per_s=8.0, toys=3)]
    report.add("Toys", ("preset", "toys"), rows)
    report.goals.append(Goal("toys", 3, 2, "at least"))
'''
TABLE = "EXPERIMENTS: dict[str, Experiment] = {\n"
ENTRY = '    "toy": Experiment("lab.bench.wire.toy", "Counts toys."),\n'


def test_a_module_and_an_entry_make_an_experiment(tmp_path: Path) -> None:
    for path in tracked_files("lab", "tandem", "protos"):
        copy = tmp_path / path.relative_to(REPOSITORY)
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_bytes(path.read_bytes())
    before = contents(tmp_path)

    (tmp_path / "lab/bench/wire/toy.py").write_text(MODULE.lstrip())
    main = tmp_path / "lab/bench/main.py"
    assert main.read_text().count(TABLE) == 1
    main.write_text(main.read_text().replace(TABLE, TABLE + ENTRY))

    after = contents(tmp_path)
    changed = {path for path, digest in after.items() if before.get(path) != digest}
    assert changed == named_files(group="wire", name="toy")
    assert set(before) <= set(after)

    command = [sys.executable, "-m", "tandem.cli", "bench", "toy", "--quick", "--json", "toy.json"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    assert "met: toys: 3 (at least 2)" in done.stdout
    written = json.loads((tmp_path / "toy.json").read_text())
    assert written["experiment"] == "toy"
    assert written["quick"] is True
    (row,) = written["rows"]
    assert tuple(row)[: len(FIELDS)] == FIELDS
    assert (row["preset"], row["tokens_per_s"], row["toys"], row["ttft_s"]) == ("ar", 8.0, 3, None)


def named_files(group: str, name: str) -> set[str]:
    """The files to change that the docstring of lab/bench/main.py lists."""
    listed = re.findall(r"^\d\. `(lab/bench/\S+\.py)`", lab.bench.main.__doc__ or "", re.MULTILINE)
    return {path.replace("<group>", group).replace("<name>", name) for path in listed}


def contents(folder: Path) -> dict[str, str]:
    """A digest of every source file."""
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in folder.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
