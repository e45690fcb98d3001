"""Single choices of a preset, changed by name: `Override("window", 8)`, or as people write it,
`window=8`, `rejection_payload=top_k`, `schedule.bonus=false` (`parse_override`).

A field is named by itself where that is unambiguous, else with the part of the preset it lies in.
Invariant: a value has its field's type; `Preset.validate` checks whether the choices fit."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from enum import StrEnum
from typing import Any, Protocol, Self, TypeVar, get_args, get_type_hints

from tandem.core.errors import InvalidArgument, unknown_name


class Composition(Protocol):
    """A preset: a frozen dataclass of choices, some of them dataclasses too."""

    def with_draft_length(self, length: int) -> Self: ...
    def with_expansion(self, expansion: tuple[int, ...]) -> Self: ...


Composed = TypeVar("Composed", bound=Composition)

MAX_OVERRIDES = 32
MAX_OVERRIDE_CHARACTERS = 128
_WORDS = {"true": True, "false": False}
_SWITCHES = {"on": True, "off": False}

OverrideValue = bool | int | float | str | tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Override:
    """Another value for one choice of a preset."""

    field: str
    value: OverrideValue


def parse_override(text: str) -> Override:
    """Parse "field=value". Raises InvalidArgument naming `overrides`."""
    if len(text) > MAX_OVERRIDE_CHARACTERS:
        raise InvalidArgument("overrides", f"at most {MAX_OVERRIDE_CHARACTERS} characters each")
    name, equals, value = (part.strip() for part in text.partition("="))
    if not equals:
        raise InvalidArgument("overrides", f"{text!r} is not field=value")
    return Override(name, _parse_value(value))


def parse_overrides(texts: Iterable[str]) -> tuple[Override, ...]:
    """Parse overrides in their order; raises as `parse_override`."""
    return tuple(parse_override(text) for text in texts)


def check_overrides(overrides: Sequence[Override]) -> None:
    """Raise InvalidArgument naming `overrides` for too many, or one that is too long."""
    if len(overrides) > MAX_OVERRIDES:
        raise InvalidArgument("overrides", f"at most {MAX_OVERRIDES}")
    for override in overrides:
        value = override.value
        length = len(value) if isinstance(value, str | tuple) else 0
        if len(override.field) + length > MAX_OVERRIDE_CHARACTERS:
            raise InvalidArgument("overrides", f"at most {MAX_OVERRIDE_CHARACTERS} characters each")


def with_overrides(preset: Composed, overrides: Iterable[Override]) -> Composed:
    """Return the preset with each override applied in order, not validated. `draft_length` and
    `expansion` change all that goes with them. Raises InvalidArgument naming `overrides` for an
    unknown field or a value that is none of its type."""
    for override in overrides:
        preset = _with_override(preset, override.field, override.value)
    return preset


def _parse_value(text: str) -> OverrideValue:
    """Parse a value without knowing its field: a word stays a word, also "on" and "off"."""
    if text.lower() in _WORDS:
        return _WORDS[text.lower()]
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            pass
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        return text


def _with_override(preset: Composed, name: str, value: OverrideValue) -> Composed:
    if name == "draft_length":
        return preset.with_draft_length(*_whole_numbers(name, value, 1))
    if name == "expansion":
        return preset.with_expansion(_whole_numbers(name, value))
    changed: Composed = _changed(preset, _path(preset, name), value)
    return changed


def _whole_numbers(field: str, value: OverrideValue, most: int | None = None) -> tuple[int, ...]:
    """Return one or several whole numbers, at most `most`. Raises InvalidArgument naming the
    field."""
    numbers = value if isinstance(value, tuple) else (value,)
    whole = tuple(
        number for number in numbers if isinstance(number, int) and not isinstance(number, bool)
    )
    if len(whole) < len(numbers) or not whole or (most is not None and len(whole) > most):
        wanted = "a whole number" if most == 1 else "whole numbers, for example 2,2,2"
        raise InvalidArgument(field, f"must be {wanted}; is {value!r}")
    return whole


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


def _changed(part: Any, path: tuple[str, ...], given: OverrideValue) -> Any:
    name, *below = path
    value = getattr(part, name)
    if below:
        return replace(part, **{name: _changed(value, tuple(below), given)})
    words = get_args(get_type_hints(type(part))[name])
    return replace(part, **{name: _of_its_kind(value, given, name, words)})


def _of_its_kind(value: Any, given: OverrideValue, field: str, words: tuple[Any, ...]) -> Any:
    """Return `given` as what `value` is one of; `words` are all values of a field that has only
    some."""
    number = isinstance(given, int | float) and not isinstance(given, bool)
    if isinstance(value, bool):
        switch = _SWITCHES.get(given.lower()) if isinstance(given, str) else given
        if isinstance(switch, bool):
            return switch
        wanted = "true or false"
    elif isinstance(value, int):
        if number and isinstance(given, int):
            return given
        wanted = "a whole number"
    elif isinstance(value, float):
        if number:
            return float(given)  # type: ignore[arg-type]
        wanted = "a number"
    else:
        known = tuple(type(value)) if isinstance(value, StrEnum) else words
        if given in known:
            return known[known.index(given)]
        wanted = ", ".join(known)
    raise InvalidArgument("overrides", f"{field} must be {wanted}, not {given!r}")
