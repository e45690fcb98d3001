"""`tandem generate`: one answer, from an embedded suite or from a running one."""

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from tandem.commands.answer_view import AnswerView
from tandem.commands.ask_suite import answer_object, ask, figures
from tandem.commands.calling import access_options, access_to
from tandem.commands.model_notes import show_notes
from tandem.commands.options import ADDRESS, address_text, json_option, model_options, together
from tandem.commands.processor_options import biases_of, grammar_of, processor_options
from tandem.commands.rag_options import document_options, documents_of
from tandem.commands.request_options import request_options
from tandem.core.errors import InvalidArgument
from tandem.core.prompt import MAX_IMAGES_BYTES, Prompt, Turn
from tandem.core.tokens import check_token_ids
from tandem.generation.client import Generated
from tandem.generation.request import DEFAULT_PRESET, RAG_PRESET, GenerationRequest
from tandem.generation.request_fields import given_fields
from tandem.net.access import ClientAccess
from tandem.net.process import run_loop
from tandem.specdec.overrides import Override, parse_overrides
from tandem.specdec.presets import PRESETS
from tandem.suite.models import ModelPair, choose_pair, load_pair
from tandem.suite.suite_documents import SuiteDocuments
from tandem.telemetry.logging import configure_logging
from tandem.two_sided.interface import AGGREGATION_PRESETS

_OVERRIDES = {
    "expansion": (
        str,
        "expansion",
        "Draft token trees with this many candidates per layer, for example 3,2,1.",
    ),
    "draft_length": (
        int,
        "draft_length",
        "Draft tokens per round. With the preset auto: the maximum.",
    ),
    "objective": (
        *(str, "objective"),
        "Objective of the preset auto: latency, cost, energy, a number from 1"
        " (latency) to 0 (cost), or weights such as latency=2,cost=1.",
    ),
    "payload_top": (int, "payload_top", "Entries of a sparse payload, for presets that send one."),
    "payload_tail_draws": (int, "payload_tail_draws", "Tail draws of a sparse payload."),
    "draft_top_k": (int, "truncation.top_k", "Draft from this many of the most likely tokens."),
    "draft_top_p": (
        float,
        "truncation.top_p",
        "Draft from the most likely tokens with this total probability.",
    ),
}
"""Flags for choices of the preset: type, the choice by its name, words."""


override_options = together(
    *(
        click.option("--" + name.replace("_", "-"), type=kind, help=words)
        for name, (kind, _, words) in _OVERRIDES.items()
    ),
    click.option(
        "--set",
        "overrides",
        multiple=True,
        metavar="FIELD=VALUE",
        help="Change any single choice of the preset, as window=8 or rejection_payload=top_k; "
        "repeatable.",
    ),
)
"""Options that change single choices of the preset."""


def overrides_of(options: dict[str, Any]) -> tuple[Override, ...]:
    """Return the changes of the preset by flags, those of `--set` last."""
    given = [
        Override(choice, options[name])
        for name, (_, choice, _) in _OVERRIDES.items()
        if options[name] is not None
    ]
    return (*given, *parse_overrides(options["overrides"]))


@click.command()
@click.option("--prompt", metavar="TEXT", help="Text to continue.")
@click.option("--prompt-ids", metavar="IDS", help='Token ids to continue, as "1,2,3".')
@click.option(
    "--chat", metavar="TEXT", help="A user message, formatted with the model's chat template."
)
@click.option(
    "--image",
    "--images",
    "images",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    multiple=True,
    help="PNG, JPEG or WebP image, for vision models; repeatable.",
)
@click.option(
    "--preset",
    metavar="NAME",
    help=f"Decoding method: {', '.join(PRESETS)}; with documents:"
    f" {', '.join(AGGREGATION_PRESETS)}. Default: {DEFAULT_PRESET}, with --rag {RAG_PRESET}.",
)
@click.option("--rag", is_flag=True, help="Answer from documents on the device and in the cloud.")
@document_options
@request_options()
@click.option("--stop", multiple=True, metavar="TEXT", help="Stop before this text; repeatable.")
@click.option(
    "--stop-token-id",
    "stop_token_ids",
    type=int,
    multiple=True,
    help="Stop after this token; repeatable.",
)
@processor_options
@override_options
@click.option(
    "--endpoint",
    type=ADDRESS,
    help="Address of a running aggregator. Default: start an embedded suite for this call.",
)
@access_options
@model_options
@click.option("--timeout", type=float, default=600.0, help="Maximum seconds for the request.")
@click.option("--verbose", is_flag=True, help="Write the services' log to standard error.")
@click.option(
    "--explain",
    is_flag=True,
    help="Print the estimates by which the preset auto chose its schedule.",
)
@json_option("Print only one JSON object with the text and the statistics.")
def generate(**options: Any) -> None:
    """Answer a prompt.

    Without --endpoint the two models (--draft, --target; the demo pair if not given) are loaded
    into this process and talk over loopback gRPC, for this call only. The text goes to standard
    output, figures to standard error; with --json one object goes to standard output.

    With --rag, or a preset of that kind, the answer is drawn from documents of both sides. Without
    --endpoint these are the demo's, unless --device-documents or --cloud-documents name others.
    """
    request = build_request(options)
    if not options["timeout"] > 0:
        raise InvalidArgument("timeout", f"must be above 0, is {options['timeout']:g}")
    configure_logging("info" if options["verbose"] else "critical")
    if options["endpoint"] is not None:
        _refuse_own_suite(options)
        access = access_to(options["endpoint"], options)
        run_loop(_show(address_text(options["endpoint"]), request, options, access))
        return
    documents = documents_of(options | {"rag": request.from_two_sides})
    if documents is not None:
        documents.check()  # before models are loaded
    draft, target = choose_pair(options)
    pair = load_pair(draft, target)
    show_notes(draft, target)
    run_loop(_embedded(pair, request, documents, options))


def build_request(options: dict[str, Any]) -> GenerationRequest:
    """The request that the flags describe; InvalidArgument names the flag."""
    request = GenerationRequest(_prompt(options)).with_fields(
        **given_fields(options),
        preset=options["preset"] or (RAG_PRESET if options["rag"] else DEFAULT_PRESET),
        overrides=overrides_of(options),
        stop=options["stop"],
        stop_token_ids=options["stop_token_ids"],
        logit_bias=biases_of(options),
        banned_token_ids=options["banned_token_ids"],
        allowed_token_ids=options["allowed_token_ids"],
        grammar=grammar_of(options),
        images=tuple(_read_image(path) for path in options["images"]),
    )
    # What no service would take is refused before a model is loaded.
    request.validate(rag=options["rag"])
    return request


def _prompt(options: dict[str, Any]) -> Prompt:
    given = [name for name in ("prompt", "prompt_ids", "chat") if options[name] is not None]
    if len(given) != 1:
        raise InvalidArgument("prompt", "give exactly one of --prompt, --prompt-ids and --chat")
    if options["prompt"] is not None:
        return str(options["prompt"])
    if options["chat"] is not None:
        return (Turn("user", options["chat"]),)
    try:
        token_ids = tuple(int(word) for word in options["prompt_ids"].split(",") if word.strip())
    except ValueError:
        raise InvalidArgument("prompt_ids", "must be whole numbers, for example 1,2,3") from None
    if not token_ids:
        raise InvalidArgument("prompt_ids", "is empty")
    check_token_ids(token_ids, 2**32, "prompt_ids")
    return token_ids


def _read_image(path: Path) -> bytes:
    """No more of a file than shows that it is too large."""
    try:
        with path.open("rb") as file:
            return file.read(MAX_IMAGES_BYTES + 1)
    except OSError as error:
        raise InvalidArgument("images", f"{path} cannot be read: {error.strerror}") from error


def _refuse_own_suite(options: dict[str, Any]) -> None:
    for field in ("draft", "target", "device_documents", "cloud_documents", "index_folder"):
        if options[field]:
            raise InvalidArgument(
                field, "the suite at --endpoint has its own; leave out one of the two"
            )


async def _embedded(
    pair: ModelPair,
    request: GenerationRequest,
    documents: SuiteDocuments | None,
    options: dict[str, Any],
) -> None:
    from tandem.suite.embedded import EmbeddedSuite  # all services; not to call a running suite

    async with EmbeddedSuite(pair, documents=documents) as suite:
        await _show(suite.target, request, options)


async def _show(
    endpoint: str,
    request: GenerationRequest,
    options: dict[str, Any],
    access: ClientAccess | None = None,
) -> None:
    timeout_s = options["timeout"]
    if options["as_json"]:
        result = await ask(endpoint, request, timeout_s, access=access)
        click.echo(json.dumps(answer_object(request, result)))
    else:
        result = await show(endpoint, request, timeout_s, access=access)
        click.echo(figures(result, options["explain"]), err=True)


async def show(
    endpoint: str,
    request: GenerationRequest,
    timeout_s: float,
    lead: str = "",
    access: ClientAccess | None = None,
) -> Generated:
    """Ask, with the text on standard output as it comes, after `lead`, and a status line below. On
    a terminal each token has the colour of who made it."""
    with AnswerView(sys.stdout, sys.stderr, lead) as view:
        shown = replace(request, token_texts=view.wants_token_texts)
        return await ask(
            endpoint=endpoint,
            request=shown,
            timeout_s=timeout_s,
            on_growth=view.update,
            access=access,
        )
