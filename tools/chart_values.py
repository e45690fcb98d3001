"""The Helm chart's values: every value of values.yaml with its default and its comment.

Invariant: they are read from values.yaml alone. A comment stands above its value; one that a
component's value lacks is that of the first component with the same value.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

VALUES = Path(__file__).resolve().parents[1] / "deploy" / "k8s" / "tandem" / "values.yaml"
_KEY = re.compile(r"^(?P<indent> *)(?P<key>[A-Za-z]\w*):(?: +(?P<rest>.*))?$")
_LONGEST_DEFAULT = 60


@dataclass(frozen=True, slots=True)
class ChartValue:
    """One value: its dotted name, its default, and what values.yaml says of it."""

    name: str
    default: Any
    comment: str


def chart_values() -> list[ChartValue]:
    """Those that can be set, in the file's order: every key without keys of its own."""
    text = VALUES.read_text(encoding="utf-8")
    comments = dict(_comments(text))
    shared: dict[str, str] = {}
    for name, comment in comments.items():
        shared.setdefault(name.partition(".")[2], comment)
    return [
        ChartValue(name, default, _comment(name, comments, shared))
        for name, default in _leaves(yaml.safe_load(text), "")
    ]


def _comment(name: str, comments: dict[str, str], shared: dict[str, str]) -> str:
    """Its own, that of the mapping that it is in, or another component's."""
    own = comments.get(name) or shared.get(name.partition(".")[2])
    while own is None and "." in name:
        name = name.rpartition(".")[0]
        own = comments.get(name) or shared.get(name.partition(".")[2])
    return own or ""


def _leaves(value: Any, name: str) -> Iterator[tuple[str, Any]]:
    if not isinstance(value, dict) or not value or name.endswith((".settings", "Context")):
        yield name, value
        return
    for key, inner in value.items():
        yield from _leaves(inner, f"{name}.{key}" if name else key)


def _comments(text: str) -> Iterator[tuple[str, str]]:
    """(dotted name, comment) of every key that has one above it or behind it."""
    path: list[tuple[int, str]] = []
    above: list[str] = []
    for line in text.splitlines():
        if line.lstrip().startswith("#"):
            above.append(line.strip().removeprefix("#").strip())
            continue
        found = _KEY.match(line)
        if found is None:
            above = []
            continue
        indent = len(found["indent"])
        path = [(depth, key) for depth, key in path if depth < indent] + [(indent, found["key"])]
        behind = (found["rest"] or "").partition(" # ")[2]
        if comment := " ".join([*above, behind]).strip():
            yield ".".join(key for _, key in path), comment
        above = []


def default_text(default: Any) -> str:
    """As it would be written in YAML."""
    if default in ("", None):
        return "none"
    text = json.dumps(default) if not isinstance(default, str) else default
    if text.startswith("tandem/"):  # an image; in backquotes it would be a path
        return text
    return f"`{text}`" if len(text) <= _LONGEST_DEFAULT else "see `values.yaml`"
