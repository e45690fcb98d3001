"""`tandem serve SERVICE --help`: the settings of a service as flags, in groups like those of other
commands. The fields say in which group they are."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any

import click

from tandem.commands.help_groups import OptionGroup, sections_of, write_sections

if TYPE_CHECKING:
    from pydantic.fields import FieldInfo

HELP = ("-h", "--help")
HELP_ALL = "--help-all"

TITLES = (
    "Model",
    "Target server",
    "Sampling",
    "Schedule",
    "Link",
    "HTTP",
    "Keys and certificates",
    "Documents",
    "Limits",
    "Learning",
    "Output",
)
"""Of the groups that fields of settings name, in the order in which they are shown."""


def write_service_help(ctx: click.Context, service: str, *, everything: bool) -> None:
    """Print the help of `service` to standard output."""
    settings: Any = import_module(f"tandem.services.{service}.config")
    model = getattr(settings, f"{service.capitalize()}Settings")
    fields: Mapping[str, FieldInfo] = model.model_fields
    rows = {name: _row(name, field) for name, field in fields.items()}
    rows["help"] = (", ".join(HELP), "Show this message and exit.")
    rows["help_all"] = (HELP_ALL, "Show all flags, including those that few people need.")
    extras = {name: field.json_schema_extra for name, field in fields.items()}
    extras["help"] = extras["help_all"] = {"group": "Output", "usual": True}
    groups = [_group(title, extras) for title in TITLES]
    formatter = ctx.make_formatter()
    formatter.write_usage(f"tandem serve {service}", "[FLAGS]")
    formatter.write_paragraph()
    with formatter.indentation():
        formatter.write_text(
            f"Run the {service} until a signal. Each flag is also a variable, TANDEM_ and its name"
            " in capitals with underscores, and a key of the file named by --config."
        )
    write_sections(formatter, sections_of(groups, rows, everything=everything))
    click.echo(formatter.getvalue(), nl=False)


def _group(title: str, extras: Mapping[str, object]) -> OptionGroup:
    usual = (name for name, extra in extras.items() if extra == {"group": title, "usual": True})
    rare = (name for name, extra in extras.items() if extra == {"group": title})
    return OptionGroup(title, tuple(usual), tuple(rare))


def _row(name: str, field: FieldInfo) -> tuple[str, str]:
    flag = "--" + name.replace("_", "-")
    default = field.get_default(call_default_factory=True)
    if field.annotation is bool:
        return f"{flag} [true|false]", f"{field.description}  [default: {str(default).lower()}]"
    shown = "" if default in (None, "") else f"  [default: {default}]"
    return f"{flag} VALUE", f"{field.description}{shown}"
