"""The command group: imports a command when it is called. Invariant: any failure writes one line to
standard error that says what to change; `tandem --help` lists the exit codes."""

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from importlib import import_module
from types import MappingProxyType
from typing import Any

import click
from click.exceptions import Exit, NoArgsIsHelpError

from tandem.core.errors import InvalidArgument, TandemError, os_words
from tandem.core.extras import missing_package

BAD_USAGE = 2
INTERRUPTED = 130
ENTRY_POINTS = "tandem.commands"
"""The group of entry points by which another distribution brings commands: the laboratory's are in
`lab/pyproject.toml`."""


class NotInstalled(TandemError):
    """A command whose distribution is not there."""


@dataclass(frozen=True, slots=True)
class LazyCommand:
    """Location of a command in this package, and its line in the list of commands."""

    module: str
    function: str
    summary: str

    def load(self) -> click.Command:
        command = getattr(import_module(self.module), self.function)
        assert isinstance(command, click.Command), self.module
        return command


@dataclass(frozen=True, slots=True)
class InstalledCommand:
    """A command that another distribution brings, and its line in the list of commands."""

    name: str
    summary: str
    missing: str
    """What is said where nothing brings it."""

    def load(self) -> click.Command:
        """Load the command from the distribution that brings it. Raises NotInstalled."""
        from importlib.metadata import entry_points  # a third of the time of `--help`

        for point in entry_points(group=ENTRY_POINTS, name=self.name):
            try:
                command = point.load()
            except ModuleNotFoundError as error:
                # Metadata outlive a package that was moved or deleted. What the package itself
                # misses is another matter.
                if error.name == point.module.partition(".")[0]:
                    continue
                raise
            assert isinstance(command, click.Command), point.value
            return command
        raise NotInstalled(f"'tandem {self.name}' {self.missing}")


class CommandGroup(click.Group):
    """A group whose commands are imported on demand, so that `--help` stays fast."""

    def __init__(
        self,
        *args: Any,
        commands_on_demand: Mapping[str, LazyCommand | InstalledCommand],
        other_names: Mapping[str, str] = MappingProxyType({}),
        **options: Any,
    ) -> None:
        """Group `commands_on_demand`. `other_names`: what other programs call some of these
        commands, to suggest them."""
        super().__init__(*args, **options)
        self._on_demand = commands_on_demand
        self._other_names = other_names

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*self._on_demand, *super().list_commands(ctx)]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        lazy = self._on_demand.get(cmd_name)
        if lazy is None:
            return super().get_command(ctx, cmd_name)
        try:
            return lazy.load()
        except (NotInstalled, ModuleNotFoundError):
            if ctx.resilient_parsing:  # a shell asks for completions
                return None
            raise

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Resolve a command, and suggest a similar name for an unknown one; click itself knows only
        what is imported."""
        name = args[0]
        names = self.list_commands(ctx)
        close = [] if name in names else get_close_matches(name, names, n=1)
        if name not in names and self._other_names.get(name) in names:
            close = [self._other_names[name]]
        if close and not ctx.resilient_parsing:
            ctx.fail(f"No such command {name!r} (did you mean {close[0]!r}?)")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list of commands, without importing them."""
        summaries = {name: lazy.summary for name, lazy in self._on_demand.items()}
        summaries |= {name: command.get_short_help_str() for name, command in self.commands.items()}
        with formatter.section("Commands"):
            formatter.write_dl([(name, summaries[name]) for name in self.list_commands(ctx)])

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except (click.ClickException, click.Abort, Exit, BrokenPipeError):
            raise
        except Exception as error:
            if ctx.params.get("debug"):
                raise
            raise self._failure(ctx, error) from error

    def main(  # type: ignore[override]  # click's overloads say more than is needed here
        self, args: Sequence[str] | None = None, standalone_mode: bool = True, **options: Any
    ) -> Any:
        if not standalone_mode:
            return super().main(args, standalone_mode=False, **options)
        # More threads than cores make small models many times slower; gRPC's own log would break
        # the rule of one line.
        os.environ.setdefault("OMP_NUM_THREADS", "1")
        os.environ.setdefault("GRPC_VERBOSITY", "NONE")
        try:
            outcome = super().main(args, standalone_mode=False, **options)
        except NoArgsIsHelpError as error:
            error.show()
            sys.exit(BAD_USAGE)
        except click.ClickException as error:
            click.echo(f"error: {_one_line(error)}", err=True)
            sys.exit(error.exit_code)
        except click.Abort:
            click.echo("interrupted", err=True)
            sys.exit(INTERRUPTED)
        except OSError as error:  # help that cannot be written is no part of a command
            click.echo(f"error: {os_words(error)}", err=True)
            sys.exit(1)
        sys.exit(outcome if isinstance(outcome, int) else 0)

    def _failure(self, ctx: click.Context, error: Exception) -> click.ClickException:
        """Return `error` as an exception of click's, with click's exit code for it."""
        if isinstance(error, InvalidArgument):
            return self._bad_value(ctx, error)
        if isinstance(error, TandemError):
            return click.ClickException(str(error))
        if isinstance(error, OSError):
            return click.ClickException(os_words(error))
        if isinstance(error, ModuleNotFoundError):
            return click.ClickException(missing_package(error))
        kind = type(error).__name__
        return click.ClickException(
            f"unexpected {kind}: {error}; 'tandem --debug …' prints the traceback"
        )

    def _bad_value(self, ctx: click.Context, error: InvalidArgument) -> click.ClickException:
        """Return an error that names the flag of the field, if the command has one."""
        name = ctx.invoked_subcommand or ""
        command = self.get_command(ctx, name)
        assert command is not None
        flags = {parameter.name: parameter.opts[0] for parameter in command.params}
        flag = flags.get(error.field, error.field)
        within = click.Context(command, parent=ctx, info_name=name)
        return click.UsageError(f"{flag}: {error.why}", within)


def _one_line(error: click.ClickException) -> str:
    words = " ".join(error.format_message().split())
    if isinstance(error, click.UsageError):
        command = error.ctx.command_path if error.ctx else "tandem"
        return f"{words.rstrip('.')}; see '{command} --help'"
    return words
