"""`tandem link`: a TCP proxy that is as slow, narrow or dead as asked."""

import json
from typing import Any

import click

from tandem.commands.options import (
    ADDRESS,
    address_text,
    json_option,
    link_options,
    link_shape,
)
from tandem.netem.link_control import run_link, serve_link
from tandem.netem.tcp_emulator import Address


@click.command()
@click.option(
    "--listen",
    type=ADDRESS,
    required=True,
    help="Address to listen on. Port 0: choose a free port.",
)
@click.option("--target", type=ADDRESS, required=True, help="Address to forward to.")
@click.option(
    "--also",
    type=(ADDRESS, ADDRESS),
    multiple=True,
    metavar="LISTEN TARGET",
    help="Forward a second port over the same link; repeatable.",
)
@link_options
@click.option("--seed", type=int, default=0, help="Seed of jitter and losses.")
@click.option(
    "--control",
    type=click.IntRange(0, 65535),
    help="Control port on 127.0.0.1. 0: choose a free port.",
)
@json_option("Print the addresses as one JSON object.")
def link(**options: Any) -> None:
    """Forward TCP connections over an emulated link, until Ctrl-C.

    The delay is half the round trip in each direction. With --control, the link can be cut,
    restored, reset and changed while it runs, by lines of JSON on that socket: {"op": "cut"},
    {"op": "restore"}, {"op": "drop"}, {"op": "stats"}, {"op": "set", "rtt_s": 0.03, "mbps_up": 5}.
    """
    shape = link_shape(options)

    def ready(address: Address, control_address: Address | None) -> None:
        places = {"listening": address_text(address), "target": address_text(options["target"])}
        if control_address is not None:
            places["control"] = address_text(control_address)
        if options["as_json"]:
            click.echo(json.dumps(places))
            return
        for what, where in places.items():
            click.echo(f"{what} {where}")

    serve_link(
        run_link(
            options["listen"],
            options["target"],
            shape=shape,
            control_port=options["control"],
            seed=options["seed"],
            further=options["also"],
            on_ready=ready,
        )
    )
