"""What the models of bodies and answers have in common. Invariants: types are what they say (no "1"
for 1), no number is NaN or infinite; a caller's unknown field is ignored, as it is made for another
server, unless it is a known one misspelt; an answer has no field that its model does not name."""

from collections.abc import Iterable
from difflib import get_close_matches
from itertools import islice
from typing import Annotated, Any, ClassVar

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    WithJsonSchema,
    model_validator,
)
from pydantic_core import PydanticCustomError

UINT32 = 2**32 - 1
MISSPELT = 0.85
"""Names as similar as that are taken for a known one that is misspelt."""
LIKE = 0.6
"""Names as similar as that may be meant by one that is refused anyway."""
_LONGEST_NAME = 64
"""That is compared with others; this takes time, and a body may have a name of a megabyte."""
_MOST_NAMES = 32
"""Unknown ones of a body that are compared with the known ones."""

TokenId = Annotated[int, Field(ge=0, le=UINT32)]


Zero = Annotated[int, Field(ge=0, le=0)]
MinusOne = Annotated[int, Field(ge=-1, le=-1)]


def one_of(instead: str, *neutral: object) -> BeforeValidator:
    """Return a validator that takes null and what is `neutral`, and refuses the rest with words for
    what to send instead."""

    def check(value: object) -> None:
        if not any(is_same(value, each) for each in (None, *neutral)):
            raise PydanticCustomError("unsupported_parameter", "is not supported; " + instead)

    taken = {"anyOf": [_form(each) for each in (None, *neutral)]}
    # typing keeps one of two equal annotations, and 0 equals False: the words tell them apart.
    form = Annotated[Any, WithJsonSchema(taken), repr(taken)]
    return BeforeValidator(check, json_schema_input_type=form)


def refused_unless(instead: str, *neutral: object) -> BeforeValidator:
    """Return a validator as `one_of` that also takes what says nothing."""
    return one_of(instead, False, [], {}, *neutral)


def kind_of(value: Any) -> Any:
    """Return the `type` of an object, as a caller sent it or as a model has it."""
    return value.get("type") if isinstance(value, dict) else getattr(value, "type", None)


def is_same(value: object, other: object) -> bool:
    """Return whether two values are the same in JSON, where 1 equals 1.0, but not true."""
    return isinstance(value, bool) == isinstance(other, bool) and value == other


def _form(value: object) -> dict[str, Any]:
    """Return the schema of one value, as generators of clients understand it."""
    match value:
        case None:
            return {"type": "null"}
        case list():
            length = len(value)
            items = {"enum": value or [""]}
            return {"type": "array", "items": items, "minItems": length, "maxItems": length}
        case dict():
            return {"type": "object", "maxProperties": 0}
    return {"const": value}


class Strict(BaseModel):
    """An object with no field more."""

    model_config = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False, frozen=True)


class Lenient(Strict):
    """An object of a caller whose unknown fields are ignored."""

    model_config = ConfigDict(extra="ignore")


class Body(Lenient):
    """A whole body, or an object of it whose fields may not be misspelt. `other_names` are known,
    too. An unknown name that is as like a known one as `misspelt` says is refused; a model that
    forbids unknown fields refuses all, and says which one may be meant."""

    other_names: ClassVar[frozenset[str]] = frozenset()
    misspelt: ClassVar[float] = MISSPELT

    @model_validator(mode="before")
    @classmethod
    def _refuse_misspelt(cls, given: Any) -> Any:
        known = {field.alias or name for name, field in cls.model_fields.items()} | cls.other_names
        unknown = (name for name in given if name not in known) if isinstance(given, dict) else ()
        forbids = cls.model_config.get("extra") == "forbid"
        for name in islice(unknown, _MOST_NAMES):
            meant = close_to(name, known, LIKE if forbids else cls.misspelt)
            if meant or forbids:
                raise unknown_field(name, meant)
        return given


def close_to(name: str, known: Iterable[str], least: float) -> str:
    """Return the name that a misspelt one seems to mean; empty if there is none."""
    if len(name) > _LONGEST_NAME:
        return ""
    return next(iter(get_close_matches(name, known, n=1, cutoff=least)), "")


def unknown_field(name: str, meant: str = "") -> PydanticCustomError:
    """Return an error for a field, which names the one that may be `meant`."""
    return PydanticCustomError("unknown_parameter", "{name}", {"name": name, "meant": meant})


class Answer(Strict):
    """An object of an answer. A field that is `Absent` without a value is left out then; all
    others are always written."""

    model_config = ConfigDict(strict=False)  # a part may be a dataclass, given as an object


def _is_none(value: object) -> bool:
    return value is None


Absent = Field(default=None, exclude_if=_is_none)
"""Default of a field of an answer that is left out where it says nothing."""


def absent(description: str) -> Any:
    """Return `Absent` with a description."""
    return Field(default=None, exclude_if=_is_none, description=description)
