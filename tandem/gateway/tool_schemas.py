"""What of a tool's schema the grammar of its calls enforces. Invariant: pure; the schema of a tool
that is not strict refuses no request for a keyword, a format, a pattern or a bound that is beyond
the compiler of grammars: these are left out, and the model only reads them."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

Schema = dict[str, Any]

_NO_PARAMETERS: Schema = {"type": "object", "properties": {}}
_COMPACT = {"whitespace_flexible": False}
"""A model that may write spaces for ever would."""
_LENIENT = {"lenient": True, "coerce_one_of": True}
"""Keywords and formats that are not known are left out, and `oneOf` is taken for `anyOf`."""
_OPTIONS = "x-guidance"  # llguidance's own keyword
_UNKNOWN_PATTERN = re.compile(
    r"\(\?(?:[=!>#]|<[=!]|P[=>]|[a-zA-Z]*m)"  # looks around; groups of other engines
    r"|\\[0-9bBAZGcehHkKQERX<>]"  # refers back; borders and classes of other engines
    r"|\[\^?\]"
)
_BOUNDS = frozenset({"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"})
_TOO_WIDE = 2**63 - 1
"""A bound that says no more than that the number is one of 64 bits, or a float. The compiler fails
at two of them."""
_SCHEMAS_BY_NAME = frozenset({"properties", "$defs", "definitions"})
_VALUES = frozenset({"const", "enum", "default", "examples"})
_LINE = re.compile(r"\w+: line (\d+): (.*)", re.DOTALL)


def enforced_schema(parameters: Mapping[str, Any] | None, strict: bool) -> Schema:
    """Return the schema that the arguments of a tool must match, with the options of the compiler
    in it. `strict`: all of `parameters`, also what will be refused."""
    whole = _NO_PARAMETERS | dict(parameters or {})
    if strict:
        return whole | {_OPTIONS: _COMPACT}
    return _without_unknown_keywords(whole) | {_OPTIONS: _COMPACT | _LENIENT}


def refusal_of_schema(message: str, names: Sequence[str]) -> str:
    """Return the refusal of a grammar whose first lines are the schemas of the tools `names`, with
    the tool in the place of the line's number."""
    match = _LINE.fullmatch(message)
    if match is None or int(match[1]) > len(names):
        return message
    return f"tools: the schema of '{names[int(match[1]) - 1]}': {match[2]}"


def _without_unknown_keywords(schema: Schema) -> Schema:
    known: Schema = {}
    forbids_others = True
    for name, value in schema.items():
        if name == "pattern" and isinstance(value, str) and _UNKNOWN_PATTERN.search(value):
            continue
        if name in _BOUNDS and isinstance(value, int | float) and abs(value) >= _TOO_WIDE:
            continue
        if name in _SCHEMAS_BY_NAME and isinstance(value, dict):
            known[name] = {key: _without_unknown(each) for key, each in value.items()}
        elif name == "patternProperties" and isinstance(value, dict):
            left = {key: each for key, each in value.items() if not _UNKNOWN_PATTERN.search(key)}
            known[name] = {key: _without_unknown(each) for key, each in left.items()}
            forbids_others = forbids_others and len(left) == len(value)
        else:
            known[name] = value if name in _VALUES else _without_unknown(value)
    if not forbids_others:  # names that were left out are others
        known.pop("additionalProperties", None)
    return known


def _without_unknown(value: Any) -> Any:
    if isinstance(value, list):
        return [_without_unknown(each) for each in value]
    return _without_unknown_keywords(value) if isinstance(value, dict) else value
