"""Options of commands that say which tokens may follow: biases, lists of tokens, grammars."""

from pathlib import Path
from typing import Any

import click

from tandem.commands.options import together
from tandem.core.errors import InvalidArgument
from tandem.core.processors import Grammar, GrammarKind

_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
_GRAMMARS = {
    "json_schema": GrammarKind.JSON_SCHEMA,
    "regex": GrammarKind.REGEX,
    "grammar": GrammarKind.LARK,
}

processor_options = together(
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


def biases_of(options: dict[str, Any]) -> tuple[tuple[int, float], ...]:
    """Return the biases as pairs of token id and bias. Raises InvalidArgument naming the flag."""
    return tuple(map(_bias, options["logit_bias"]))


def grammar_of(options: dict[str, Any]) -> Grammar | None:
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
