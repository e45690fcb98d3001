"""The suite that answers a command: the one at --endpoint, or else one in this process, of models
that are loaded for this call."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, TypeAlias

import click

from tandem.commands.calling import access_options, access_to, aggregator_of
from tandem.commands.loading_line import loading_line
from tandem.commands.model_notes import chosen_pair, show_notes
from tandem.commands.options import ENDPOINT, model_options, together
from tandem.core.errors import InvalidArgument
from tandem.generation.request import LONGEST_ANSWER_S
from tandem.net.access import ClientAccess
from tandem.net.process import run_loop
from tandem.suite.models import load_pair
from tandem.suite.suite_documents import SuiteDocuments

if TYPE_CHECKING:  # all services; not to call a running suite
    from tandem.runtime.tenant_memories import MemoryLimits

Asking: TypeAlias = Callable[[str, ClientAccess | None], Awaitable[None]]
"""Asks the aggregator at an address, with what it is shown."""

suite_options = together(
    click.option(
        "--endpoint",
        type=ENDPOINT,
        help="Address of a running suite: http://HOST:PORT or HOST:PORT. Default: start one for"
        " this call.",
    ),
    access_options,
    model_options,
    click.option(
        "--timeout", type=float, default=LONGEST_ANSWER_S, help="Maximum seconds for an answer."
    ),
)
"""The running suite to ask, or the models of one for this call."""


def check_timeout(options: dict[str, Any]) -> None:
    """Raise InvalidArgument for a time in which nothing can be answered."""
    if not options["timeout"] > 0:
        raise InvalidArgument("timeout", f"must be above 0, is {options['timeout']:g}")


def run_on_suite(
    asking: Asking,
    options: dict[str, Any],
    documents: SuiteDocuments | None = None,
    memory: MemoryLimits | None = None,
) -> None:
    """Run `asking` on the suite that the flags of `suite_options` describe. `documents` and
    `memory`: of a suite that is started for it. Raises InvalidArgument, or what loading raises."""
    if options["endpoint"] is not None:
        refuse_own_models(options)
        run_loop(asking(aggregator_of(options), access_to(options["endpoint"], options)))
        return
    if documents is not None:
        documents.check()  # before models are loaded
    draft, target = chosen_pair(options, documents=documents is not None)
    with loading_line(draft, target) as loaded:
        pair = load_pair(draft, target)

        async def embedded() -> None:
            from tandem.suite.embedded import EmbeddedSuite  # all services

            async with EmbeddedSuite(pair, documents=documents, memory=memory) as suite:
                loaded()
                show_notes(draft, target)
                for refused in suite.refused:
                    click.echo(refused.line(), err=True)
                await asking(suite.target, None)

        run_loop(embedded())


def refuse_own_models(options: dict[str, Any]) -> None:
    """Raise InvalidArgument naming a flag of models or documents that stands beside --endpoint."""
    suite_fields = ("draft", "target", "demo", "batch_invariant")
    for field in (*suite_fields, "device_documents", "cloud_documents", "index_folder"):
        if options.get(field):
            raise InvalidArgument(
                field, "the suite at --endpoint has its own; leave out one of the two"
            )
