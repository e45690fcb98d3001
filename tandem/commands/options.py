"""Options that several commands share, and the types of their values."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import click

from tandem.backends.model_source import AUTO
from tandem.core.errors import InvalidArgument
from tandem.net.endpoint import Endpoint, parse_endpoint
from tandem.netem.link_model import INSTANT, MAX_LOSS, LinkShape, shape_from
from tandem.settings import TARGET_VARIABLE, THREADS_VARIABLE

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


class EndpointType(click.ParamType[Endpoint]):
    """HOST:PORT or a URL."""

    name = "endpoint"

    def get_metavar(self, param: click.Parameter, ctx: click.Context) -> str:
        return "ADDRESS"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> Endpoint:
        if isinstance(value, Endpoint):
            return value
        try:
            return parse_endpoint(str(value))
        except ValueError as error:
            self.fail(str(error), param, ctx)


class OptionalNumberType(click.ParamType[float | None]):
    """A number; an empty word is no value, as a variable of compose without one gives."""

    name = "float"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float | None:
        return None if value == "" else click.FLOAT.convert(value, param, ctx)


ADDRESS = AddressType()
ENDPOINT = EndpointType()
OPTIONAL_NUMBER = OptionalNumberType()
ANY_PATH = click.Path(path_type=Path)
FILE = click.Path(dir_okay=False, path_type=Path)
FOLDER = click.Path(file_okay=False, path_type=Path)


def address_text(address: tuple[str, int]) -> str:
    """Return (host, port) as HOST:PORT."""
    host, port = address
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def together(*options: Callable[[Command], Command]) -> Callable[[Command], Command]:
    """Combine several options into one decorator, in their order."""

    def decorate(command: Command) -> Command:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


def owner_option(words: str) -> Callable[[Command], Command]:
    """Return the option `--owner NAME`, which is about documents; `words` are its help."""
    return click.option("--owner", default="", metavar="NAME", help=words)


_DEFAULTS = {
    "draft": "the target's own, or lookup in the text",
    "target": f"{TARGET_VARIABLE}, or the best chat model here",
}
_PLACES = {
    "draft": "or NAME@COMMIT of the hub",
    "target": "NAME@COMMIT of the hub, or the address of a vLLM or SGLang server",
}
_DTYPES = {"draft": "int8 if it was made to draft, else float32", "target": "float32"}


def side_options(side: str, default: str) -> Callable[[Command], Command]:
    """Return the options of one side's model; `default` says which it is where none is named."""
    return together(
        click.option(
            f"--{side}",
            metavar="MODEL",
            help=f"{side.capitalize()} model: a folder, a GGUF file, a name of 'tandem models',"
            f" {_PLACES[side]}. Default: {default}.",
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
            help=f"Data type; int8 and int4 are of the weights only. Default: {_DTYPES[side]}.",
        ),
    )


model_options = together(
    side_options("draft", _DEFAULTS["draft"]),
    side_options("target", _DEFAULTS["target"]),
    click.option(
        "--demo",
        is_flag=True,
        help="Use the included demo pair: a toy that writes nonsense, quickly.",
    ),
    click.option(
        "--exits",
        default="auto",
        metavar="FOLDER",
        help="Early exits of the target model, for presets that use them: a folder"
        " made by 'tandem train-exits', none, or auto: the folder beside the"
        " target, if it fits.",
    ),
    click.option(
        "--threads",
        type=click.IntRange(0, 256),
        default=0,
        envvar=THREADS_VARIABLE,
        metavar="N",
        help="CPU threads of each model. 0, the default: GGUF files use all cores, or fewer while"
        " others need them; PyTorch uses half of them.",
    ),
    click.option(
        "--batch-invariant",
        is_flag=True,
        help="With a GGUF target on llama.cpp: compute each token alone. Texts are"
        " then the target's bit for bit; a prompt takes about twice as long.",
    ),
)
"""Both models, where and how precisely each computes, and the target's early exits."""

direction_options = together(
    click.option(
        "--mbps-up", type=OPTIONAL_NUMBER, help="Bandwidth from edge to cloud. Default: --mbps."
    ),
    click.option(
        "--mbps-down", type=OPTIONAL_NUMBER, help="Bandwidth from cloud to edge. Default: --mbps."
    ),
    click.option(
        "--delay-up-ms", type=float, help="Delay from edge to cloud. Default: half of --rtt-ms."
    ),
    click.option(
        "--delay-down-ms", type=float, help="Delay from cloud to edge. Default: half of --rtt-ms."
    ),
    click.option(
        "--loss",
        type=float,
        default=0.0,
        metavar="PERCENT",
        help="Share of messages that are lost on the way and sent again by TCP, in percent.",
    ),
    click.option(
        "--loss-burst",
        type=float,
        default=1.0,
        metavar="MESSAGES",
        help="With --loss: messages lost in a row, in the mean.",
    ),
)
"""What an emulated link does in one direction only, and what it loses."""

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
    direction_options,
)
"""The emulated link between drafter and verifier."""


def link_shape(options: Mapping[str, Any]) -> LinkShape:
    """Return the link that the flags of `link_options` describe; InvalidArgument names the flag."""
    up_ms = options["delay_up_ms"]
    down_ms = options["delay_down_ms"]
    try:
        return shape_from(
            options["rtt_ms"] / 1e3,
            options["mbps"],
            options["jitter_ms"] / 1e3,
            mbps_up=options["mbps_up"],
            mbps_down=options["mbps_down"],
            delay_up_s=None if up_ms is None else up_ms / 1e3,
            delay_down_s=None if down_ms is None else down_ms / 1e3,
            loss=options["loss"] / 100,
            loss_burst=options["loss_burst"],
        )
    except InvalidArgument as error:
        if error.field == "loss":
            why = f"must be 0 to {MAX_LOSS * 100:g} percent, is {options['loss']:g}"
            raise InvalidArgument("loss", why) from error
        flag = _flag_of(error.field)
        if flag in options and flag.endswith("_ms"):  # the link's own words are of seconds
            why = f"must be finite and not negative, is {options[flag]:g} ms"
            raise InvalidArgument(flag, why) from error
        raise InvalidArgument(flag, error.why) from error


def emulates_link(options: Mapping[str, Any]) -> bool:
    """Return whether any of the flags asks for a link that is not instant."""
    return link_shape(options) != INSTANT


def _flag_of(field: str) -> str:
    return f"{field[:-2]}_ms" if field.endswith("_s") else field


no_memory_option = click.option(
    "--no-memory",
    is_flag=True,
    help="Do not draft from earlier texts, and do not remember these.",
)
"""`--no-memory`, where no request field has it."""


def json_option(words: str) -> Callable[[Command], Command]:
    """Return the option `--json`; `words` say what is printed."""
    return click.option("--json", "as_json", is_flag=True, help=words)
