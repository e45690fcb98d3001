"""The table of request fields: what every kind of caller may set of a request under one name.

The command line (`tandem/commands/request_options.py`), the HTTP API (`tandem/gateway/schema.py`)
and the Python API (`tandem/api/options.py`) read it: a row is a field's name, its type, words for
the caller, and limits that HTTP states in its schema. The default is the request's own, and
`GenerationRequest.validate` checks every value, whoever gave it.

Not in the table: what each kind of caller gives in a form of its own (prompts, images, lists,
grammars, changes of the preset), and what only one of them may set; their adapters name those.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Any, Literal, TypedDict, TypeVar, get_args, get_type_hints

from pydantic import Field

from tandem.core.errors import InvalidArgument
from tandem.core.prompt import Truncate
from tandem.generation.request import MAX_DOCUMENTS, GenerationRequest
from tandem.specdec.liveness import LostCloud

Words = TypeVar("Words", bound=StrEnum)


class OpenAIFields(TypedDict, total=False):
    """Over HTTP the schema writes these out: they have OpenAI's limits, or depend on the
    endpoint."""

    max_tokens: Annotated[int, "Maximum tokens of the answer."]
    temperature: Annotated[float, "Sampling temperature. 0: always take the most likely token."]
    top_k: Annotated[int, "Sample from this many of the most likely tokens. 0: disabled."]
    top_p: Annotated[
        float, "Sample from the most likely tokens with this total probability. 1: disabled."
    ]
    presence_penalty: Annotated[float, "Penalty for tokens that already occur in the answer."]
    frequency_penalty: Annotated[
        float, "Penalty for each time a token already occurs in the answer."
    ]
    seed: Annotated[int, "Seed of the sampling. The same seed and settings give the same text."]
    suffix: Annotated[
        str, "Text after the completion (fill in the middle), for models that support it."
    ]
    prediction: Annotated[
        str,
        "Text that the answer is expected to repeat for the most part, such as a file that is to be"
        " edited. Drafts are taken from it. It does not change the answer's distribution.",
    ]


class BodyFields(TypedDict, total=False):
    """Over HTTP these stand in the body beside OpenAI's, under the names that vLLM gives them."""

    min_p: Annotated[
        float,
        "Exclude tokens less likely than this times the most likely token. 0: disabled.",
        Field(ge=0, le=1),
    ]
    typical_p: Annotated[
        float,
        "Sample from the most typical tokens with this total probability. 1: disabled.",
        Field(gt=0, le=1),
    ]
    repetition_penalty: Annotated[
        float,
        "Divide the logits of tokens that occur in the prompt or the answer by this."
        " 1: no penalty.",
        Field(gt=0, le=10),
    ]
    ignore_eos: Annotated[bool, "Continue after the model's end-of-text token."]
    min_tokens: Annotated[
        int,
        "Minimum tokens of the answer: no token or stop string ends it before.",
        Field(ge=0, lt=2**32),
    ]
    include_stop_str_in_output: Annotated[
        bool, "End the text with the stop string that ended it, instead of before it."
    ]
    truncate: Annotated[
        Literal["none", "oldest"],
        "What to do with a prompt longer than the context. none: refuse it. oldest: drop the oldest"
        " turns after the system message, or the oldest tokens of a text.",
    ]
    thinking_token_budget: Annotated[
        int,
        "Maximum tokens of thinking, for models that think before they answer; then the answer"
        " begins. -1: no limit.",
        Field(ge=-1, lt=2**32),
    ]
    priority: Annotated[
        int,
        "Scheduling priority among waiting requests of the same caller. Lower values run first.",
        Field(ge=-(2**31), lt=2**31),
    ]


class TandemFields(TypedDict, total=False):
    """Over HTTP these stand in the object `tandem`."""

    query: Annotated[
        str, "Query for the document search. Default: the prompt's text, or the last message."
    ]
    documents: Annotated[
        int,
        "Maximum documents to retrieve on each side. 0: the service's own number.",
        Field(ge=0, le=MAX_DOCUMENTS),
    ]
    lost_cloud: Annotated[
        Literal["fail", "wait", "edge"],
        "What to do when the connection to the cloud cannot be restored: fail, wait for the cloud,"
        " or finish on the edge with unverified tokens.",
    ]
    no_memory: Annotated[
        bool,
        "Do not draft from what drafter and cloud remember of your earlier texts, and do not"
        " remember this one.",
    ]


class RequestFields(OpenAIFields, BodyFields, TandemFields, total=False):
    """The whole table."""


@dataclass(frozen=True, slots=True)
class RequestField:
    """One row. `hint` is its type with its limits, as pydantic reads it."""

    name: str
    hint: Any
    words: str
    default: Any

    @property
    def kind(self) -> Any:
        """`int`, `float`, `str`, `bool`, or a `Literal` of words."""
        return get_args(self.hint)[0]


def fields_of(table: type) -> list[RequestField]:
    """Return the rows of one of the tables above, in their order."""
    hints = get_type_hints(table, include_extras=True)
    return [
        RequestField(name, hint, words=get_args(hint)[1], default=_default_of(name))
        for name, hint in hints.items()
    ]


def given_fields(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a caller gave (not None) for fields of the table, for
    `GenerationRequest.with_fields`; other options are ignored. Raises InvalidArgument for a word
    that the field does not know."""
    names = RequestFields.__annotations__
    given = {name: options[name] for name in names if options.get(name) is not None}
    for name, known in _WORDS.items():
        if name in given:
            given[name] = _one_of(known, name, given[name])
    return given


_WORDS: Mapping[str, type[StrEnum]] = {"truncate": Truncate, "lost_cloud": LostCloud}
_EMPTY = GenerationRequest("")


def _default_of(name: str) -> Any:
    params = _EMPTY.params
    for part in (_EMPTY, params, params.sampling, params.processors):
        if hasattr(part, name):
            value = getattr(part, name)
            return value.value if isinstance(value, StrEnum) else value
    raise AttributeError(f"no request has {name!r}")


def _one_of(kind: type[Words], field: str, word: str) -> Words:
    try:
        return kind(word)
    except ValueError:
        known = ", ".join(kind)
        raise InvalidArgument(field, f"must be one of {known}, is {word!r}") from None
