"""Options of commands that ask for an answer: one for each row of the table of request fields."""

from collections.abc import Callable
from typing import Literal, get_args, get_origin

import click

from tandem.commands.options import Command, together
from tandem.generation.request_fields import RequestField, RequestFields, fields_of


def request_options(*names: str) -> Callable[[Command], Command]:
    """The options of these fields, or of all where none is named, in the order of the table."""
    rows = fields_of(RequestFields)
    return together(*(_option(row) for row in rows if not names or row.name in names))


def _option(row: RequestField) -> Callable[[Command], Command]:
    flag = "--" + row.name.replace("_", "-")
    if row.kind is bool:
        return click.option(flag, is_flag=True, help=row.words)
    kind = click.Choice(get_args(row.kind)) if get_origin(row.kind) is Literal else row.kind
    return click.option(
        flag, type=kind, default=row.default, show_default=row.default != "", help=row.words
    )
