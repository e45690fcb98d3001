"""The Helm chart's values: every value of values.yaml with its default and its comment.

Invariant: they are read from values.yaml alone. A comment stands above its value; one that a
component's value lacks is that of the first component with the same value.
"""

from __future__ import annotations

import json
import re
from collections import Counter
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
    """One value: its dotted name, its default, and what values.yaml says of it. `of_components`:
    its name without the component's, where several components have it."""

    name: str
    default: Any
    comment: str
    of_components: str = ""


def chart_values() -> list[ChartValue]:
    """Those that can be set, in the file's order: every key without keys of its own."""
    text = VALUES.read_text(encoding="utf-8")
    values = yaml.safe_load(text)
    components = {
        name for name, value in values.items() if isinstance(value, dict) and "settings" in value
    }
    comments = dict(_comments(text))
    shared: dict[str, str] = {}
    for name, comment in comments.items():
        component, _, within = name.partition(".")
        if component in components and within:
            shared.setdefault(within, comment)
    leaves = list(_leaves(values, ""))
    count = Counter(_within(name, components) for name, _ in leaves)
    return [
        ChartValue(
            name,
            default,
            _comment(name, comments, shared if _within(name, components) else {}),
            within if count[within := _within(name, components)] > 1 else "",
        )
        for name, default in leaves
    ]


def _within(name: str, components: set[str]) -> str:
    """The name in its component; empty outside of components."""
    component, _, within = name.partition(".")
    return within if component in components else ""


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
