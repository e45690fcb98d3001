"""Options of commands that ask for an answer: one for each row of the table of request fields, and
the preset."""

from collections.abc import Callable
from typing import Literal, get_args, get_origin

import click
from click.shell_completion import CompletionItem

from tandem.commands.options import Command, together
from tandem.core.default_sampling import NAMES
from tandem.generation.request import CLOUD_ALONE_PRESET, DEFAULT_PRESET, RAG_PRESET
from tandem.generation.request_fields import RequestField, RequestFields, fields_of
from tandem.specdec.presets import PRESETS
from tandem.two_sided.interface import AGGREGATION_PRESETS


def _presets_like(
    ctx: click.Context, parameter: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    names = (*PRESETS, *AGGREGATION_PRESETS)
    return [CompletionItem(name) for name in names if name.startswith(incomplete)]


preset_option = click.option(
    "--preset",
    metavar="NAME",
    shell_complete=_presets_like,
    help=f"Decoding method: {DEFAULT_PRESET} (the one that is expected to be fastest),"
    f" {CLOUD_ALONE_PRESET} (the large model alone) or {RAG_PRESET} (answers from documents)."
    f" 'tandem presets' lists all. Default: {DEFAULT_PRESET}, with --rag {RAG_PRESET}.",
)
"""`--preset`, with the three methods that most people need."""


generation_config_option = click.option(
    "--generation-config",
    type=click.Choice(["auto", "none"]),
    default="auto",
    help="Where sampling settings come from that no option sets. auto: from the model's"
    " generation_config.json, if it has one; for chats the temperature is 0.7 if it has none. none:"
    " temperature 1 and no restriction.",
)
"""`--generation-config`, as vLLM has it."""


def request_options(*names: str) -> Callable[[Command], Command]:
    """Return the options of these fields, or of all if none is named, in the order of the table."""
    rows = fields_of(RequestFields)
    return together(*(_option(row) for row in rows if not names or row.name in names))


def _option(row: RequestField) -> Callable[[Command], Command]:
    flag = "--" + row.name.replace("_", "-")
    if row.kind is bool:
        return click.option(flag, is_flag=True, help=row.words)
    if row.name in NAMES:
        words = f"{row.words} Default: the model's own, otherwise {row.default:g}."
        return click.option(flag, type=row.kind, help=words)
    kind = click.Choice(get_args(row.kind)) if get_origin(row.kind) is Literal else row.kind
    return click.option(
        flag, type=kind, default=row.default, show_default=row.default != "", help=row.words
    )
