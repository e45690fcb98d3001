"""The command group: imports a command when it is called, and ends every failure in one line.

Invariant: whatever happens, standard error gets at most one line that says what to change, and the
exit code is one of those that `tandem --help` lists. Must not import grpc, numpy or torch.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import click
from click.exceptions import NoArgsIsHelpError

from tandem.core.errors import InvalidArgument, TandemError

FAILED, BAD_USAGE, INTERRUPTED = 1, 2, 130


@dataclass(frozen=True, slots=True)
class LazyCommand:
    """Where a command is, as "module:attribute", and its line in the list of commands."""

    place: str
    summary: str

    def load(self) -> click.Command:
        module, attribute = self.place.split(":")
        command = getattr(import_module(module), attribute)
        assert isinstance(command, click.Command), self.place
        return command


class CommandGroup(click.Group):
    """A group whose commands are imported on demand, so that `--help` stays fast."""

    def __init__(
        self, *args: Any, commands_on_demand: Mapping[str, LazyCommand], **options: Any
    ) -> None:
        super().__init__(*args, **options)
        self._on_demand = commands_on_demand

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*self._on_demand, *super().list_commands(ctx)]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        lazy = self._on_demand.get(cmd_name)
        return super().get_command(ctx, cmd_name) if lazy is None else lazy.load()

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The list of commands, without importing them."""
        added = {name: command.get_short_help_str() for name, command in self.commands.items()}
        summaries = {name: lazy.summary for name, lazy in self._on_demand.items()} | added
        with formatter.section("Commands"):
            formatter.write_dl([(name, summaries[name]) for name in self.list_commands(ctx)])

    def main(self, *args: Any, standalone_mode: bool = True, **options: Any) -> Any:
        if not standalone_mode:
            return super().main(*args, standalone_mode=False, **options)
        # More threads than cores make small models many times slower; and gRPC's own log would
        # stand beside the one line.
        os.environ.setdefault("OMP_NUM_THREADS", "1")
        os.environ.setdefault("GRPC_VERBOSITY", "NONE")
        try:
            outcome = super().main(*args, standalone_mode=False, **options)
        except Exception as error:
            if _debugging(options.get("args", args)) and not isinstance(error, click.ClickException):
                raise
            sys.exit(report(error))
        sys.exit(outcome if isinstance(outcome, int) else 0)


def report(error: Exception) -> int:
    """Write the one line about `error` to standard error; returns the exit code."""
    if isinstance(error, NoArgsIsHelpError):
        error.show()
        return BAD_USAGE
    if isinstance(error, click.Abort):
        click.echo("interrupted", err=True)
        return INTERRUPTED
    exit_code, words = _exit_code(error), _words(error)
    click.echo(f"error: {' '.join(words.split())}", err=True)
    return exit_code


def _debugging(arguments: Any) -> bool:
    return "--debug" in (sys.argv if arguments is None or arguments == () else arguments)


def _exit_code(error: Exception) -> int:
    if isinstance(error, click.ClickException):
        return error.exit_code
    return BAD_USAGE if isinstance(error, InvalidArgument) else FAILED


def _words(error: Exception) -> str:
    match error:
        case click.UsageError():
            command = error.ctx.command_path if error.ctx else "tandem"
            return f"{error.format_message().rstrip('.')}; see '{command} --help'"
        case click.ClickException():
            return error.format_message()
        case InvalidArgument():
            return f"{flag(error.field)}: {error.why}"
        case ModuleNotFoundError():
            return f"{error.name} is not installed; run 'tandem doctor'"
        case TandemError() | OSError():
            return str(error)
    kind = type(error).__name__
    return f"unexpected {kind}: {error}; 'tandem --debug …' shows the trace"


def flag(field: str) -> str:
    """The flag that sets `field`, where the command that runs has one."""
    context = click.get_current_context(silent=True)
    return f"--{field.replace('_', '-')}" if context and field in context.params else field
