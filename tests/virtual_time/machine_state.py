"""Whether a machine is as it was, however it is made."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Set
from enum import Enum
from typing import Any

import numpy as np

from tandem.core.randomness import SeededRandom
from tandem.specdec.liveness import Liveness

_PLAIN = (int, float, str, bytes, type(None), Enum)
_APART = (Liveness, SeededRandom)
"""When something was heard last is no part of the conversation, and chance has no memory."""


def state_of(machine: object, apart: tuple[type, ...] = ()) -> Any:
    """Everything that it holds, comparable to what it holds later; not how it is arranged in it,
    nor what is in things `apart`."""
    return _state(machine, {}, (*_APART, *apart))


def _state(thing: Any, seen: dict[int, int], apart: tuple[type, ...]) -> Any:
    if isinstance(thing, _PLAIN):
        return repr(thing)
    # What an object that is called keeps is a memo, as of drafts that were hashed ahead.
    if callable(thing) or isinstance(thing, apart):
        return type(thing).__name__
    if isinstance(thing, np.ndarray | np.generic):
        return thing.dtype.str, thing.tolist()
    if id(thing) in seen:
        return "seen", seen[id(thing)]
    seen[id(thing)] = len(seen)
    if isinstance(thing, Mapping):
        return [
            (_state(key, seen, apart), _state(value, seen, apart)) for key, value in thing.items()
        ]
    if isinstance(thing, Set):
        return sorted(map(repr, thing))
    if isinstance(thing, list | tuple | deque):
        return [_state(each, seen, apart) for each in thing]
    slots = {name for base in type(thing).__mro__ for name in getattr(base, "__slots__", ())}
    names = sorted({*getattr(thing, "__dict__", ()), *slots})
    if not names:
        return repr(thing)
    return [
        (name, _state(getattr(thing, name), seen, apart)) for name in names if hasattr(thing, name)
    ]
