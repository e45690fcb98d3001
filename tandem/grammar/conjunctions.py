"""How many patterns a text would have to match at once. Whether there is such a text, llguidance
finds out at a cost that doubles with each of them, whatever limits it is given. Invariant: pure;
never fewer than there are, and looking costs a bounded number of steps."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any
from urllib.parse import unquote

from tandem.core.errors import InvalidArgument
from tandem.core.processors import Grammar, GrammarKind

MAX_AT_ONCE = 12
"""In a JSON schema: they take 4 ms, where 20 take 2.4 s and 230 MB."""
MAX_INTERSECTIONS = 40
"""Signs & in a grammar in Lark's syntax: they take 50 ms, where 200 take minutes."""
MAX_STEPS = 20_000
_PATTERNS = ("pattern", "format")
_ALTERNATIVES = ("anyOf", "oneOf")
_EMBEDDED = "%json"

Schema = dict[str, Any]


def check_conjunctions(grammar: Grammar) -> None:
    """Raise InvalidArgument("grammar") if too many patterns would have to match at once. What is
    not JSON is left for the compiler to refuse."""
    if grammar.kind is GrammarKind.REGEX:
        return  # has no intersections
    rest = grammar.source
    if grammar.kind is GrammarKind.LARK:
        rest = _check_embedded(rest)
        if (count := rest.count("&")) > MAX_INTERSECTIONS:
            raise InvalidArgument("grammar", f"{count} times &; at most {MAX_INTERSECTIONS}")
        return
    try:
        schema = json.loads(rest)
    except (ValueError, RecursionError):
        return
    _check_schema(schema)


def _check_embedded(source: str) -> str:
    """Check the schemas inside a grammar; return the grammar without them."""
    rest = ""
    decoder = json.JSONDecoder()
    while _EMBEDDED in source:
        before, _, source = source.partition(_EMBEDDED)
        rest += before
        source = source.lstrip()
        try:
            schema, end = decoder.raw_decode(source)
        except (ValueError, RecursionError):
            continue
        _check_schema(schema)
        source = source[end:]
    return rest + source


def _check_schema(schema: object) -> None:
    try:
        pattern_count = _Patterns(schema).at_once([schema])
    except RecursionError:
        raise InvalidArgument("grammar", "its references nest too deep") from None
    if pattern_count > MAX_AT_ONCE:
        why = f"{pattern_count} patterns must match at the same time; the maximum is {MAX_AT_ONCE}"
        raise InvalidArgument("grammar", why)


class _Patterns:
    """Patterns of one schema and its parts, each visited once together with the same others."""

    def __init__(self, root: object) -> None:
        self._root = root
        self._steps = 0
        self._known: dict[frozenset[int], int] = {}

    def at_once(self, together: Sequence[object]) -> int:
        """Return how many patterns, at most, one text must match inside a value that fits all of
        `together`."""
        parts = list(self._parts(together))
        key = frozenset(map(id, parts))
        if key in self._known:
            return self._known[key]
        self._known[key] = 0  # of what holds itself
        own = {
            part[name] for part in parts for name in _PATTERNS if isinstance(part.get(name), str)
        }
        inside = max(map(self.at_once, _values_inside(parts)), default=0)
        chosen = sum(
            max((self.at_once([each]) for each in part[word]), default=0)
            for part in parts
            for word in _ALTERNATIVES
            if isinstance(part.get(word), list)
        )
        self._known[key] = max(len(own), inside) + chosen
        return self._known[key]

    def _parts(self, together: Sequence[object]) -> Iterator[Schema]:
        """Yield the schemas, those that they refer to, and all that must fit as well according to
        them, each once."""
        waiting = list(together)
        seen = set[int]()
        while waiting:
            part = waiting.pop()
            if not isinstance(part, dict) or id(part) in seen:
                continue
            self._steps += 1
            if self._steps > MAX_STEPS:
                raise InvalidArgument("grammar", "the schema is too large")
            seen.add(id(part))
            yield part
            if isinstance(part.get("allOf"), list):
                waiting += part["allOf"]
            if isinstance(part.get("$ref"), str):
                waiting.append(self._referred(part["$ref"]))

    def _referred(self, reference: str) -> object:
        place: Any = self._root
        if not reference.startswith("#") or reference[1:2] not in ("", "/"):
            raise InvalidArgument("grammar", f"$ref {reference[:80]!r}: only #/… is followed")
        for name in filter(None, unquote(reference[1:]).split("/")):
            name = name.replace("~1", "/").replace("~0", "~")
            if isinstance(place, list) and name.isdecimal() and int(name) < len(place):
                place = place[int(name)]
            else:
                place = place.get(name) if isinstance(place, dict) else None
        return place


def _values_inside(parts: Sequence[Schema]) -> Iterator[list[object]]:
    """Yield the schemas that the same value inside must fit: of a property, a further property, an
    item."""
    names = {name for part in parts for name in _object(part, "properties")}
    for name in names:
        yield [each for part in parts for each in _of_property(part, name)]
    further = [part["additionalProperties"] for part in parts if "additionalProperties" in part]
    yield [
        *further,
        *(each for part in parts for each in _object(part, "patternProperties").values()),
    ]
    most = max((len(_list(part, "prefixItems")) for part in parts), default=0)
    for place in range(most + 1):
        yield [_of_item(part, place) for part in parts]


def _of_property(part: Schema, name: str) -> Iterator[object]:
    properties = _object(part, "properties")
    by_pattern = _object(part, "patternProperties")
    yield from by_pattern.values()
    if name in properties:
        yield properties[name]
    elif not by_pattern:
        yield part.get("additionalProperties")


def _of_item(part: Schema, place: int) -> object:
    first = _list(part, "prefixItems")
    return first[place] if place < len(first) else part.get("items")


def _object(part: Schema, name: str) -> Schema:
    value = part.get(name)
    return value if isinstance(value, dict) else {}


def _list(part: Schema, name: str) -> list[object]:
    value = part.get(name)
    return value if isinstance(value, list) else []
