"""`tandem link`: a TCP proxy that is as slow, narrow or dead as asked.

Must not import grpc or torch.
"""

from __future__ import annotations

import json

import click

from tandem.commands.options import ADDRESS, address_text, json_option, link_options, link_settings
from tandem.netem.link_control import serve_link

Address = tuple[str, int]


@click.command()
@click.option("--listen", type=ADDRESS, required=True, help="Where to accept; port 0: a free one.")
@click.option("--target", type=ADDRESS, required=True, help="Where to forward to.")
@click.option(
    "--also",
    type=(ADDRESS, ADDRESS),
    multiple=True,
    metavar="LISTEN TARGET",
    help="Forward a second port over the same link; repeatable.",
)
@link_options
@click.option("--seed", type=int, default=0, show_default=True, help="Of the jitter.")
@click.option(
    "--control",
    type=click.IntRange(0, 65535),
    help="Port on 127.0.0.1 for steering; 0: a free one.",
)
@json_option("Print the addresses as one JSON object.")
def link(
    listen: Address,
    target: Address,
    also: tuple[tuple[Address, Address], ...],
    rtt_ms: float,
    jitter_ms: float,
    mbps: float | None,
    seed: int,
    control: int | None,
    as_json: bool,
) -> None:
    """Forward TCP connections over an emulated link, until Ctrl-C.

    The delay is half the round trip in each direction. With --control, the link can be cut,
    restored, reset and changed while it runs, by lines of JSON on that socket: {"op": "cut"},
    {"op": "restore"}, {"op": "drop"}, {"op": "stats"}, {"op": "set", "rtt_s": 0.03, "mbps": 20}.
    """
    link_settings(rtt_ms, mbps, jitter_ms)

    def ready(address: Address, control_address: Address | None) -> None:
        places = {"listening": address_text(address), "target": address_text(target)}
        if control_address is not None:
            places["control"] = address_text(control_address)
        if as_json:
            click.echo(json.dumps(places))
            return
        for what, where in places.items():
            click.echo(f"{what} {where}")

    serve_link(
        listen,
        target,
        rtt_s=rtt_ms / 1e3,
        jitter_s=jitter_ms / 1e3,
        mbps=mbps,
        control_port=control,
        seed=seed,
        further=also,
        on_ready=ready,
    )
