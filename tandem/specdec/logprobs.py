"""Log-probabilities of committed tokens, from the cloud that knows their distributions to the edge.
Invariant: they are of the distribution that was sampled from, and decide nothing."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from tandem.core.errors import InvalidArgument, ProtocolError
from tandem.core.probs import Array
from tandem.specdec.messages import GenerationParams, TokenLogprob, Tokens, Verdict
from tandem.specdec.presets import Preset
from tandem.specdec.rules import TargetProbs, probs_of

MAX_TOP_LOGPROBS = 5
"""Likeliest tokens that go with a token; each is 8 bytes on the way to the edge."""


def check_logprobs_available(preset: Preset) -> None:
    """InvalidArgument("logprobs") for a preset that lets the edge draw tokens itself."""
    if not preset.cloud_draws:
        where = "at the edge, from a part of the target's distribution"
        raise InvalidArgument("logprobs", f"the preset '{preset.name}' draws tokens {where}")


def check_top_logprobs(logprobs: bool, top: int) -> None:
    """InvalidArgument("top_logprobs") for more than are sent, or without `logprobs`."""
    if top > MAX_TOP_LOGPROBS:
        raise InvalidArgument("top_logprobs", f"at most {MAX_TOP_LOGPROBS}, is {top}")
    if top and not logprobs:
        raise InvalidArgument("top_logprobs", "only beside logprobs")


class LogprobsRecorder:
    """The cloud's side: notes each token that it commits and its `top` likeliest ones, if asked."""

    def __init__(self, asked: bool, top: int = 0) -> None:
        self._asked = asked
        self._top = top
        self._noted: list[TokenLogprob] = []

    def note(self, distribution: TargetProbs, token_id: int) -> None:
        if self._asked:
            probs = probs_of(distribution)
            likeliest = _likeliest(probs, self._top)
            self._noted.append(TokenLogprob(math.log(probs[token_id]), likeliest))

    def take(self) -> tuple[TokenLogprob, ...]:
        """Of the tokens committed since the last time, in order; they leave with one message."""
        noted, self._noted = tuple(self._noted), []
        return noted


class LogprobsBuffer:
    """The edge's side: what messages said of positions, until these are committed."""

    def __init__(self, asked: bool) -> None:
        self._asked = asked
        self._by_position: dict[int, TokenLogprob] = {}

    def take(self, message: Verdict | Tokens) -> None:
        """Of the tokens that `message`, which was checked, commits from its base on."""
        self._by_position.clear()  # what came before is committed, or past the end
        self._by_position.update(enumerate(message.logprobs, start=message.base))

    def of(self, position: int, count: int) -> tuple[TokenLogprob, ...]:
        """Of `count` tokens from `position` on; NaN where no distribution of the cloud is known."""
        if not self._asked:
            return ()
        unknown = TokenLogprob(math.nan)
        return tuple(self._by_position.get(position + step, unknown) for step in range(count))


def check_logprobs(
    logprobs: Sequence[TokenLogprob],
    tokens: int,
    asked: GenerationParams,
    vocabulary_size: int,
    message: str,
) -> None:
    """ProtocolError unless there are logprobs, and likeliest tokens in them, just as asked for."""
    if len(logprobs) != (tokens if asked.logprobs else 0):
        raise ProtocolError(f"{tokens} tokens", f"{message} with {len(logprobs)} logprobs")
    values = [each.logprob for each in logprobs]
    for each in logprobs:
        if bool(each.top) != bool(asked.top_logprobs) or len(each.top) > asked.top_logprobs:
            state = f"{asked.top_logprobs} top_logprobs asked for"
            raise ProtocolError(state, f"{message} with {len(each.top)}")
        if not all(0 <= token_id < vocabulary_size for token_id, _ in each.top):
            state = f"vocabulary of {vocabulary_size}"
            raise ProtocolError(state, message, "has another token in top_logprobs")
        values += [value for _, value in each.top]
    if not all(-math.inf < value <= 0 for value in values):  # False for NaN as well
        raise ProtocolError("logprobs", message, "one is above 0 or not finite")


def _likeliest(probs: Array, count: int) -> tuple[tuple[int, float], ...]:
    """At most `count` tokens with a probability, best first, equal ones by their ids."""
    if not count:
        return ()
    count = min(count, len(probs))
    least = np.partition(probs, -count)[-count]
    (ids,) = np.nonzero((probs >= least) & (probs > 0))
    best = ids[np.argsort(-probs[ids], kind="stable")][:count]
    return tuple((int(token_id), math.log(probs[token_id])) for token_id in best)
