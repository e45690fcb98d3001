"""The thinking that an answer may begin with, by its tokens: a budget for it, and a grammar that
holds for what follows it.

Invariant: what may follow is a function of the answer so far, as for every processor
(`tandem.core.processors`), so a budget is as exact as they are, on both ends."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tandem.core.processors import GrammarMask, Mask, Pending, Thinking


class ThinkingMask:
    """Implements `GrammarMask` for an answer that may think first."""

    def __init__(
        self,
        thinking: Thinking,
        vocabulary_size: int,
        grammar: GrammarMask | None = None,
        eos_token_ids: frozenset[int] = frozenset(),
    ) -> None:
        """Create the mask. `grammar` applies to what follows the thinking; with a grammar,
        `eos_token_ids` cannot end an answer that is still thinking."""
        self.vocabulary_size = vocabulary_size
        self._thinking = thinking
        self._grammar = grammar
        ends = () if grammar is None else eos_token_ids
        self._free = _allowing_all(vocabulary_size, but=ends)
        self._all = _allowing_all(vocabulary_size, but=())

    def allowed(self, answer: tuple[int, ...]) -> Mask | None:
        place = self._place(answer)
        if place.forced is not None:
            return self._with(None, place.forced)
        if place.thinks:
            return self._free
        if self._grammar is None:
            return self._all
        allowed = self._grammar.allowed(answer[place.rest :])
        return allowed if place.may_begin is None else self._with(allowed, place.may_begin)

    def forced(self, answer: tuple[int, ...]) -> int | None:
        place = self._place(answer)
        if place.forced is not None or place.thinks or place.may_begin is not None:
            return place.forced
        return None if self._grammar is None else self._grammar.forced(answer[place.rest :])

    def prepare(self, answers: Sequence[tuple[int, ...]]) -> Pending | None:
        if self._grammar is None:
            return None
        places = [(answer, self._place(answer)) for answer in answers]
        due = [
            answer[place.rest :]
            for answer, place in places
            if place.forced is None and not place.thinks
        ]
        return self._grammar.prepare(due) if due else None

    def _place(self, answer: tuple[int, ...]) -> _Place:
        thinking = self._thinking
        start = len(thinking.begin_ids)
        if answer[:start] != thinking.begin_ids:
            begins = thinking.begin_ids[: len(answer)] == answer
            return _Place(may_begin=thinking.begin_ids[len(answer)] if begins else None)
        try:
            end = answer.index(thinking.end_ids[0], start)
        except ValueError:
            spent = thinking.budget is not None and len(answer) - start >= thinking.budget
            return _Place(forced=thinking.end_ids[0]) if spent else _Place(thinks=True)
        # The model may end its thinking by itself, and begin its answer as it likes.
        closes = end - start == thinking.budget or self._grammar is not None
        rest = end + (len(thinking.end_ids) if closes else 1)
        if len(answer) < rest:
            return _Place(forced=thinking.end_ids[len(answer) - end])
        return _Place(rest=rest)

    def _with(self, allowed: Mask | None, token_id: int) -> Mask:
        """Return a copy of the mask that allows the token too."""
        more = np.zeros(self.vocabulary_size, np.bool_) if allowed is None else allowed.copy()
        more[token_id] = True
        return more


@dataclass(frozen=True, slots=True)
class _Place:
    """Where an answer stands: what must follow; else whether it thinks; else where the rest begins
    that is no thinking, and which token would begin, or go on to begin, the thinking."""

    forced: int | None = None
    thinks: bool = False
    rest: int = 0
    may_begin: int | None = None


def with_thinking(
    thinking: Thinking | None,
    grammar: GrammarMask | None,
    *,
    vocabulary_size: int,
    eos_token_ids: frozenset[int],
) -> GrammarMask | None:
    """Return the mask of a session whose answer may think first, or `grammar` itself if `thinking`
    is None."""
    if thinking is None:
        return grammar
    return ThinkingMask(thinking, vocabulary_size, grammar, eos_token_ids)


def _allowing_all(vocabulary_size: int, but: Sequence[int] | frozenset[int]) -> NDArray[np.bool_]:
    allowed = np.ones(vocabulary_size, np.bool_)
    allowed[list(but)] = False
    allowed.setflags(write=False)
    return allowed
