"""Flags that several commands share, and the types of their values.

Must not import grpc or torch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from tandem.core.errors import InvalidArgument
from tandem.netem.link_model import LinkSettings, settings_from

Command = TypeVar("Command", bound=Callable[..., Any])

DTYPES = ("float32", "bfloat16", "float16")


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


def address_text(address: tuple[str, int]) -> str:
    """(host, port) as HOST:PORT."""
    host, port = address
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def model_options(command: Command) -> Command:
    """Both models, where and how precisely each computes, and the target's early exits."""
    exits = click.option(
        "--exits",
        default="auto",
        show_default=True,
        metavar="FOLDER",
        help="Early exits of the target, for presets that use them: a folder made by 'tandem"
        " train-exits', none, or auto: those beside the target, if they fit it.",
    )
    return _model_options(_model_options(exits(command), "target"), "draft")


def _model_options(command: Command, side: str) -> Command:
    options = (
        click.option(
            f"--{side}",
            metavar="FOLDER",
            help=f"{side.capitalize()} model: a folder, or a hub model as NAME@COMMIT. "
            "Default: of the demo pair.",
        ),
        click.option(
            f"--device-{side}",
            default="cpu",
            show_default=True,
            metavar="DEVICE",
            help="cpu, cuda or cuda:N.",
        ),
        click.option(
            f"--dtype-{side}",
            type=click.Choice(DTYPES),
            default="float32",
            show_default=True,
            help="Precision of weights and activations.",
        ),
    )
    for option in reversed(options):
        command = option(command)
    return command


def link_options(command: Command) -> Command:
    """The emulated link between drafter and verifier."""
    options = (
        click.option(
            "--rtt-ms", type=float, default=0.0, show_default=True, help="Round trip of the link."
        ),
        click.option(
            "--jitter-ms",
            type=float,
            default=0.0,
            show_default=True,
            help="Each message's delay varies by up to ± this, per direction.",
        ),
        click.option(
            "--mbps", type=float, help="Bandwidth per direction, 10^6 bit/s. Default: no limit."
        ),
    )
    for option in reversed(options):
        command = option(command)
    return command


def link_settings(rtt_ms: float, mbps: float | None, jitter_ms: float) -> LinkSettings:
    """One direction of the link that the flags describe; InvalidArgument names the flag."""
    try:
        return settings_from(rtt_ms / 1e3, mbps, jitter_ms / 1e3)
    except InvalidArgument as error:
        raise InvalidArgument(error.field.replace("_s", "_ms"), error.why) from error


def json_option(words: str) -> Callable[[Command], Command]:
    """`--json`, which says in `words` what is printed."""
    return click.option("--json", "as_json", is_flag=True, help=words)
