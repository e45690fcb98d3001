"""How much each of a side's documents counts, position by position.

Relevances are those of the opening; or what the aggregator tells, from a position on; or estimated
anew from the text at every n-th position of the answer. Invariant: an estimate belongs to the text
it was made from, so the law of a position is a function of the text before it, whatever was drafted
and taken back meanwhile. Must not import asyncio, grpc, torch or time.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from tandem.core.aggregation import document_weights, log_mass


@dataclass(frozen=True, slots=True)
class Shares:
    """The documents' shares [n] in the side's law, and the side's h; one plain sequence has (1,)
    and -inf."""

    weights: tuple[float, ...]
    log_mass: float

    @classmethod
    def of(cls, relevances: Sequence[float]) -> Shares:
        """Raises InvalidArgument("relevances")."""
        if not relevances:
            return cls((1.0,), -math.inf)
        return cls(tuple(document_weights(relevances).tolist()), log_mass(relevances))


@dataclass(frozen=True, slots=True)
class Estimate:
    """Relevances that are wanted: for the text that ends with these tokens of the answer, from
    `position` on."""

    position: int
    answer_ids: tuple[int, ...]


class DocumentShares:
    """`start`: the answer's first position; `every`: positions from one estimate to the next, 0
    for none."""

    def __init__(self, relevances: Sequence[float], start: int, every: int = 0) -> None:
        self.current = Shares.of(relevances)
        self._start = start
        self._every = every if relevances else 0
        self._told: list[tuple[int, Shares]] = []
        self._estimates: dict[int, tuple[tuple[int, ...], Shares]] = {}

    def at(self, answer_ids: Sequence[int]) -> tuple[Shares | None, int | None]:
        """The shares after these tokens of the answer, None while their estimate is missing; and
        the position up to which they hold, if there is one."""
        position = self._start + len(answer_ids)
        if self._every:
            return self._estimated_at(tuple(answer_ids), position)
        shares = self.current
        for base, changed in self._told:
            if position < base:
                return shares, base
            shares = changed
        return shares, None

    def wanted(self, answer_ids: Sequence[int]) -> Estimate | None:
        """What must be estimated before a draft can follow these tokens."""
        shares, _ = self.at(answer_ids)
        if shares is not None:
            return None
        length = len(answer_ids) // self._every * self._every
        return Estimate(self._start + length, tuple(answer_ids[:length]))

    def estimated(self, estimate: Estimate, relevances: Sequence[float]) -> None:
        """The outcome of an estimate; of another text than there is by then it does no harm."""
        self._estimates[estimate.position] = (estimate.answer_ids, Shares.of(relevances))

    def told(self, base: int, shares: Shares) -> None:
        """From `base` on these count."""
        earlier = [change for change in self._told if change[0] < base]
        self._told = [*earlier, (base, shares)]

    def settled(self, length: int) -> None:
        """Forget the shares of positions before `length`."""
        while self._told and self._told[0][0] <= length:
            self.current = self._told.pop(0)[1]
        for position in [known for known in self._estimates if known < length - self._every]:
            del self._estimates[position]

    def _estimated_at(
        self, answer_ids: tuple[int, ...], position: int
    ) -> tuple[Shares | None, int]:
        length = len(answer_ids) // self._every * self._every
        until = self._start + length + self._every
        if not length:
            return self.current, until
        text, shares = self._estimates.get(self._start + length, (None, None))
        return shares if text == answer_ids[:length] else None, until
