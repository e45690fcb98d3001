"""Messages for property tests: any fields at all, and such as honest ends send."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message
from hypothesis import strategies as st

from tandem.core.codecs import sparse_wire_probs, wire_probs
from tandem.core.probs import SamplingParams
from tandem.core.processors import Grammar, GrammarKind, Processors, Thinking
from tandem.core.prompt import Turn
from tandem.core.sparse_payload import SparsePayload
from tandem.specdec.messages import TokenLogprob, Work

VOCABULARY = 12


def _bits(bits: int, signed: bool = False) -> st.SearchStrategy[int]:
    """Small numbers and those at the ends of the range, mostly."""
    low, high = (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) if signed else (0, 2**bits - 1)
    ends = [low, low + 1, high - 1, high]
    return st.one_of(st.integers(0, 70), st.sampled_from(ends), st.integers(low, high))


_KIND = FieldDescriptor
_SCALARS: dict[int, st.SearchStrategy[Any]] = {
    **dict.fromkeys((_KIND.TYPE_UINT32, _KIND.TYPE_FIXED32), _bits(32)),
    **dict.fromkeys((_KIND.TYPE_UINT64, _KIND.TYPE_FIXED64), _bits(64)),
    **dict.fromkeys((_KIND.TYPE_INT32, _KIND.TYPE_SINT32), _bits(32, signed=True)),
    _KIND.TYPE_SINT64: _bits(64, signed=True),
    # An enumeration is open: any number comes through.
    _KIND.TYPE_ENUM: st.one_of(st.integers(0, 6), _bits(32, signed=True)),
    _KIND.TYPE_BOOL: st.booleans(),
    _KIND.TYPE_FLOAT: st.floats(width=32),
    _KIND.TYPE_DOUBLE: st.floats(),
    _KIND.TYPE_STRING: st.text(max_size=8),
    _KIND.TYPE_BYTES: st.binary(max_size=80),
}


def any_message(kind: type[Message]) -> st.SearchStrategy[Message]:
    """Some fields of a message with any values, protobuf's limits apart."""
    return _fields(kind.DESCRIPTOR).map(lambda fields: kind(**fields))


def _fields(descriptor: Any) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries(
        {}, optional={field.name: _value(field) for field in descriptor.fields}
    )


def _value(field: FieldDescriptor) -> st.SearchStrategy[Any]:
    message = field.message_type
    if message is not None:
        one: st.SearchStrategy[Any] = st.deferred(lambda: _fields(message))
    else:
        one = _SCALARS[field.type]
    return st.lists(one, max_size=4) if field.is_repeated else one


# What honest ends send.

uint32 = st.integers(0, 2**32 - 1)
uint64 = st.integers(0, 2**64 - 1)
heads = st.tuples(uint32, uint32, uint64)
token_ids = st.integers(0, VOCABULARY - 1)
float32s = st.floats(0, 1, width=32, exclude_min=True, allow_subnormal=False)
seconds = st.floats(0, 1e6, width=32)
log_masses = st.one_of(st.just(-float("inf")), st.floats(-1e3, 1e3))
samplings = st.builds(
    SamplingParams,
    temperature=st.floats(0, 4, width=32),
    top_k=st.integers(0, VOCABULARY),
    top_p=float32s,
    min_p=st.floats(0, 1, width=32),
    typical_p=float32s,
)
penalties = st.floats(-2, 2, width=32)
processors = st.builds(
    Processors,
    logit_bias=st.lists(st.tuples(uint32, penalties), max_size=3).map(tuple),
    presence_penalty=penalties,
    frequency_penalty=penalties,
    repetition_penalty=float32s,
    banned_token_ids=st.lists(uint32, max_size=3).map(tuple),
    allowed_token_ids=st.lists(uint32, max_size=3).map(tuple),
    grammar=st.none() | st.builds(Grammar, st.sampled_from(GrammarKind), st.text()),
    thinking=st.none()
    | st.builds(
        Thinking,
        end_ids=st.lists(uint32, max_size=3).map(tuple),
        begin_ids=st.lists(uint32, max_size=3).map(tuple),
        budget=st.none() | uint32,
    ),
)
works = st.builds(Work, seconds, seconds, uint32, uint32, uint32, uint32)
prompts = st.one_of(
    st.text(),
    st.lists(token_ids, min_size=1).map(tuple),
    st.lists(st.builds(Turn, st.text(), st.text()), min_size=1).map(tuple),
)


def tuples_of(
    items: st.SearchStrategy[Any], low: int = 0, high: int = 6
) -> st.SearchStrategy[tuple[Any, ...]]:
    return st.lists(items, min_size=low, max_size=high).map(tuple)


def _distribution(weights: list[int]) -> Any:
    probs = np.array(weights, np.float32)
    probs[0] += not probs.any()
    return probs / probs.sum()


def distributions(encoded: Callable[..., Any] = wire_probs) -> st.SearchStrategy[Any]:
    """As the other end reconstructs them; `encoded`: by what is on the wire."""
    weights = st.lists(st.integers(0, 9), min_size=VOCABULARY, max_size=VOCABULARY)
    return weights.map(lambda found: encoded(_distribution(found), "float32"))


sparse_distributions = distributions(sparse_wire_probs)


@st.composite
def sparse_payloads(draw: st.DrawFn) -> SparsePayload:
    probs = draw(distributions())
    top = draw(st.integers(0, VOCABULARY))
    ids = np.sort(np.argsort(-probs, kind="stable")[:top])
    ids = ids[probs[ids] > 0]
    rest = probs.copy()
    rest[ids] = 0
    tail = [int(token_id) for token_id in np.flatnonzero(rest)]
    drawn = draw(st.lists(st.sampled_from(tail), max_size=4)) if tail else []
    tail_ids = np.array(drawn, np.int64)
    return SparsePayload(
        ids.astype(np.int64), probs[ids], float(rest.sum()), tail_ids, probs[tail_ids]
    )


@st.composite
def logprobs(draw: st.DrawFn, count: int) -> tuple[TokenLogprob, ...]:
    value = st.floats(-50, 0, width=32)
    tops = draw(st.booleans())
    top = tuples_of(st.tuples(token_ids, value), 1, 5) if tops else st.just(())
    return tuple(draw(st.builds(TokenLogprob, value, top)) for _ in range(count))
