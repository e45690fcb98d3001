"""What callers pass, as the types that a function says it takes. Invariant: a value that cannot be
one of these is InvalidArgument naming the argument, before anything is done."""

import inspect
import reprlib
from collections.abc import Callable
from functools import cache, wraps
from types import NoneType, UnionType
from typing import Any, Literal, ParamSpec, TypeVar, Union, get_args, get_origin, get_type_hints

from pydantic import ConfigDict, TypeAdapter, ValidationError

from tandem.core.errors import InvalidArgument

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


def typed_arguments(function: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
    """Return the function with each of its arguments passed as `as_type` returns it."""

    @wraps(function)
    def checked(*arguments: Arguments.args, **options: Arguments.kwargs) -> Result:
        bound = inspect.signature(function).bind(*arguments, **options)
        hints = get_type_hints(function)
        for name, value in bound.arguments.items():
            bound.arguments[name] = as_type(name, hints[name], value)
        return function(*bound.args, **bound.kwargs)

    return checked


def as_type(name: str, hint: Any, value: Any) -> Any:
    """Return a value of the type `hint`; one that means the same in another type, such as a number
    of numpy, is converted. Raises InvalidArgument(name)."""
    try:
        return _adapter(hint).validate_python(value)
    except ValidationError:
        why = f"must be of type {type_text(hint)}, is {reprlib.repr(value)}"
        raise InvalidArgument(name, why) from None


def type_text(hint: Any) -> str:
    """Return a type as one writes it in Python, without the modules of its parts."""
    parts = get_args(hint)
    if hint is NoneType:
        return "None"
    if get_origin(hint) is Literal:
        return " | ".join(map(repr, parts))
    if get_origin(hint) in (Union, UnionType):
        return " | ".join(map(type_text, parts))
    if hint is Ellipsis:
        return "..."
    name = getattr(hint, "__name__", str(hint))
    return f"{name}[{', '.join(map(type_text, parts))}]" if parts else name


@cache
def _adapter(hint: Any) -> TypeAdapter[Any]:
    return TypeAdapter(hint, config=ConfigDict(arbitrary_types_allowed=True))
