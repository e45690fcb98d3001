"""Options of commands that say which tokens may follow: penalties, biases, cuts, grammars."""

from pathlib import Path
from typing import Any

import click

from tandem.commands.options import together
from tandem.core.errors import InvalidArgument
from tandem.core.processors import Grammar, GrammarKind, Processors

_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
_GRAMMARS = {
    "json_schema": GrammarKind.JSON_SCHEMA,
    "regex": GrammarKind.REGEX,
    "grammar": GrammarKind.LARK,
}

processor_options = together(
    click.option(
        "--min-p",
        type=float,
        default=0.0,
        help="Exclude tokens less likely than this times the most likely token. 0: disabled.",
    ),
    click.option(
        "--typical-p",
        type=float,
        default=1.0,
        help="Sample from the most typical tokens with this total probability. 1: disabled.",
    ),
    click.option(
        "--presence-penalty",
        type=float,
        default=0.0,
        help="Penalty for tokens that already occur in the answer.",
    ),
    click.option(
        "--frequency-penalty",
        type=float,
        default=0.0,
        help="Penalty for each time a token already occurs in the answer.",
    ),
    click.option(
        "--repetition-penalty",
        type=float,
        default=1.0,
        help="Penalty factor for tokens that occur in the prompt or the answer. 1: disabled.",
    ),
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


def processors_of(options: dict[str, Any]) -> Processors:
    """InvalidArgument names the flag."""
    same = ("presence_penalty", "frequency_penalty", "repetition_penalty")
    return Processors(
        logit_bias=tuple(map(_bias, options["logit_bias"])),
        banned_token_ids=options["banned_token_ids"],
        allowed_token_ids=options["allowed_token_ids"],
        grammar=_grammar(options),
        **{name: options[name] for name in same},
    )


def _bias(text: str) -> tuple[int, float]:
    token, _, bias = text.partition("=")
    try:
        return int(token), float(bias)
    except ValueError:
        raise InvalidArgument(
            "logit_bias", f"must be ID=BIAS, for example 5=-2.5, is {text!r}"
        ) from None


def _grammar(options: dict[str, Any]) -> Grammar | None:
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
