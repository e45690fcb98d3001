"""The two servers whose prompts have log-probabilities, in their own words: what a request looks
like, and the rows that an answer holds.

Both are asked for token ids alone. Invariant: an answer is believed only if every row that was
asked for is there, with as many different tokens of the vocabulary as were asked for and numbers
that can be log-probabilities; anything else is `Nonsense`."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from tandem.core.errors import TandemError

TopLogprobs = tuple[tuple[int, float], ...]
"""The likeliest tokens of a position with their log-probabilities, likeliest first."""

ROUNDING = 1e-3
"""What rounding may lift a log-probability above 0, or a sum of probabilities above 1."""


TOKEN_ID = "token_id:"
LIKELIEST = {
    "temperature": 0.0,
    "top_p": 1.0,
    "top_k": 0,
    "min_p": 0.0,
    "repetition_penalty": 1.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
}
"""What is not said a server takes from the model's own settings."""


class Nonsense(TandemError):
    """An answer of the server that cannot be right."""


@dataclass(frozen=True, slots=True)
class Emitted:
    """A token that the server wrote, and the distribution that it was the likeliest of."""

    token_id: int
    top: TopLogprobs


@dataclass(frozen=True, slots=True)
class RowsWanted:
    """The rows of one text: after each of its last `rows` tokens the `count` likeliest tokens."""

    token_ids: tuple[int, ...]
    rows: int
    count: int


class Dialect(Protocol):
    """How one kind of server is asked."""

    name: str
    more_logprobs: str
    """The flag of the server that makes it tell of more tokens a position."""

    def path(self) -> str:
        """Return the path of the route that takes token ids."""

    def rows_body(self, wanted: RowsWanted, *, model: str, salt: str) -> dict[str, Any]:
        """Return the request for rows. `salt`: texts with another one share nothing."""

    def rows(self, answer: Any, wanted: RowsWanted) -> list[TopLogprobs]:
        """Return the rows of an answer. Raises Nonsense."""

    def stream_body(
        self, token_ids: Sequence[int], tokens: int, count: int, *, model: str, salt: str
    ) -> dict[str, Any]:
        """Return the request that streams the likeliest continuation, at most `tokens` of it."""

    def emitted(self, event: Any, count: int, before: int) -> list[Emitted]:
        """Return what one event of the stream adds to the `before` tokens of earlier ones."""


class Vllm:
    """vLLM's completions, which answer several texts at once.

    A row is what the server would write next, so a request for rows has a text for each: all but
    the last tokens of them are the same, and found in the prefix cache. The log-probabilities of
    a prompt would need one text only, but hold an entry for every token of it, and where the
    prefix cache was read these are memory that nobody wrote, of which some are no numbers: the
    server then answers with an error (seen with vLLM 0.32)."""

    name = "vLLM"
    more_logprobs = "--max-logprobs"

    def path(self) -> str:
        return "/v1/completions"

    def rows_body(self, wanted: RowsWanted, *, model: str, salt: str) -> dict[str, Any]:
        first = len(wanted.token_ids) - wanted.rows + 1
        texts = [
            list(wanted.token_ids[:length]) for length in range(first, len(wanted.token_ids) + 1)
        ]
        return self._body(texts, 1, wanted.count, model, salt)

    def rows(self, answer: Any, wanted: RowsWanted) -> list[TopLogprobs]:
        found = dict[int, TopLogprobs]()
        for choice in _list(answer, "choices"):
            (written,) = self._written(choice, wanted.count, 1)
            found[_id(_get(choice, "index"))] = written.top
        if sorted(found) != list(range(wanted.rows)):
            raise Nonsense(f"{len(found)} rows, not {wanted.rows}")
        return [found[row] for row in range(wanted.rows)]

    def stream_body(
        self, token_ids: Sequence[int], tokens: int, count: int, *, model: str, salt: str
    ) -> dict[str, Any]:
        return {**self._body([list(token_ids)], tokens, count, model, salt), "stream": True}

    def emitted(self, event: Any, count: int, before: int) -> list[Emitted]:
        choices = _list(event, "choices")
        if not choices:  # the last event may count tokens only
            return []
        choice = _first(choices)
        return self._written(choice, count, len(_list(choice, "token_ids", optional=True)))

    def _written(self, choice: Any, count: int, tokens: int) -> list[Emitted]:
        """Return the `tokens` tokens of a choice."""
        token_ids = _list(choice, "token_ids", optional=True)
        entries = _list(_get(choice, "logprobs"), "top_logprobs") if token_ids else []
        if len(token_ids) != tokens or len(entries) != tokens:
            raise Nonsense(f"{len(token_ids)} tokens with {len(entries)} rows, not {tokens}")
        return [
            Emitted(_id(token_id), _by_name(entry, count))
            for token_id, entry in zip(token_ids, entries, strict=True)
        ]

    def _body(
        self, texts: list[list[int]], tokens: int, count: int, model: str, salt: str
    ) -> dict[str, Any]:
        return {
            "model": model,
            "prompt": texts,
            "max_tokens": tokens,
            "ignore_eos": True,
            "logprobs": count,
            "return_token_ids": True,
            "return_tokens_as_token_ids": True,
            "cache_salt": salt,
            **LIKELIEST,
        }


class Sglang:
    """SGLang's own route, whose rows begin where they are asked for."""

    name = "SGLang"
    more_logprobs = "--max-top-logprobs-num"

    def path(self) -> str:
        return "/generate"

    def rows_body(self, wanted: RowsWanted, *, model: str, salt: str) -> dict[str, Any]:
        # The cache is used up to the position before the first row that is wanted.
        start = len(wanted.token_ids) - wanted.rows
        return self._body(wanted.token_ids, 1, wanted.count, salt) | {"logprob_start_len": start}

    def rows(self, answer: Any, wanted: RowsWanted) -> list[TopLogprobs]:
        about = _mapping(answer, "meta_info")
        before = list[TopLogprobs]()
        if wanted.rows > 1:
            # The first of them belongs to the token at the start itself.
            entries = _list(about, "input_top_logprobs")
            if len(entries) < wanted.rows:
                raise Nonsense(f"{len(entries)} rows, not {wanted.rows}")
            before = [_triples(entry, wanted.count) for entry in entries[1 - wanted.rows :]]
        last = _list(about, "output_top_logprobs")
        if len(last) != 1:
            raise Nonsense(f"{len(last)} tokens, not 1")
        return [*before, _triples(last[0], wanted.count)]

    def stream_body(
        self, token_ids: Sequence[int], tokens: int, count: int, *, model: str, salt: str
    ) -> dict[str, Any]:
        return {**self._body(token_ids, tokens, count, salt), "stream": True}

    def emitted(self, event: Any, count: int, before: int) -> list[Emitted]:
        # Every event has all tokens since the beginning.
        about = _mapping(event, "meta_info")
        token_ids = _list(event, "output_ids")
        entries = _list(about, "output_top_logprobs")
        if not before <= len(token_ids) == len(entries):
            raise Nonsense(f"{len(token_ids)} tokens with {len(entries)} rows, after {before}")
        return [
            Emitted(_id(token_id), _triples(entry, count))
            for token_id, entry in zip(token_ids[before:], entries[before:], strict=True)
        ]

    def _body(self, token_ids: Sequence[int], tokens: int, count: int, salt: str) -> dict[str, Any]:
        return {
            "input_ids": list(token_ids),
            "sampling_params": {"max_new_tokens": tokens, "temperature": 0.0, "ignore_eos": True},
            "return_logprob": True,
            "top_logprobs_num": count,
            "extra_key": salt,
        }


def _by_name(entry: Any, count: int) -> TopLogprobs:
    """Return the row of {"token_id:ID": log-probability}."""
    if not isinstance(entry, Mapping):
        raise Nonsense("a row has no log-probabilities")
    return _checked(
        ((_id(name.removeprefix(TOKEN_ID)), _number(logprob)) for name, logprob in entry.items()),
        count,
    )


def _triples(entry: Any, count: int) -> TopLogprobs:
    """Return the row of (log-probability, token id, text) triples."""
    if not isinstance(entry, Sequence) or isinstance(entry, str):
        raise Nonsense("a row has no log-probabilities")
    pairs = list[tuple[int, float]]()
    for triple in entry:
        if not isinstance(triple, Sequence) or len(triple) < 2:
            raise Nonsense("a row is no list of log-probabilities with tokens")
        pairs.append((_id(triple[1]), _number(triple[0])))
    return _checked(pairs, count)


def _checked(pairs: Iterable[tuple[int, float]], count: int) -> TopLogprobs:
    # A token may stand in a row twice: as the one that was written, and by its rank.
    top = sorted(dict(pairs).items(), key=lambda pair: (-pair[1], pair[0]))[:count]
    if len(top) < count:
        raise Nonsense(f"a row has {len(top)} tokens, not {count}")
    if math.fsum(math.exp(logprob) for _, logprob in top) > 1 + ROUNDING:
        raise Nonsense("the probabilities of a row add up to more than 1")
    return tuple((token_id, min(0.0, logprob)) for token_id, logprob in top)


def _get(entry: Any, key: str) -> Any:
    if not isinstance(entry, Mapping) or key not in entry:
        raise Nonsense(f"{key!r} is missing")
    return entry[key]


def _mapping(entry: Any, key: str) -> Mapping[str, Any]:
    found = _get(entry, key)
    if not isinstance(found, Mapping):
        raise Nonsense(f"{key!r} is no object")
    return found


def _list(entry: Any, key: str, *, optional: bool = False) -> Sequence[Any]:
    found = entry.get(key) if optional and isinstance(entry, Mapping) else _get(entry, key)
    if found is None and optional:
        return ()
    if not isinstance(found, list):
        raise Nonsense(f"{key!r} is no list")
    return found


def _first(entries: Sequence[Any]) -> Mapping[str, Any]:
    if not entries or not isinstance(entries[0], Mapping):
        raise Nonsense("there is no answer in it")
    return entries[0]


def _id(found: Any) -> int:
    """Return a token id, or the number of a text."""
    if isinstance(found, str) and found.isascii() and found.isdigit() and len(found) < 12:
        return int(found)
    if not isinstance(found, int) or isinstance(found, bool) or found < 0:
        raise Nonsense("a token is no number")
    return found


def _number(found: Any) -> float:
    if isinstance(found, bool) or not isinstance(found, (int, float)):
        raise Nonsense("a log-probability is no number")
    if math.isnan(found) or found > ROUNDING:
        raise Nonsense(f"{found} is no log-probability")
    return float(found)
