"""Single choices of a preset, changed by name, as people write it: `window=8`,
`rejection_payload=top_k`, `schedule.bonus=false`.

A field is named by itself where that is unambiguous, else with the part of the preset it lies in.
Invariant: a value has its field's type; `Preset.validate` checks whether the choices fit."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import fields, is_dataclass, replace
from enum import StrEnum
from typing import Any, TypeVar, cast, get_args, get_type_hints

from tandem.core.errors import InvalidArgument, check_count, unknown_name

Preset = TypeVar("Preset")
"""A frozen dataclass of choices, some of them dataclasses too."""

MAX_OVERRIDES = 32
MAX_OVERRIDE_CHARACTERS = 128
_SWITCHES = {"true": True, "on": True, "false": False, "off": False}


def check_overrides(overrides: Sequence[str]) -> None:
    """Raise InvalidArgument naming `overrides` for too many, or one that is too long."""
    check_count(len(overrides), MAX_OVERRIDES, "overrides")
    if any(len(override) > MAX_OVERRIDE_CHARACTERS for override in overrides):
        raise InvalidArgument("overrides", f"at most {MAX_OVERRIDE_CHARACTERS} characters each")


def with_overrides(preset: Preset, overrides: Iterable[str]) -> Preset:
    """Return the preset with each override applied in order, not validated. `draft_length` and
    `expansion` change all that goes with them. Raises InvalidArgument naming `overrides` for what
    is not `field=value`, an unknown field, or a value that is none of its type."""
    changed: Any = preset
    for override in overrides:
        name, equals, value = (part.strip() for part in override.partition("="))
        if not equals:
            raise InvalidArgument("overrides", f"{override!r} is not field=value")
        if name == "draft_length":
            length = _parsed(int, value, name, "must be a whole number")
            changed = changed.with_draft_length(length)
        elif name == "expansion":
            wanted = "must be whole numbers, for example 2,2,2"
            changed = changed.with_expansion(_parsed(_whole_numbers, value, name, wanted))
        else:
            changed = _changed(changed, _path(changed, name), value)
    return cast("Preset", changed)


def field_names(preset: Any) -> tuple[str, ...]:
    """Return every field that can be set, by its full name."""
    return tuple(".".join(path) for path, _ in _leaves(preset))


def _path(preset: Any, name: str) -> tuple[str, ...]:
    wanted = tuple(name.split("."))
    paths = [path for path, _ in _leaves(preset) if path[-len(wanted) :] == wanted]
    if wanted in paths:
        return wanted
    if len(paths) != 1:
        raise unknown_name("overrides", name, ("draft_length", "expansion", *field_names(preset)))
    return paths[0]


def _leaves(part: Any) -> Iterator[tuple[tuple[str, ...], Any]]:
    for field in fields(part):
        value = getattr(part, field.name)
        if is_dataclass(value):
            yield from (((field.name, *path), leaf) for path, leaf in _leaves(value))
        elif field.name != "name" and not isinstance(value, tuple):
            yield (field.name,), value


def _changed(part: Any, path: tuple[str, ...], text: str) -> Any:
    name, *below = path
    value = getattr(part, name)
    if below:
        return replace(part, **{name: _changed(value, tuple(below), text)})
    words = get_args(get_type_hints(type(part))[name])  # of a field that has only some
    return replace(part, **{name: _of_its_kind(value, words, text, name)})


def _of_its_kind(value: Any, words: tuple[Any, ...], text: str, field: str) -> Any:
    """Return what `text` says as what `value` is one of."""
    if isinstance(value, bool):
        return _parsed(_SWITCHES.__getitem__, text, "overrides", f"{field} must be true or false")
    if isinstance(value, int):
        return _parsed(int, text, "overrides", f"{field} must be a whole number")
    if isinstance(value, float):
        return _parsed(float, text, "overrides", f"{field} must be a number")
    known = {str(word): word for word in (type(value) if isinstance(value, StrEnum) else words)}
    return _parsed(known.__getitem__, text, "overrides", f"{field} must be {', '.join(known)}")


def _whole_numbers(text: str) -> tuple[int, ...]:
    return tuple(map(int, text.split(",")))


def _parsed(parse: Callable[[str], Any], text: str, field: str, must_be: str) -> Any:
    """Return the value that a text spells, in any case. Raises InvalidArgument naming `field`."""
    try:
        return parse(text.lower())
    except (ValueError, KeyError):
        raise InvalidArgument(field, f"{must_be}, not {text!r}") from None
