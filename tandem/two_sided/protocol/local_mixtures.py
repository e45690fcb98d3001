"""A side's distribution as a mixture of its documents' distributions, position by position.
Relevances come with the opening or from the aggregator, or are estimated from the text at every
n-th position. Invariant: the distribution of a position is a function of the text before it,
whatever was drafted and rolled back in between."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tandem.two_sided.protocol.mixture import document_weights, log_mass


@dataclass(frozen=True, slots=True)
class LocalMixture:
    """The documents' weights [n] in the side's distribution, and the side's h; one plain sequence
    has (1,) and -inf."""

    weights: tuple[float, ...]
    log_mass: float

    @classmethod
    def of(cls, relevances: Sequence[float]) -> "LocalMixture":
        """Raises InvalidArgument("relevances")."""
        if not relevances:
            return cls((1.0,), -math.inf)
        return cls(tuple(document_weights(relevances).tolist()), log_mass(relevances))

    def left(self, log_left: Sequence[float]) -> tuple[NDArray[np.float64], float]:
        """The weights [n] where processors leave this much (log) of each document's mass, -inf for
        nothing, and how much of all: each document counts by its relevance times what is left of
        it, so that the mixture of what is left is what is left of the mixture. Raises
        InvalidArgument where nothing is."""
        with np.errstate(divide="ignore"):
            scores = np.log(np.array(self.weights)) + np.array(log_left)
        return document_weights(scores), log_mass(scores)


@dataclass(frozen=True, slots=True)
class RelevanceEstimate:
    """A request for relevances: from `position` on, for the text that ends with `answer_ids`."""

    position: int
    answer_ids: tuple[int, ...]


class LocalMixtures:
    """`start`: the answer's first position; `every`: positions between estimates, 0 for none."""

    def __init__(self, relevances: Sequence[float], start: int, every: int = 0) -> None:
        self.current = LocalMixture.of(relevances)
        self._start = start
        self._every = every if relevances else 0
        self._changes: list[tuple[int, LocalMixture]] = []
        self._estimates: dict[int, tuple[tuple[int, ...], LocalMixture]] = {}

    def at(self, answer_ids: Sequence[int]) -> tuple[LocalMixture | None, int | None]:
        """The mixture after these tokens of the answer, None while its estimate is missing; and the
        position up to which it holds, if any."""
        position = self._start + len(answer_ids)
        if self._every:
            return self._estimated_at(tuple(answer_ids))
        mixture = self.current
        for base, changed in self._changes:
            if position < base:
                return mixture, base
            mixture = changed
        return mixture, None

    def missing(self, answer_ids: Sequence[int]) -> RelevanceEstimate | None:
        """The estimate without which no draft can follow these tokens."""
        mixture, _ = self.at(answer_ids)
        if mixture is not None:
            return None
        length = len(answer_ids) // self._every * self._every
        return RelevanceEstimate(self._start + length, tuple(answer_ids[:length]))

    def estimated(self, estimate: RelevanceEstimate, relevances: Sequence[float]) -> None:
        """The outcome of an estimate; harmless if the text is another one by now."""
        self._estimates[estimate.position] = (estimate.answer_ids, LocalMixture.of(relevances))

    def change(self, base: int, mixture: LocalMixture) -> None:
        """Use this mixture from `base` on."""
        self._changes = [*(it for it in self._changes if it[0] < base), (base, mixture)]

    def forget_before(self, length: int) -> None:
        """Positions before `length` are committed."""
        while self._changes and self._changes[0][0] <= length:
            self.current = self._changes.pop(0)[1]
        for position in [known for known in self._estimates if known < length - self._every]:
            del self._estimates[position]

    def _estimated_at(self, answer_ids: tuple[int, ...]) -> tuple[LocalMixture | None, int]:
        length = len(answer_ids) // self._every * self._every
        until = self._start + length + self._every
        if not length:
            return self.current, until
        text, mixture = self._estimates.get(self._start + length, (None, None))
        return mixture if text == answer_ids[:length] else None, until
