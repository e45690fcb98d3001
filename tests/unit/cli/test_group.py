"""The command group: what it imports, how it fails, with which code."""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from tandem import __version__
from tandem.cli import COMMANDS, main
from tandem.commands.group import CommandGroup, InstalledCommand
from tandem.core.errors import InvalidArgument, TandemError
from tests.programs import REPOSITORY

HEAVY = ("torch", "transformers", "grpc", "numpy", "rich")


COMMANDS_IN_TURN = (
    ["--help"],
    ["plan", "--draft-ms", "1", "--verify-ms", "9", "--acceptance", "0.8", "--preset", "dssd"],
    ["generate", "--help"],
    *([command, "--help"] for command in ("up", "link", "doctor")),
)
"""What may be imported grows from each to the next, so that one interpreter runs them all."""


@pytest.fixture(scope="module")
def imported() -> dict[str, set[str]]:
    """What a fresh interpreter has imported once the command and those before it have run, by the
    command's first word."""
    program = f"""
import json, sys
from tandem.cli import main
found = dict()
for arguments in {COMMANDS_IN_TURN!r}:
    try:
        main(arguments)
    except SystemExit as end:
        assert not end.code, end.code
    found[arguments[0]] = [*sys.modules]
print("MODULES", json.dumps(found))
"""
    ended = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60
    )
    found = json.loads(ended.stdout.partition("MODULES ")[2])
    return {command: set(modules) for command, modules in found.items()}


def test_help_imports_nothing_heavy(imported: dict[str, set[str]]) -> None:
    assert not imported["--help"] & set(HEAVY)


@pytest.mark.parametrize("command", ["generate", "up", "link", "doctor"])
def test_a_command_imports_torch_only_when_it_needs_a_model(
    command: str, imported: dict[str, set[str]]
) -> None:
    assert "torch" not in imported[command]
    assert "grpc" in imported["doctor"], "they did run"
    if command == "generate":  # which may call a running suite
        assert not [name for name in imported[command] if name.startswith("tandem.services")]


def failing(error: Exception) -> CommandGroup:
    @click.group(cls=CommandGroup, commands_on_demand={})
    @click.option("--debug", is_flag=True)
    def group(debug: bool) -> None:
        pass

    @group.command()
    @click.option("--draft-length", type=int)
    def act(draft_length: int | None) -> None:
        raise error

    return group


@pytest.mark.parametrize(
    ("error", "exit_code", "words"),
    [
        (TandemError("no\nroom"), 1, "error: no room"),
        (OSError(13, "denied", "/x"), 1, "error: /x: denied"),
        (OSError(28, "No space left"), 1, "error: No space left"),
        (InvalidArgument("draft_length", "is 0"), 2, "--draft-length: is 0; see 'main act --help'"),
        (
            InvalidArgument("weights", "are bad"),
            2,
            "error: weights: are bad; see 'main act --help'",
        ),
        (
            ModuleNotFoundError("x", name="torch.nn"),
            1,
            "torch is not installed; it is part of the extra 'engine': pip install 'tandem-edge[",
        ),
        (ModuleNotFoundError("x", name="other"), 1, "other is not installed; see 'tandem doctor'"),
        (KeyError("key"), 1, "unexpected KeyError: 'key'; 'tandem --debug …' prints"),
        (KeyboardInterrupt(), 130, "interrupted"),
        (click.ClickException("plain"), 1, "error: plain"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_failure_is_one_line_and_a_code(error: Exception, exit_code: int, words: str) -> None:
    ended = CliRunner().invoke(failing(error), ["act"], prog_name="main")
    assert ended.exit_code == exit_code
    assert ended.stdout == ""
    assert words in ended.stderr
    assert len(ended.stderr.strip().splitlines()) == 1


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["nothing"], "No such command 'nothing'; see"),
        (["genrate"], "No such command 'genrate' (did you mean 'generate'?); see"),
        (["plan", "--nothing"], "No such option '--nothing'"),
        (["plan", "--draft-ms", "x"], "'x' is not a valid float"),
        (["plan", "--preset", "x"], "'x' is not one of 'ar', "),
        (["link"], "Missing option '--listen'"),
        (["serve", "nothing"], "'verifier', 'drafter', 'aggregator', 'retriever'"),
    ],
)
def test_bad_usage_is_one_line_and_code_2(arguments: list[str], words: str) -> None:
    ended = CliRunner().invoke(main, arguments, prog_name="tandem")
    assert ended.exit_code == 2
    assert words in ended.stderr
    assert "--help'" in ended.stderr
    assert len(ended.stderr.splitlines()) == 1


def test_an_interrupt_during_the_imports_is_one_line() -> None:
    program = """
import sys
class Interrupting:
    def find_spec(self, name, path=None, target=None):
        if name == "click":
            raise KeyboardInterrupt
sys.meta_path.insert(0, Interrupting())
from tandem.__main__ import main
main()
"""
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (ended.returncode, ended.stdout, ended.stderr) == (130, "", "interrupted\n")


@pytest.mark.parametrize(("argument", "exit_code"), [("--version", 0), ("--no-such", 2)])
def test_a_command_that_is_done_waits_for_no_library(argument: str, exit_code: int) -> None:
    """Native code of gRPC's has waited for its threads at the interpreter's end, for ever. What was
    written but not flushed comes out nevertheless."""
    program = f"""
import atexit, sys, threading, time
atexit.register(time.sleep, 600)
threading.Thread(target=time.sleep, args=(600,)).start()
print("begun", end=" ")
sys.argv = ["tandem", {argument!r}]
from tandem.__main__ import main
main()
"""
    ended = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=120
    )
    assert ended.returncode == exit_code
    assert ended.stdout.startswith("begun ")
    assert (__version__ in ended.stdout) == (exit_code == 0)
    assert (ended.stderr == "") == (exit_code == 0)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="only Linux has a disk that is full")
@pytest.mark.parametrize("arguments", [("--help",), ("--version",), ("generate", "--help")])
def test_help_on_a_full_disk_is_one_line(arguments: tuple[str, ...]) -> None:
    command = (sys.executable, "-m", "tandem", *arguments)
    with open("/dev/full", "w") as full:
        ended = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, timeout=60)
    assert (ended.returncode, ended.stderr) == (1, "error: No space left on device\n")


def test_a_reader_that_left_ends_it_quietly() -> None:
    ended = CliRunner().invoke(failing(BrokenPipeError(32, "gone")), ["act"])
    assert (ended.exit_code, ended.stderr) == (1, "")


def with_a_command_elsewhere(name: str) -> CommandGroup:
    return CommandGroup("main", commands_on_demand={name: InstalledCommand(name, "Is.", "is not")})


def install(folder: Path, name: str, module: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The metadata of a distribution that brings one command, and none of its code."""
    metadata = folder / "elsewhere-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: elsewhere\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text(f"[tandem.commands]\n{name} = {module}:act\n")
    monkeypatch.syspath_prepend(str(folder))


def test_a_command_that_another_distribution_brings_is_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(tmp_path, "brought", "brought_command", monkeypatch)
    text = "import click\n\n@click.command()\ndef act():\n    click.echo('acts')\n"
    (tmp_path / "brought_command.py").write_text(text)
    ended = CliRunner().invoke(with_a_command_elsewhere("brought"), ["brought"])
    assert (ended.exit_code, ended.stdout, ended.stderr) == (0, "acts\n", "")


def test_a_command_that_nothing_brings_is_listed_and_says_what_to_install() -> None:
    group = with_a_command_elsewhere("absent")
    assert "Is." in CliRunner().invoke(group, ["--help"]).stdout
    ended = CliRunner().invoke(group, ["absent"])
    assert (ended.exit_code, ended.stdout) == (1, "")
    assert ended.stderr == "error: 'tandem absent' is not\n"
    asking = click.Context(group, resilient_parsing=True)  # as a shell does that completes
    assert group.get_command(asking, "absent") is None


def test_the_laboratory_brings_the_commands_that_are_listed_as_its_own() -> None:
    project = tomllib.loads((REPOSITORY / "lab" / "pyproject.toml").read_text())["project"]
    brought = project["entry-points"]["tandem.commands"]
    elsewhere = {n for n, each in COMMANDS.items() if isinstance(each, InstalledCommand)}
    assert brought.keys() == elsewhere
    for name in elsewhere:
        assert COMMANDS[name].load().name == name


@pytest.mark.parametrize(
    ("words", "completions"),
    [
        ("verify-", ["verify-lossless"]),
        ("verify-lossless --preset coup", ["coupled"]),
        ("generate --preset dssd", ["dssd", "dssd-full"]),
        ("chat --preset dragon-c", ["dragon-coupled"]),
    ],
)
def test_commands_and_values_are_completed(words: str, completions: list[str]) -> None:
    asked = {
        "_TANDEM_COMPLETE": "bash_complete",
        "COMP_WORDS": f"tandem {words}",
        "COMP_CWORD": str(len(words.split())),
    }
    ended = CliRunner().invoke(main, prog_name="tandem", env=asked)
    found = [line.partition(",")[2] for line in ended.stdout.splitlines()]
    assert found == completions
