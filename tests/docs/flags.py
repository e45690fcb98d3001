"""What the commands of Tandem take: checked against click, the settings models and the Makefile."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from itertools import pairwise

import click

from tandem.cli import main
from tests.docs.blocks import Command
from tests.programs import REPOSITORY
from tools.reference import SERVICES

MAKEFILE = (REPOSITORY / "Makefile").read_text(encoding="utf-8")
TARGETS = frozenset(re.findall(r"^([a-z-]+):", MAKEFILE, re.MULTILINE))
VARIABLES = frozenset(re.findall(r"^([A-Z_]+) \?=|\$\(([A-Z_]+)\)", MAKEFILE, re.MULTILINE))


def complaints(command: Command) -> Iterator[str]:
    """What is wrong with `command`, as far as it can be told without running it."""
    match command.program:
        case "tandem":
            yield from _tandem_complaints(command.words[1:])
        case "make":
            yield from _make_complaints(command.words[1:])
    for before, word in pairwise(command.words):
        if before != "-t":  # the name of an image looks like a path
            yield from path_complaints(word)


MADE_BY_COMMANDS = ("models/real/", "models/large", "report/")
"""Folders that git ignores and that stand among others."""


def path_complaints(word: str) -> Iterator[str]:
    """A path into a folder of the repository must exist, unless a command makes it."""
    path = word.partition("=")[2] if word.startswith("-") or "=" in word else word
    path = path.partition("@http")[0].partition("$")[0].rstrip(".,:")
    if path.startswith(MADE_BY_COMMANDS):
        return
    if "/" in path and path.split("/")[0] in folders() and not any(REPOSITORY.glob(path)):
        yield f"{path}: does not exist"


@cache
def folders() -> frozenset[str]:
    """The repository's folders whose content is checked in."""
    kept = {path.name for path in REPOSITORY.iterdir() if path.is_dir()}
    return frozenset(kept - {"build", "certs", "dist", "gen", "site", ".venv", ".git"})


@cache
def all_flags() -> frozenset[str]:
    """Every flag of every command and service."""
    found = {f"--{name.replace('_', '-')}" for s in SERVICES.values() for name in s.model_fields}
    pending: list[click.Command] = [main]
    while pending:
        command = pending.pop()
        context = click.Context(command)
        found |= _flags(command)
        if isinstance(command, click.Group):
            for name in command.list_commands(context):
                if (member := command.get_command(context, name)) is not None:
                    pending.append(member)
    return frozenset(found)


def _tandem_complaints(words: tuple[str, ...]) -> Iterator[str]:
    command: click.Command = main
    flags, rest = _flags(main), list(words)
    while rest and isinstance(command, click.Group) and not rest[0].startswith("-"):
        name = rest.pop(0)
        member = command.get_command(click.Context(command), name)
        if member is None:
            yield f"tandem {name}: no such command"
            return
        command, flags = member, _flags(member)
    if command.name == "serve" and rest:
        service = next((SERVICES[word] for word in rest if word in SERVICES), None)
        if service is None:
            yield f"{' '.join(words)}: no such service"
            return
        flags = flags | {f"--{name.replace('_', '-')}" for name in service.model_fields}
    for word in rest:
        flag = word.partition("=")[0]
        if flag.startswith("--") and flag not in flags:
            yield f"tandem {' '.join(words)}: no flag {flag}"


def _flags(command: click.Command) -> set[str]:
    options = (p for p in command.params if isinstance(p, click.Option))
    return {name for o in options for name in (*o.opts, *o.secondary_opts)} | {"--help", "-h"}


def _make_complaints(words: tuple[str, ...]) -> Iterator[str]:
    variables = {name for pair in VARIABLES for name in pair if name}
    for word in words:
        name, equals, _ = word.partition("=")
        if equals and name not in variables:
            yield f"make {word}: the Makefile knows no such variable"
        if not equals and not word.startswith("-") and word not in TARGETS:
            yield f"make {word}: no such target"
