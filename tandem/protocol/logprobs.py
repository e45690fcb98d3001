"""Log-probabilities of committed tokens, from the cloud that knows their laws to the edge.

They are of the law that was sampled from. Invariant: they say how likely a token was and decide
nothing. Must not import asyncio, grpc, torch or time.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from tandem.core.errors import InvalidArgument, ProtocolError
from tandem.policy.presets import Preset
from tandem.protocol.messages import Tokens, Verdict
from tandem.protocol.rules import TargetLaw, law_of


def check_tells_logprobs(preset: Preset) -> None:
    """InvalidArgument("logprobs") for a preset that lets the edge draw tokens itself."""
    if not preset.cloud_draws:
        why = (
            f"the preset '{preset.name}' draws tokens at the edge, from a part of the target's law"
        )
        raise InvalidArgument("logprobs", why)


class Telling:
    """The cloud's side: notes each token that it commits, if the session asked for that."""

    def __init__(self, asked: bool) -> None:
        self._asked = asked
        self._noted: list[float] = []

    def note(self, law: TargetLaw, token_id: int) -> None:
        if self._asked:
            self._noted.append(math.log(law_of(law)[token_id]))

    def take(self) -> tuple[float, ...]:
        """Of the tokens committed since the last time, in order; they leave with one message."""
        noted, self._noted = tuple(self._noted), []
        return noted


class Told:
    """The edge's side: what messages said of positions, until these are committed."""

    def __init__(self, asked: bool) -> None:
        self._asked = asked
        self._by_position: dict[int, float] = {}

    def take(self, message: Verdict | Tokens) -> None:
        """Of the tokens that `message`, which was checked, commits from its base on."""
        self._by_position.clear()  # all that was told before is committed, or past the end
        self._by_position.update(enumerate(message.logprobs, start=message.base))

    def of(self, position: int, count: int) -> tuple[float, ...]:
        """Of `count` tokens from `position` on; NaN for those that no law of the cloud's made."""
        if not self._asked:
            return ()
        return tuple(self._by_position.get(position + step, math.nan) for step in range(count))


def check_logprobs(logprobs: Sequence[float], tokens: int, asked: bool, message: str) -> None:
    """ProtocolError unless there is one for each token where they were asked for, else none."""
    if len(logprobs) != (tokens if asked else 0):
        raise ProtocolError(f"{tokens} tokens", f"{message} with {len(logprobs)} logprobs")
    if not all(-math.inf < logprob <= 0 for logprob in logprobs):  # False for NaN as well
        raise ProtocolError("logprobs", message, "one is above 0 or not finite")
