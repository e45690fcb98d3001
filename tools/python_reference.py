"""The page of the Python API, from its signatures, types and docstrings.

Invariant: what the page says of an argument, option or field is what `help` and type checkers say.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator
from dataclasses import fields
from typing import Any, get_type_hints

from pydantic.fields import FieldInfo

import tandem
from tandem.api.argument_types import type_text
from tandem.api.options import DEFAULTS
from tandem.generation.request_fields import RequestFields, fields_of
from tools.markdown_table import table

MAKERS = (tandem.embedded, tandem.connect, tandem.preset)
CLASSES = {tandem.Suite: tandem.AsyncSuite, tandem.Stream: tandem.AsyncStream}
"""With their forms for asyncio."""
VALUES = (
    tandem.Answer,
    tandem.Piece,
    tandem.Figures,
    tandem.SideFigures,
    tandem.ChoiceFigures,
)
ERRORS = tuple(
    kind
    for name in tandem.__all__
    if inspect.isclass(kind := getattr(tandem, name)) and issubclass(kind, Exception)
)
RANDOM = "a random number"
_ARGUMENT = re.compile(r"^(\w+): (.*(?:\n +.*)*)", re.MULTILINE)
_NONE = inspect.Parameter.empty


def python_page() -> str:
    """All that `import tandem` offers."""
    parts = [
        "# Python API: reference",
        "Types and defaults are those of the code. How the parts go together, with examples: "
        "[Python API](../python-api.md).",
        "## Making a suite",
        *(part for maker in MAKERS for part in _function(maker)),
        "`embedded_async` and `connect_async` take the same arguments and return an `AsyncSuite`.",
        "## Options of a request",
        "Keyword arguments of `generate`, `chat` and `stream`. All may be left out; None leaves one"
        " out.",
        table(("option", "type, default", "meaning"), _options()),
        "## Suites and streams",
        *(part for pair in CLASSES.items() for part in _class(*pair)),
        "## Answers",
        *(part for kind in VALUES for part in _value(kind)),
        "## Errors",
        table(("error", "meaning"), ((f"`{kind.__name__}`", _text(kind)) for kind in ERRORS)),
    ]
    return "\n\n".join(parts) + "\n"


def _function(function: Callable[..., Any]) -> Iterator[str]:
    before, _, rest = inspect.getdoc(function).partition("\n\nArgs:\n")  # type: ignore[union-attr]
    meanings, _, after = rest.partition("\n\n")
    named = dict(_ARGUMENT.findall(inspect.cleandoc(meanings)))
    hints = get_type_hints(inspect.unwrap(function))
    parameters = inspect.signature(function).parameters
    yield f"### `{function.__name__}`"
    yield _joined(before)
    if named:
        rows = (
            (
                f"`{name}`",
                _typed(type_text(hints[name]), each.default),
                _sentence(named[name]),
            )
            for name, each in parameters.items()
        )
        yield table(("argument", "type, default", "meaning"), rows)
    if after:
        yield _joined(after)


def _options() -> Iterator[tuple[str, ...]]:
    defaults = {each.name: each.default for each in fields_of(RequestFields)} | DEFAULTS
    hints = get_type_hints(tandem.GenerationOptions)
    described = get_type_hints(tandem.GenerationOptions, include_extras=True)
    for name in sorted(hints):
        type_ = type_text(hints[name])
        typed = f"`{type_}`, {RANDOM}" if name == "seed" else _typed(type_, defaults.get(name))
        (meaning,) = (each for each in described[name].__metadata__ if isinstance(each, str))
        yield f"`{name}`", typed, meaning


def _class(kind: type, coroutines: type) -> Iterator[str]:
    yield f"### `{kind.__name__}`"
    yield _text(kind)
    yield table(("member", "returns", "meaning"), _members(kind))
    yield f"### `{coroutines.__name__}`"
    yield _text(coroutines)
    alike = {row[0] for row in _members(kind)}
    others = ", ".join(row[0] for row in _members(coroutines) if row[0] not in alike)
    yield f"Its members are those of `{kind.__name__}`, to be awaited, with {others}."


def _members(kind: type) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = []
    for name, member in vars(kind).items():
        if not name.startswith("_"):
            function: Any = member.fget if isinstance(member, property) else member
            shown = name if isinstance(member, property) else f"{name}{_call(function)}"
            returned = type_text(get_type_hints(function).get("return", type(None)))
            rows.append((_code(shown), _code(returned), _text(function)))
    return rows


def _call(function: Callable[..., Any]) -> str:
    """The names of a method's arguments, as it is called."""
    names = [
        f"**{name}" if each.kind is each.VAR_KEYWORD else name
        for name, each in inspect.signature(function).parameters.items()
        if name != "self"
    ]
    return f"({', '.join(names)})"


def _value(kind: Any) -> Iterator[str]:
    hints = get_type_hints(kind)
    described = get_type_hints(kind, include_extras=True)
    yield f"### `{kind.__name__}`"
    yield _text(kind).partition(" A field that has the name")[0]
    rows = []
    for field in fields(kind):
        metadata = getattr(described[field.name], "__metadata__", ())
        infos = [each for each in metadata if isinstance(each, FieldInfo)]
        (meaning,) = (each.description for each in infos if each.description)
        rows.append((f"`{field.name}`", _code(type_text(hints[field.name])), meaning))
    yield table(("field", "type", "meaning"), rows)


def _typed(type_: str, default: Any) -> str:
    """A type, with the default if there is one beside None."""
    return _code(type_) if default in (_NONE, None) else f"{_code(type_)}, {_code(repr(default))}"


def _code(text: str) -> str:
    """A cell in the font of code. GitHub takes a bar within backticks for the end of the cell, and
    mkdocs shows what would escape it."""
    return f"<code>{text.replace('|', '&#124;')}</code>" if "|" in text else f"`{text}`"


def _text(documented: object) -> str:
    return _joined(inspect.getdoc(documented) or "")


def _sentence(text: str) -> str:
    joined = _joined(text)
    return joined[:1].upper() + joined[1:]


def _joined(text: str) -> str:
    return " ".join(text.split())
