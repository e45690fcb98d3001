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
        "--min-p", type=float, default=0.0, help="Least share of the largest probability."
    ),
    click.option("--typical-p", type=float, default=1.0, help="Mass of the most typical tokens."),
    click.option("--presence-penalty", type=float, default=0.0, help="Of tokens of the answer."),
    click.option("--frequency-penalty", type=float, default=0.0, help="Of each time they came."),
    click.option(
        "--repetition-penalty", type=float, default=1.0, help="Of the prompt's tokens too; 1: none."
    ),
    click.option(
        "--logit-bias", multiple=True, metavar="ID=BIAS", help="Added to a logit; repeatable."
    ),
    click.option(
        "--ban-token", "banned_token_ids", type=int, multiple=True, help="Never; repeatable."
    ),
    click.option(
        "--allow-token", "allowed_token_ids", type=int, multiple=True, help="No other; repeatable."
    ),
    click.option("--json-schema", type=_FILE, help="The answer is JSON that fits this schema."),
    click.option("--regex", metavar="REGEX", help="The answer matches it, as a whole."),
    click.option("--grammar", type=_FILE, help="The answer is of this grammar, in Lark's syntax."),
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
        raise InvalidArgument("logit_bias", f"must be ID=BIAS, as 5=-2.5, is {text!r}") from None


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
