"""JSON schemas from simple to nested, for answers that must be valid by them."""

from collections.abc import Callable
from itertools import count
from typing import Any

Schema = dict[str, Any]


def closed(optional: tuple[str, ...] = (), **properties: Schema) -> Schema:
    required = [name for name in properties if name not in optional]
    return {
        "type": "object",
        "properties": properties,
        "required": required,
        "additionalProperties": False,
    }


WORD: Schema = {"type": "string", "pattern": "^[a-z]{1,6}$"}
TEXT: Schema = {"type": "string", "maxLength": 6}
DIGIT: Schema = {"type": "integer", "minimum": 0, "maximum": 99}
FLAG: Schema = {"type": "boolean"}
COLOUR: Schema = {"enum": ["red", "green", "blue"]}
MIXED: Schema = {"enum": ["one", 2, None, True, "five"]}
DATE: Schema = {"type": "string", "pattern": "^20[0-9]{2}-(0[1-9]|1[0-2])$"}
LEAVES = {
    "word": WORD,
    "text": TEXT,
    "digit": DIGIT,
    "flag": FLAG,
    "colour": COLOUR,
    "mixed": MIXED,
    "date": DATE,
    "none": {"type": "null"},
    "const": {"const": "tandem"},
    "either": {"anyOf": [DIGIT, FLAG, COLOUR]},
}


def _list_of(items: Schema) -> Schema:
    return {"type": "array", "items": items, "minItems": 1, "maxItems": 3}


def _tree_of(leaf: Schema) -> Schema:
    """Return a tree built of references, bounded so that small models come to an end."""
    node = closed(left={"anyOf": [leaf, {"$ref": "#/$defs/node2"}]})
    end = closed(leaf=leaf)
    return {"$ref": "#/$defs/node", "$defs": {"node": node, "node2": end}}


def _linked(leaf: Schema) -> Schema:
    rest = {"anyOf": [{"type": "null"}, {"$ref": "#/$defs/link"}]}
    return {"$ref": "#/$defs/link", "$defs": {"link": closed(value=leaf, rest=rest)}}


SHAPES: dict[str, Callable[[Schema], Schema]] = {
    "alone": lambda leaf: leaf,
    "in an object": lambda leaf: closed(value=leaf),
    "with others": lambda leaf: closed(name=WORD, value=leaf, size=DIGIT),
    "optional": lambda leaf: closed(("note",), id=DIGIT, note=leaf),
    "in a list": _list_of,
    "in a list of objects": lambda leaf: _list_of(closed(key=leaf)),
    "nested": lambda leaf: closed(outer=closed(inner=closed(value=leaf)), kind=COLOUR),
    "in a pair": lambda leaf: {
        "type": "array",
        "prefixItems": [leaf, FLAG],
        "items": False,
        "minItems": 2,
    },
    "in a union": lambda leaf: {
        "anyOf": [closed(kind={"const": "a"}, value=leaf), closed(kind={"const": "b"}, size=DIGIT)]
    },
    "in a tree": _tree_of,
    "linked": _linked,
    "beside a list": lambda leaf: closed(tags=_list_of(COLOUR), value=leaf),
    "twice": lambda leaf: closed(first=leaf, second=leaf),
    "in a list of lists": lambda leaf: _list_of(_list_of(leaf)),
    "typed by an enum": lambda leaf: closed(type={"enum": ["in", "out"]}, value=leaf, ok=FLAG),
    "in a map": lambda leaf: {
        "type": "object",
        "additionalProperties": leaf,
        "minProperties": 1,
        "maxProperties": 2,
    },
    "in a table": lambda leaf: closed(rows=_list_of(closed(a=leaf, b=FLAG))),
    "with an array that may be empty": lambda leaf: closed(
        list={"type": "array", "items": leaf, "maxItems": 2}
    ),
    "in three": lambda leaf: closed(x=closed(v=leaf), y=closed(v=FLAG), z=DIGIT),
    "one of": lambda leaf: closed(value={"anyOf": [leaf, {"type": "null"}]}),
}


def json_schemas(most: int) -> dict[str, Schema]:
    """Return at most `most` of 200 schemas, by name: each shape with each leaf, the shapes in
    turn."""
    schemas: dict[str, Schema] = {}
    leaves = list(LEAVES.items())
    for turn in count():
        for number, (shape, make) in enumerate(SHAPES.items()):
            if len(schemas) == min(most, len(SHAPES) * len(leaves)):
                return schemas
            name, leaf = leaves[(turn + number) % len(leaves)]
            schemas[f"{name} {shape}"] = make(leaf)
    raise AssertionError("count never ends")
