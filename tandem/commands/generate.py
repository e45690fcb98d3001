"""`tandem generate`: one answer, from an embedded suite or from a running one."""

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from tandem.commands.answer_view import AnswerView
from tandem.commands.ask_suite import answer_object, ask, figures
from tandem.commands.help_groups import GroupedCommand
from tandem.commands.open_sampling import open_sampling
from tandem.commands.options import json_option, together
from tandem.commands.prompt_input import prompt_of
from tandem.commands.rag_options import document_options, documents_of
from tandem.commands.request_options import (
    generation_config_option,
    preset_option,
    request_options,
)
from tandem.commands.suite_choice import check_timeout, run_on_suite, suite_options
from tandem.core.errors import InvalidArgument
from tandem.core.processors import Grammar, GrammarKind
from tandem.core.prompt import MAX_IMAGES_BYTES, Turn
from tandem.generation.client import Generated
from tandem.generation.request import (
    DEFAULT_PRESET,
    RAG_PRESET,
    GenerationRequest,
)
from tandem.generation.request_fields import given_fields
from tandem.net.access import ClientAccess
from tandem.runtime.tenant_memories import MemoryLimits
from tandem.telemetry.logging import configure_logging

_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
_GRAMMARS = {
    "json_schema": GrammarKind.JSON_SCHEMA,
    "regex": GrammarKind.REGEX,
    "grammar": GrammarKind.LARK,
}

_processor_options = together(
    click.option(
        "--logit-bias",
        multiple=True,
        metavar="ID=BIAS",
        help="Value to add to a token's logit; repeatable.",
    ),
    click.option(
        "--ban-token",
        "banned_token_ids",
        type=int,
        multiple=True,
        help="Never generate this token; repeatable.",
    ),
    click.option(
        "--allow-token",
        "allowed_token_ids",
        type=int,
        multiple=True,
        help="Generate only the tokens given by this option; repeatable.",
    ),
    click.option(
        "--json-schema", type=_FILE, help="File with a JSON schema that the answer must match."
    ),
    click.option(
        "--regex", metavar="REGEX", help="Regular expression that the whole answer must match."
    ),
    click.option(
        "--grammar",
        type=_FILE,
        help="File with a grammar in Lark syntax that the answer must match.",
    ),
)
"""What is applied to the logits before a token is drawn."""

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


def overrides_of(options: dict[str, Any]) -> tuple[str, ...]:
    """Return the changes of the preset by flags, those of `--set` last."""
    given = [
        f"{choice}={options[name]}"
        for name, (_, choice, _) in _OVERRIDES.items()
        if options[name] is not None
    ]
    return (*given, *options["overrides"])


@click.command(cls=GroupedCommand)
@click.argument("text", required=False)
@click.option("--prompt", metavar="TEXT", help="Question or text, as the argument TEXT.")
@click.option("--prompt-ids", metavar="IDS", help='Token ids to continue, as "1,2,3".')
@click.option("--raw", is_flag=True, help="Continue the text, in the place of answering it.")
@click.option(
    "--image",
    "--images",
    "images",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    multiple=True,
    help="PNG, JPEG or WebP image, for vision models; repeatable.",
)
@preset_option
@click.option("--rag", is_flag=True, help="Answer from documents on the device and in the cloud.")
@document_options
@request_options()
@generation_config_option
@click.option("--stop", multiple=True, metavar="TEXT", help="Stop before this text; repeatable.")
@click.option(
    "--stop-token-id",
    "stop_token_ids",
    type=int,
    multiple=True,
    help="Stop after this token; repeatable.",
)
@_processor_options
@override_options
@suite_options
@click.option("--verbose", is_flag=True, help="Print all figures, and the sampling settings.")
@click.option("--logs", is_flag=True, help="Write the services' log to standard error.")
@click.option(
    "--explain",
    is_flag=True,
    help="Print the estimates by which the preset auto chose its schedule.",
)
@json_option("Print only one JSON object with the text and the statistics.")
def generate(**options: Any) -> None:
    """Answer a question: TEXT, standard input (TEXT is -, or left out), or both.

    Piped input is put before TEXT, separated by an empty line; beside --prompt it is read only if
    TEXT is -. A model without a chat template continues the text, as --raw.

    Without --endpoint the two models (by default the best chat model on this machine) are loaded
    into this process for this call. The text goes to standard output, figures to standard error.

    With --rag the answer is drawn from documents of both sides: without --endpoint the demo's,
    unless --device-documents or --cloud-documents name others.
    """
    request = build_request(options)
    check_timeout(options)
    configure_logging("info" if options["logs"] else "critical")
    documents = None
    if options["endpoint"] is None:
        documents = documents_of(options | {"rag": request.from_two_sides})
    memory = None if options["no_memory"] else MemoryLimits()
    run_on_suite(
        lambda endpoint, access: _show(endpoint, request, options, access),
        options,
        documents=documents,
        memory=memory,
    )


def build_request(options: dict[str, Any]) -> GenerationRequest:
    """Build the request that the flags describe. Raises InvalidArgument naming the flag."""
    request = GenerationRequest(prompt_of(options)).with_fields(
        **given_fields(options),
        preset=options["preset"] or (RAG_PRESET if options["rag"] else DEFAULT_PRESET),
        overrides=overrides_of(options),
        stop=options["stop"],
        stop_token_ids=options["stop_token_ids"],
        logit_bias=_biases_of(options),
        banned_token_ids=options["banned_token_ids"],
        allowed_token_ids=options["allowed_token_ids"],
        grammar=_grammar_of(options),
        images=tuple(_read_image(path) for path in options["images"]),
    )
    # What no service would take is refused before a model is loaded.
    request.validate(rag=options["rag"])
    return request


def _read_image(path: Path) -> bytes:
    """Read an image, but no more of its file than shows that it is too large."""
    try:
        with path.open("rb") as file:
            return file.read(MAX_IMAGES_BYTES + 1)
    except OSError as error:
        raise InvalidArgument("images", f"{path} cannot be read: {error.strerror}") from error


async def _show(
    endpoint: str,
    request: GenerationRequest,
    options: dict[str, Any],
    access: ClientAccess | None,
) -> None:
    """Show the answer. A text that the model cannot be asked is continued by it instead."""
    try:
        await _show_answer(endpoint, request, options, access)
    except InvalidArgument as error:
        await _show_answer(endpoint, as_text(request, error), options, access)


def as_text(request: GenerationRequest, error: InvalidArgument) -> GenerationRequest:
    """Return the request with its question as a text to be continued, and say so, where the model
    refused it as it has no chat template. Raises any other refusal."""
    if error.field != "messages" or "no chat template" not in error.why:
        raise error
    click.echo("this model has no chat template: it continues the text", err=True)
    turn = request.prompt[0]
    assert isinstance(turn, Turn), "no other prompt is refused for want of a chat template"
    return replace(request, prompt=turn.content)


async def _show_answer(
    endpoint: str,
    request: GenerationRequest,
    options: dict[str, Any],
    access: ClientAccess | None,
) -> None:
    timeout_s = options["timeout"]
    sampling = await open_sampling(endpoint, request, options, access)
    request = request.with_fields(**sampling.settings)
    request.validate(rag=options["rag"])
    if options["as_json"]:
        result = await ask(endpoint, request, timeout_s, access=access)
        click.echo(json.dumps(answer_object(request, result)))
    else:
        result = await show(endpoint, request, timeout_s, access=access)
        shown = figures(result, verbose=options["verbose"], explain_choice=options["explain"])
        click.echo(shown, err=True)
        if options["verbose"]:
            click.echo(sampling.line(request), err=True)


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


def _biases_of(options: dict[str, Any]) -> tuple[tuple[int, float], ...]:
    """Return the biases as pairs of token id and bias. Raises InvalidArgument naming the flag."""
    return tuple(map(_bias, options["logit_bias"]))


def _grammar_of(options: dict[str, Any]) -> Grammar | None:
    """Return the grammar that was given; None if there was none. Raises InvalidArgument naming the
    flag."""
    given = [name for name in _GRAMMARS if options[name] is not None]
    if len(given) > 1:
        raise InvalidArgument(given[1], f"set either {given[0]} or {given[1]}, not both")
    if not given:
        return None
    value = options[given[0]]
    try:
        text = value if isinstance(value, str) else value.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise InvalidArgument(given[0], f"{value} cannot be read: {error}") from error
    return Grammar(_GRAMMARS[given[0]], text)


def _bias(text: str) -> tuple[int, float]:
    token, _, bias = text.partition("=")
    try:
        return int(token), float(bias)
    except ValueError:
        raise InvalidArgument("logit_bias", f"must be ID=BIAS, as 5=-2.5, is {text!r}") from None
