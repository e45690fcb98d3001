"""Help: groups of options, what is left for `--help-all`, and lines that are not cut."""

from __future__ import annotations

import json

import click
import pytest
from click.testing import CliRunner

from tandem.cli import SERVICES, main
from tandem.commands import help_groups
from tandem.commands.help_groups import OTHER, GroupedCommand, OptionGroup
from tandem.commands.presets import OF_DOCUMENTS, OTHERS, USUAL
from tandem.generation.request import CLOUD_ALONE_PRESET, DEFAULT_PRESET, RAG_PRESET
from tandem.specdec.presets import PRESETS
from tandem.two_sided.interface import AGGREGATION_PRESETS
from tools.reference import SERVICES as SETTINGS

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


def test_each_option_is_in_one_group() -> None:
    names = [name for group in help_groups.GROUPS for name in (*group.usual, *group.rare)]
    assert len(names) == len(set(names))


def test_the_preset_is_explained_by_the_three_that_most_people_need() -> None:
    for command in ("generate", "chat"):
        text = shown(command, "--help-all")
        assert "tandem presets" in text
        assert "picospec" not in text


def test_a_command_without_rare_options_has_no_help_all() -> None:
    @click.command(cls=GroupedCommand, groups=(OptionGroup("First", ("b",)),), others="Rest")
    @click.option("--a", help="Is a.")
    @click.option("--b", help="Is b.")
    def act(a: str, b: str) -> None:
        pass

    text = CliRunner().invoke(act, ["--help"]).stdout
    assert titles(text) == ["First", "Rest"]
    assert text.index("Is b.") < text.index("Is a.")
    assert "--help-all" not in text


@pytest.mark.parametrize("service", SERVICES)
def test_a_service_has_the_same_kind_of_help(service: str) -> None:
    usual, everything = (shown("serve", service, flag) for flag in ("--help", "--help-all"))
    assert usual.startswith(f"Usage: tandem serve {service} [FLAGS]\n")
    assert "python -m" not in everything
    assert OTHER not in titles(everything)
    for name in SETTINGS[service].model_fields:
        assert f"--{name.replace('_', '-')}" in everything
    assert "--trace-endpoint" not in usual
    assert "--config" in usual
    assert len(usual.splitlines()) < len(everything.splitlines())
    assert shown("serve", service, "-h") == usual


def test_every_preset_has_a_sentence() -> None:
    assert {*USUAL, *OTHERS, *OF_DOCUMENTS} == {*PRESETS, *AGGREGATION_PRESETS}
    assert tuple(USUAL) == (DEFAULT_PRESET, CLOUD_ALONE_PRESET, RAG_PRESET)
    lossy = {name for name, each in PRESETS.items() if each.lossy}
    lossy |= {name for name, each in AGGREGATION_PRESETS.items() if each.lossy}
    sentences = USUAL | OTHERS | OF_DOCUMENTS
    assert {name for name, words in sentences.items() if words.endswith("Lossy.")} == lossy
    assert titles(shown("presets"))[0] == "For most uses"
    assert json.loads(shown("presets", "--json")) == sentences


@pytest.mark.parametrize(
    ("typed", "meant"),
    [("list", "models"), ("ls", "models"), ("run", "chat"), ("ask", "generate")],
)
def test_names_of_other_programs_are_understood(typed: str, meant: str) -> None:
    ended = CliRunner().invoke(main, [typed], prog_name="tandem")
    assert ended.exit_code == 2
    assert f"No such command {typed!r} (did you mean {meant!r}?)" in ended.stderr
