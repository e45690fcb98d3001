"""Tools: how bodies name them, as in OpenAI's API, and the grammar that an answer with tools
follows. Invariant: arguments are JSON once the answer ended by itself, and fit what is enforced of
the tool's schema (`tandem.gateway.tool_schemas`). The grammar holds every model to that whose calls
need no special tokens."""

import json
import re
from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import Field

from tandem.core.processors import Grammar, GrammarKind
from tandem.gateway.base_models import Lenient
from tandem.gateway.tool_schemas import enforced_schema
from tandem.text.families import HERMES, CallFormat

MAX_TOOLS = 128
MAX_CALLS = 8
"""Of one answer: a model that does not know when to stop calling would go on for ever."""
LINE_ENDS = "\\n{0,2}"
"""Between thinking and what follows it, as a regular expression."""

STRICT = (
    "True: a schema with keywords that cannot be enforced is refused. Otherwise these are left out,"
    " and the arguments match the rest."
)

ToolName = Annotated[str, Field(pattern=r"^[a-zA-Z0-9_-]{1,64}$")]


class ToolFunction(Lenient):
    name: ToolName
    description: str | None = None
    parameters: dict[str, Any] | None = Field(default=None, description="A JSON schema.")
    strict: bool | None = Field(default=None, description=STRICT)


class Tool(Lenient):
    type: Literal["function"]
    function: ToolFunction


class NamedFunction(Lenient):
    name: ToolName


class NamedTool(Lenient):
    type: Literal["function"]
    function: NamedFunction


Tools = Annotated[list[Tool], Field(max_length=MAX_TOOLS, fail_fast=True)]
ToolChoice = Literal["none", "auto", "required"] | NamedTool


def tool_grammar(
    tools: Sequence[Tool],
    *,
    text: Grammar | None,
    must_call: bool,
    parallel: bool,
    calls: CallFormat = HERMES,
    after_thinking: bool = False,
) -> Grammar:
    """Return a grammar for calls of `tools`: one or, if `parallel`, several. Unless `must_call`, it
    allows a text instead: JSON of the schema `text`, if one is given. `calls`: how calls are
    written. `after_thinking`: line ends may come before them, as models write them there."""
    more = f"({_literal(calls.between)} next_call){{0,{MAX_CALLS - 1}}}" if parallel else ""
    begin, end = calls.first + calls.begin, _literal(calls.end)
    schemas = [
        enforced_schema(one.function.parameters, one.function.strict is True) for one in tools
    ]
    # One lexeme with what may stand before it: a text may begin in the same way, up to a place.
    first = f"/{LINE_ENDS}{_escaped(begin)}/" if after_thinking else _literal(begin)
    rules = [
        # First, so that a line's number in a refusal says which tool's it is.
        *(f"a{index}: %json {json.dumps(schema)}" for index, schema in enumerate(schemas)),
        "start: calls" if must_call else f"start: {'json' if text else 'TEXT'} | calls",
        " ".join(filter(None, ("calls: call", more, _literal(calls.last)))),
        f"call: BEGIN function {end}",
        f"BEGIN: {first}",
        "function: " + " | ".join(f"f{index}" for index in range(len(tools))),
    ]
    if parallel:
        rules.append(f"next_call: {_literal(calls.begin)} function {end}")
    for index, tool in enumerate(tools):
        rules.append(f"f{index}: {_literal(tool.function.name + calls.middle)} a{index}")
    if not must_call:
        rules.append(f"json: %json {text.source}" if text else _plain(calls))
    return Grammar(GrammarKind.LARK, "\n".join(rules) + "\n")


def _plain(calls: CallFormat) -> str:
    """Return the rule of text without a call in it."""
    return f"TEXT: /(?s:.*)/ & ~/(?s:.*){_escaped(calls.first or calls.mark)}(?s:.*)/"


def _literal(text: str) -> str:
    """Return `text` as a string in a grammar; nothing for an empty one."""
    return json.dumps(text, ensure_ascii=False) if text else ""


def _escaped(text: str) -> str:
    """Escape `text` for a regular expression of a grammar, where a slash would end the
    expression."""
    return re.escape(text).replace("\\\n", "\\n").replace("/", "\\/")
