"""Each file leads to a known stage or, said so, to none; each test is run by some stage."""

from __future__ import annotations

import re
import subprocess

import yaml

from tests.programs import REPOSITORY, tracked_files
from tools.gate import Table

TABLE = Table.read(REPOSITORY)
FILES = [path.relative_to(REPOSITORY).as_posix() for path in tracked_files()]


def printed(variable: str) -> list[str]:
    show = f"show: ; @echo $({variable})"
    command = ["make", "--no-print-directory", "--eval", show, "show"]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=True)
    return done.stdout.split()


def test_every_file_is_named_by_the_table_and_every_entry_names_one() -> None:
    assert not [name for name in FILES if TABLE.entry(name) is None]
    entries = {TABLE.entry(name) for name in FILES}
    assert TABLE.paths.keys() == entries
    folders = {f"tandem/{name.split('/')[1]}" for name in FILES if name.startswith("tandem/")}
    assert folders <= TABLE.paths.keys(), "each room has an entry of its own"


def test_every_stage_is_known_to_the_script_and_some_path_leads_to_it() -> None:
    named = {stage for stages in TABLE.paths.values() for stage in stages}
    assert named == {*TABLE.stages}
    script = (REPOSITORY / ".ci" / "run").read_text(encoding="utf-8")
    for stage in TABLE.stages:
        assert re.search(rf"\b(wanted {stage}\b|for \w+ in [\w ]*\b{stage}\b)", script), stage


def test_every_test_is_of_a_target_that_the_script_runs() -> None:
    """What `make test` ignores is all of another one's, which is the script's or of every night."""
    ignored = {name.removeprefix("--ignore=") for name in printed("OTHER_TESTS")}
    ignored |= {*printed("LABORATORY_TESTS")}
    others = {*printed("PROGRAM_TESTS"), *printed("LABORATORY_TESTS")}
    assert "tests/lab/process" in others, "`make test-lab` leaves it to `make test-programs`"
    others |= {f"tests/{stage}" for stage in ("page", "clients", "deploy")}
    nightly = (REPOSITORY / ".github" / "workflows" / "nightly.yml").read_text(encoding="utf-8")
    assert "- test-newcomer\n" in nightly
    others.add("tests/newcomer")
    assert all(any(f"{one}/".startswith(f"{other}/") for other in others) for one in ignored)
    assert {*printed("SMOKE_TESTS")} <= {*FILES}
    assert all(name.startswith("tests/process/") for name in printed("SMOKE_TESTS"))
    assert "tests/process" in others


def test_what_is_for_long_runs_is_not_where_they_do_not_look() -> None:
    ignored = [name.removeprefix("--ignore=") for name in printed("OTHER_TESTS")]
    for name in FILES:
        if name.endswith(".py") and any(f"{name}/".startswith(f"{one}/") for one in ignored):
            assert "tests.long_runs" not in (REPOSITORY / name).read_text(encoding="utf-8"), name


def test_workflows_run_the_same_script_and_targets_that_exist() -> None:
    makefile = (REPOSITORY / "Makefile").read_text(encoding="utf-8")
    (phony,) = re.findall(r"^\.PHONY: (.*)$", makefile, re.MULTILINE)
    workflows = REPOSITORY / ".github" / "workflows"
    gate, nightly = ((workflows / f"{name}.yml").read_text() for name in ("gate", "nightly"))
    assert re.search(r"pull_request:.*\.ci/run$", gate, re.DOTALL | re.MULTILINE)
    assert re.search(r'tags: \["v\*"\].*\.ci/run --all$', nightly, re.DOTALL | re.MULTILINE)
    jobs = yaml.safe_load(nightly)["jobs"]
    commands = [command.split()[0] for command in jobs["long"]["strategy"]["matrix"]["command"]]
    assert {*commands, "test-lab", "test-programs"} <= {*phony.split()}
