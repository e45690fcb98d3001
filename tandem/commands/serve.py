"""`tandem serve`: one service in this process.

Must not import grpc or torch.
"""

from __future__ import annotations

import click

from tandem.commands.supervised import run_module

SERVICES = ("verifier", "drafter", "aggregator", "retriever")


@click.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@click.argument("service", type=click.Choice(SERVICES))
@click.argument("flags", nargs=-1, type=click.UNPROCESSED)
def serve(service: str, flags: tuple[str, ...]) -> None:
    """Run one service until a signal; it then drains and exits.

    FLAGS are the service's own: see 'tandem serve SERVICE --help'. The same as 'python -m
    services.SERVICE FLAGS'. Writes 'listening HOST:PORT' to standard output once it serves.
    """
    run_module(f"services.{service}", list(flags))
