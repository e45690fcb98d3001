"""Single choices of a preset, changed by name: `window=8`, `rejection_payload=top_k`,
`schedule.bonus=false`.

A field is named by itself where that is unambiguous, else with the part of the preset it lies in.
Invariant: a value has its field's type; `Preset.validate` checks whether the choices fit."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import fields, is_dataclass, replace
from enum import StrEnum
from typing import Any, Protocol, Self, TypeVar, get_args, get_type_hints

from tandem.core.errors import InvalidArgument, unknown_name
from tandem.specdec.objective import weights_of


class Composition(Protocol):
    """A preset: a frozen dataclass of choices, some of them dataclasses too."""

    def with_draft_length(self, length: int) -> Self: ...
    def with_expansion(self, expansion: tuple[int, ...]) -> Self: ...


Composed = TypeVar("Composed", bound=Composition)

MAX_OVERRIDES = 32
MAX_OVERRIDE_CHARACTERS = 128
_TRUTH = {"true": True, "on": True, "false": False, "off": False}


def with_overrides(preset: Composed, overrides: Iterable[str]) -> Composed:
    """The preset with each `field=value` applied in order, not validated. `draft_length=8` and
    `expansion=2,2,2` change all that goes with them, `objective=cost` both
    weights. Raises InvalidArgument naming `overrides` for an unknown field or a value that is none
    of its type."""
    for override in overrides:
        name, equals, text = (part.strip() for part in override.partition("="))
        if not equals:
            raise InvalidArgument("overrides", f"{override!r} is not field=value")
        preset = _with_override(preset, name, text)
    return preset


def _with_override(preset: Composed, name: str, text: str) -> Composed:
    try:
        if name == "draft_length":
            return preset.with_draft_length(int(text))
        if name == "expansion":
            return preset.with_expansion(tuple(map(int, text.split(","))))
    except ValueError:
        raise InvalidArgument(name, f"must be whole numbers, as 2,2,2; is {text!r}") from None
    changes = {name: text}
    if name == "objective":
        names = ("idle_weight", "energy_weight")
        changes = dict(zip(names, map(str, weights_of(text)), strict=True))
    for field, value in changes.items():
        preset = _changed(preset, _path(preset, field), value)
    return preset


def field_names(preset: Any) -> tuple[str, ...]:
    """Every field that can be set, by its full name."""
    return tuple(".".join(path) for path, _ in _leaves(preset))


def _path(preset: Any, name: str) -> tuple[str, ...]:
    wanted = tuple(name.split("."))
    found = [path for path, _ in _leaves(preset) if path[-len(wanted) :] == wanted]
    if wanted in found:
        return wanted
    if len(found) != 1:
        raise unknown_name("overrides", name, ("draft_length", "expansion", *field_names(preset)))
    return found[0]


def _leaves(part: Any) -> Iterator[tuple[tuple[str, ...], Any]]:
    for field in fields(part):
        value = getattr(part, field.name)
        if is_dataclass(value):
            yield from (((field.name, *path), leaf) for path, leaf in _leaves(value))
        elif field.name != "name" and not isinstance(value, tuple):
            yield (field.name,), value


def _changed(part: Any, path: tuple[str, ...], text: str) -> Any:
    own, *below = path
    value = getattr(part, own)
    if below:
        return replace(part, **{own: _changed(value, tuple(below), text)})
    changed = _parse(value, text, own, get_args(get_type_hints(type(part))[own]))
    return replace(part, **{own: changed})


def _parse(value: Any, text: str, field: str, words: tuple[Any, ...]) -> Any:
    """`text` as what `value` is one of; `words` are all values of a field that has only some."""
    try:
        if isinstance(value, bool):
            return _TRUTH[text.lower()]
        if isinstance(value, StrEnum):
            return type(value)(text)
        if isinstance(value, int | float):
            return type(value)(text)
    except (ValueError, KeyError):
        wanted = [str(choice) for choice in type(value)] if isinstance(value, StrEnum) else None
        kind = ", ".join(wanted) if wanted else type(value).__name__
        raise InvalidArgument("overrides", f"{field} must be {kind}, not {text!r}") from None
    if text in words:
        return text
    raise InvalidArgument("overrides", f"{field} must be one of {words}, not {text!r}")
