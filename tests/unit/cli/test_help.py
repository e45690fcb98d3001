"""Help: groups of options, what is left for `--help-all`, and lines that are not cut."""

from __future__ import annotations

import click
import pytest
from click.testing import CliRunner

from tandem.cli import main
from tandem.commands.help_groups import OTHER

LONGEST_HELP = 75


def shown(*arguments: str, columns: int = 100) -> str:
    ended = CliRunner().invoke(
        main, arguments, prog_name="tandem", env={"COLUMNS": str(columns)}, terminal_width=columns
    )
    assert (ended.exit_code, ended.stderr) == (0, "")
    return ended.stdout


def titles(text: str) -> list[str]:
    return [line[:-1] for line in text.splitlines() if line.endswith(":") and line[0] != " "]


@pytest.mark.parametrize("command", ["generate", "chat", "up"])
def test_options_stand_in_groups_and_the_rare_ones_wait_for_help_all(command: str) -> None:
    usual, everything = shown(command, "--help"), shown(command, "--help-all")
    for title in ("Model", "Sampling", "Link", "Output"):
        assert title in titles(everything)
    assert OTHER not in titles(everything)
    assert len(usual.splitlines()) <= LONGEST_HELP
    assert len(usual.splitlines()) < len(everything.splitlines()) - 5
    assert "--engine-draft" not in usual
    assert "--help-all" in usual
    found = main.get_command(click.Context(main), command)
    assert found is not None
    for parameter in found.params:
        if isinstance(parameter, click.Option):
            assert parameter.opts[0] in everything
