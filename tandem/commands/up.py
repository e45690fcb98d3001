"""`tandem up`: all services as processes on this machine, until Ctrl-C."""

import asyncio
import json
import os
import signal
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from typing import Any

import click

from tandem.backends.model_source import AUTO, ModelChoice
from tandem.commands.demonstration import (
    DemoQuestion,
    Part,
    demonstrate,
    parts_of,
)
from tandem.commands.group import INTERRUPTED
from tandem.commands.help_groups import GroupedCommand
from tandem.commands.loading_line import loading_line
from tandem.commands.model_notes import chosen_pair, context_note, show_notes
from tandem.commands.options import (
    DTYPES,
    address_text,
    emulates_link,
    json_option,
    link_options,
    link_shape,
    model_options,
    no_memory_option,
)
from tandem.commands.rag_options import document_options, documents_of
from tandem.commands.request_options import generation_config_option
from tandem.core.errors import TandemError
from tandem.net.lifecycle import port_fault
from tandem.net.process import run_loop
from tandem.services.aggregator.config import DEFAULT_HTTP_PORT, DEFAULT_PORT
from tandem.suite.local_processes import HOST, LocalSuite, LocalSuiteSettings, cancelled_after
from tandem.suite.models import choose_model
from tandem.suite.requirements import require_packages
from tandem.suite.suite_documents import SuiteDocuments
from tandem.telemetry.logging import configure_logging


@click.command(cls=GroupedCommand)
@model_options
@generation_config_option
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    help=f"gRPC port. 0: choose a free port. Default: {DEFAULT_PORT}; with --try a free port.",
)
@click.option(
    "--http-port",
    type=click.IntRange(0, 65535),
    help="Port of the OpenAI-compatible HTTP API. 0: choose a free port."
    f" Default: {DEFAULT_HTTP_PORT}; with --try or --port 0 a free port.",
)
@click.option(
    "--metrics-port",
    type=click.IntRange(0, 65530),
    default=0,
    help="Port of the aggregator's metrics; the other services use the next ports. 0: disabled.",
)
@link_options
@click.option("--link-seed", type=int, default=0, help="Seed of the link's jitter.")
@click.option(
    "--verifiers",
    type=click.IntRange(1, 8),
    default=1,
    help="Number of verifiers. Requests go to the first one that is healthy.",
)
@click.option(
    "--cloud-draft",
    metavar="MODEL",
    help="Draft model of the verifiers themselves, for the presets cloud-draft and auto: as for"
    " --draft.",
)
@click.option(
    "--engine-cloud-draft",
    default=AUTO,
    metavar="NAME",
    help="Engine that runs the model of --cloud-draft.",
)
@click.option(
    "--device-cloud-draft",
    metavar="DEVICE",
    help="Device of the model of --cloud-draft. Default: that of the target.",
)
@click.option(
    "--dtype-cloud-draft",
    type=click.Choice(DTYPES),
    help="Data type of the model of --cloud-draft. Default: that of the target.",
)
@click.option("--pin", is_flag=True, help="Run the two sides on different CPU cores (Linux only).")
@click.option(
    "--drain-s",
    type=click.FloatRange(0, 3600),
    default=10.0,
    help="Seconds to let open requests finish at shutdown.",
)
@click.option(
    "--rag", is_flag=True, help="Start a retriever on each side, with the demo documents."
)
@document_options
@no_memory_option
@click.option(
    "--try",
    is_flag=True,
    help="Ask a few questions, the last ones about documents, print the answers with"
    " statistics, and stop.",
)
@click.option(
    "--verbose",
    is_flag=True,
    help="Write the services' logs to standard error, and with --try all figures.",
)
@json_option("Print one JSON object: addresses and process ids, or with --try the answers.")
def up(**options: Any) -> int:
    """Start verifier, drafter and aggregator, print their addresses, and run until Ctrl-C.

    --rag also starts a retriever on each side, filled before the first request, and an aggregator
    in the cloud: presets such as dragon-coupled then answer from the documents of both sides.

    With --rtt-ms, --mbps or other flags of the link, drafter and verifier talk over an
    emulated link, which can be cut and changed meanwhile (see 'tandem link --help'). Ctrl-C lets
    open requests finish; a second one does not. A service that ends by itself stops the others,
    with exit code 1.

    The drafter remembers texts until it ends, to draft from them; --no-memory turns that off.
    """
    shape = link_shape(options) if emulates_link(options) else None
    default_port = 0 if options["try"] else DEFAULT_PORT
    draft, target = chosen_pair(options, documents=options["rag"] and not options["try"])
    require_packages(draft, target)
    port = default_port if options["port"] is None else options["port"]
    if (http_port := options["http_port"]) is None:
        http_port = DEFAULT_HTTP_PORT if port else 0
    settings = LocalSuiteSettings(
        draft=draft,
        target=target,
        port=port,
        http_port=http_port,
        metrics_port=options["metrics_port"],
        link=shape,
        link_seed=options["link_seed"],
        pin=options["pin"],
        verbose=options["verbose"],
        drain_s=options["drain_s"],
        documents=_documents(options),
        verifiers=options["verifiers"],
        generation_config=options["generation_config"],
        remembers=not (options["no_memory"] or options["try"]),
        cloud_draft=_cloud_draft(options),
    )
    configure_logging("critical")
    check_ports(settings)
    if settings.documents is not None:
        for passed_over in settings.documents.passed_over():
            click.echo(passed_over.line(), err=True)
    parts = parts_of(settings) if options["try"] else (Part(settings, ()),)
    exit_code: int = run_loop(run_parts(parts, options["as_json"]))
    return exit_code


def check_ports(settings: LocalSuiteSettings) -> None:
    """Refuse ports that are taken, before any model is loaded. Raises TandemError."""
    for flag in ("port", "http_port", "metrics_port"):
        port = getattr(settings, flag)
        if port and (why := port_fault(HOST, port)):
            other = f"choose another by --{flag.replace('_', '-')}, 0 for any"
            raise TandemError(f"{why}, perhaps a suite that still runs; stop it, or {other}")


def _cloud_draft(options: dict[str, Any]) -> ModelChoice | None:
    """Return the draft model for the verifiers themselves; None if they are to have none."""
    if options["cloud_draft"] is None:
        return None
    return choose_model(
        options["cloud_draft"],
        device=options["device_cloud_draft"] or options["device_target"],
        dtype=options["dtype_cloud_draft"] or options["dtype_target"],
        engine=options["engine_cloud_draft"],
    )


def _documents(options: dict[str, Any]) -> SuiteDocuments | None:
    """Return the suite's documents, if it is to have any; the questions of --try need some."""
    return documents_of(options | {"rag": True} if options["try"] else options)


async def run_parts(parts: Sequence[Part], as_json: bool) -> int:
    """Run one suite after the other, and return the exit code. Interrupting a suite that serves is
    no failure."""
    suites = [LocalSuite(part.settings) for part in parts]
    serving = False
    answers: dict[str, Any] = {}

    def kill() -> None:
        for suite in suites:
            suite.kill()

    _cancel_on_signal(kill)
    try:
        for part, suite in zip(parts, suites, strict=True):
            async with AsyncExitStack() as stack:
                with loading_line(part.settings.draft, part.settings.target):
                    await stack.enter_async_context(suite)
                if part.questions:
                    answers |= await _asked(suite, part.questions, as_json)
                    continue
                serving = True
                _announce(suite, as_json)
                await suite.died()
    except asyncio.CancelledError:
        if not serving:
            click.echo("interrupted", err=True)
        return 0 if serving else INTERRUPTED
    if as_json:
        click.echo(json.dumps(answers))
    return 0


def _cancel_on_signal(kill: Callable[[], None]) -> None:
    """Cancel the running task at the first signal; at the second, call `kill` and exit."""
    task = asyncio.current_task()
    assert task is not None
    signalled = False

    def on_signal() -> None:
        nonlocal signalled
        if signalled:
            kill()
            os._exit(INTERRUPTED)
        signalled = True
        task.cancel()

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        asyncio.get_running_loop().add_signal_handler(number, on_signal)


async def _asked(
    suite: LocalSuite, questions: Sequence[DemoQuestion], as_json: bool
) -> dict[str, Any]:
    """Ask the questions and return the answers as one object; without `as_json` they are shown too.
    Fails when a service dies."""
    asking = asyncio.create_task(
        demonstrate(suite.endpoint, questions, shown=not as_json, verbose=suite.settings.verbose)
    )
    watching = asyncio.create_task(suite.died())
    async with cancelled_after((asking, watching)):
        await asyncio.wait((asking, watching), return_when=asyncio.FIRST_COMPLETED)
        try:
            if not asking.done():
                watching.result()
            return asking.result()
        except TandemError as error:
            raise TandemError(f"{error}; logs: {suite.logs}") from error


def _announce(suite: LocalSuite, as_json: bool) -> None:
    """Print the suite's addresses, and how to ask it."""
    for refused in suite.refused:
        click.echo(refused.line(), err=True)
    show_notes(suite.settings.draft, suite.settings.target)
    places = {name: child.address for name, child in suite.children.items()}
    if suite.control is not None and suite.emulator is not None:
        places["link"] = address_text(suite.emulator.address)
        places["control"] = address_text(suite.control.address)
    if as_json:
        pids = {name: child.pid for name, child in suite.children.items()}
        logs = None if suite.logs is None else str(suite.logs)
        addresses = {"endpoint": suite.endpoint, "http": suite.http, **places, "pids": pids}
        click.echo(json.dumps({**addresses, "logs": logs, "documents": suite.documents}))
        return
    click.echo(f"serving at {suite.http}")
    for name, place in places.items():
        click.echo(f"  {name:16} {place}")
    if suite.described is not None:
        draft = suite.described.draft
        target = suite.described.target
        if note := context_note(draft.context_length, target.context_length):
            click.echo(f"note: {note}")
    if suite.documents:
        held = ", ".join(f"{count} at the {side}" for side, count in suite.documents.items())
        click.echo(f"documents: {held}")
    click.echo(f"keeps: {kept_words(suite.settings.documents)}")
    click.echo(f"OpenAI-compatible API at {suite.http}/v1")
    click.echo(f"in a browser: {suite.http}")
    click.echo(f"chat: tandem chat --endpoint {suite.http}")
    click.echo(f'ask: tandem generate --endpoint {suite.http} "Why is the sky blue?"')
    click.echo("stop: Ctrl-C")


def kept_words(documents: SuiteDocuments | None) -> str:
    """Return what the services keep of texts and documents, where, and for how long."""
    texts = "prompts and answers in memory until Ctrl-C"
    if documents is None:
        return f"{texts}; nothing on disk"
    if documents.folder is None:
        return f"{texts}; the documents' texts in temporary files until then"
    return f"{texts}; the documents' texts, with index, keys and values, in {documents.folder}"
