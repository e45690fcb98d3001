"""Options that several commands share, and the types of their values."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from tandem.backends.model_source import AUTO
from tandem.core.errors import InvalidArgument
from tandem.netem.link_model import LinkSettings, settings_from

Command = TypeVar("Command", bound=Callable[..., Any])

DTYPES = ("float32", "bfloat16", "float16", "int8", "int4")


class AddressType(click.ParamType[tuple[str, int]]):
    """HOST:PORT as (host, port); an IPv6 host stands in brackets."""

    name = "address"

    def get_metavar(self, param: click.Parameter, ctx: click.Context) -> str:
        return "HOST:PORT"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, int]:
        if isinstance(value, tuple):
            return value
        host, colon, port = str(value).rpartition(":")
        if not (colon and host and port.isascii() and port.isdigit() and int(port) <= 65535):
            self.fail(f"'{value}' is not HOST:PORT", param, ctx)
        return host.strip("[]"), int(port)


ADDRESS = AddressType()
ANY_PATH = click.Path(path_type=Path)
FILE = click.Path(dir_okay=False, path_type=Path)
FOLDER = click.Path(file_okay=False, path_type=Path)


def address_text(address: tuple[str, int]) -> str:
    """(host, port) as HOST:PORT."""
    host, port = address
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def together(*options: Callable[[Command], Command]) -> Callable[[Command], Command]:
    """Several options as one decorator, in their order."""

    def decorate(command: Command) -> Command:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


def owner_option(words: str) -> Callable[[Command], Command]:
    """`--owner NAME`, of documents."""
    return click.option("--owner", default="", metavar="NAME", help=words)


def _model_options(side: str) -> Callable[[Command], Command]:
    return together(
        click.option(
            f"--{side}",
            metavar="MODEL",
            help=f"{side.capitalize()} model: a folder, a GGUF file, a name that 'tandem models'"
            " lists, or a hub model as NAME@COMMIT. Default: the demo model"
            + (", or lookup in the text if --target is given." if side == "draft" else "."),
        ),
        click.option(
            f"--engine-{side}", default=AUTO, metavar="NAME", help="Engine that runs the model."
        ),
        click.option(
            f"--device-{side}", default="cpu", metavar="DEVICE", help="Device: cpu, cuda or cuda:N."
        ),
        click.option(
            f"--dtype-{side}",
            type=click.Choice(DTYPES),
            default="float32",
            help="Data type of weights and activations. int8 and int4 quantize the weights only.",
        ),
    )


model_options = together(
    _model_options("draft"),
    _model_options("target"),
    click.option(
        "--exits",
        default="auto",
        metavar="FOLDER",
        help="Early exits of the target model, for presets that use them: a folder"
        " made by 'tandem train-exits', none, or auto: the folder beside the"
        " target, if it fits.",
    ),
)
"""Both models, where and how precisely each computes, and the target's early exits."""

link_options = together(
    click.option("--rtt-ms", type=float, default=0.0, help="Round-trip time of the emulated link."),
    click.option(
        "--jitter-ms",
        type=float,
        default=0.0,
        help="Maximum variation of a message's delay, in either direction.",
    ),
    click.option(
        "--mbps", type=float, help="Bandwidth per direction, in Mbit/s. Default: unlimited."
    ),
)
"""The emulated link between drafter and verifier."""


def link_settings(rtt_ms: float, mbps: float | None, jitter_ms: float) -> LinkSettings:
    """Return one direction of the link that the flags describe; InvalidArgument names the flag."""
    try:
        return settings_from(rtt_ms / 1e3, mbps, jitter_ms / 1e3)
    except InvalidArgument as error:
        raise InvalidArgument(error.field.replace("_s", "_ms"), error.why) from error


def json_option(words: str) -> Callable[[Command], Command]:
    """`--json`; `words` say what is printed."""
    return click.option("--json", "as_json", is_flag=True, help=words)
