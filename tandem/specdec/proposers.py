"""Sources of drafts that need no model, in order: the first that is sure enough says what comes
next, and the draft model, if there is one, says the rest. Pure.

To add one, write its `Proposer`, and give its `Source` to the `AnswerTexts` of an answer
(`edge.py`, `cloud_drafting.py`), at its place in the order. A grammar's is put before them in
`tandem/runtime/forced_drafts.py`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from tandem.core.frozen import frozen
from tandem.core.probs import one_hot

LEAST_CHANCE = 0.5
"""Of a token that is proposed at all: a draft that is wrong more often than right costs more than
the step it saves."""
SUREST_MODEL = 0.85
"""Chance from which on a token is proposed, however often the draft model's tokens are accepted."""
LEAST_REACHED = 0.3
"""Chance that all unconfirmed drafts up to a token stand: below it they are a waste of the target's
rows."""


@frozen
class Proposed:
    """A token that may come next. `chance`: that it does. `share`: of the places that the proposer
    found. `is_last`: nothing is proposed after it before it is confirmed. `predicted`: it stands in
    the caller's prediction; `remembered`: in what was said before, so that the controller leaves it
    out of what it measures of the draft model."""

    token_id: int
    chance: float = 1.0
    share: float = 1.0
    is_last: bool = False
    predicted: bool = False
    remembered: bool = False

    @property
    def from_text(self) -> bool:
        """True if it stands in a text."""
        return self.predicted or self.remembered


class Proposer(Protocol):
    """Proposes what follows one context. It does not change: a task on another thread goes on from
    the one that it was given."""

    def propose(self) -> tuple[Proposed, ...]:
        """Return the tokens that may come next, likeliest first; none where nothing is known. They
        depend on the text before alone, never on the random numbers of the position."""

    def after(self, token_id: int, *, confirmed: bool) -> Proposer:
        """Return what is proposed once a token follows. `confirmed`: it is the answer's, and is
        said once; a draft else."""


class Source(Protocol):
    """What one answer may be drafted from."""

    @property
    def vocabulary_size(self) -> int: ...

    def begin(self) -> Proposer:
        """Return what is proposed after the prompt."""


@frozen
class TextDrafts:
    """What the `proposers` say after one context, best source first. `bar`: the chance from which
    on a token is proposed. `reached`: the chance that all unconfirmed tokens before stand."""

    proposers: tuple[Proposer, ...] = ()
    vocabulary_size: int = 0
    bar: float = LEAST_CHANCE
    reached: float = 1.0

    @property
    def proposed(self) -> Proposed | None:
        """The next draft; None where the draft model, if there is one, is to say it."""
        for proposer in self.proposers:
            drafts = proposer.propose()
            if drafts and self._is_sure(drafts[0].chance):
                return drafts[0]
        return None

    @property
    def branches(self) -> tuple[Proposed, ...]:
        """The next drafts for a tree, likeliest first: several where a source goes on in several
        ways, and all of them together are sure enough."""
        for proposer in self.proposers:
            drafts = proposer.propose()
            if drafts and self._is_sure(min(1.0, sum(draft.chance for draft in drafts))):
                return drafts
        return ()

    def probs(self, token_id: int) -> NDArray[np.float32]:
        """Return the distribution [V] from which a token is proposed: certain of it."""
        return one_hot(self.vocabulary_size, token_id)

    def after(self, token_ids: Iterable[int], *, confirmed: bool) -> TextDrafts:
        """Return what is proposed once these tokens follow. `confirmed`: they are the answer's, and
        are said once; drafts of it else."""
        texts = self
        for token_id in token_ids:
            texts = texts._after(token_id, confirmed)
        return texts

    def _after(self, token_id: int, confirmed: bool) -> TextDrafts:
        reached = 1.0
        if not confirmed:
            drafts = [draft for each in self.proposers for draft in each.propose()[:1]]
            chances = [draft.chance for draft in drafts if draft.token_id == token_id]
            reached = self.reached * max(chances, default=self.bar)
        proposers = tuple(each.after(token_id, confirmed=confirmed) for each in self.proposers)
        return replace(self, proposers=proposers, reached=reached)

    def surer_than(self, acceptance_rate: float) -> TextDrafts:
        """Return the same, with nothing that is less sure than a draft model's tokens, which are
        accepted at this rate."""
        if not self.proposers:
            return self
        bar = min(SUREST_MODEL, max(LEAST_CHANCE, acceptance_rate))
        return self if bar == self.bar else replace(self, bar=bar)

    def however_sure(self) -> TextDrafts:
        """Return the same for who weighs chances himself: any token is proposed, while it is not
        unlikely that all before it stand."""
        return replace(self, bar=0.0)

    def row(self, most: int) -> list[Proposed]:
        """Return the tokens in a row that are proposed, `most` at most."""
        texts = self
        found = list[Proposed]()
        while len(found) < most and (draft := texts.proposed) is not None:
            found.append(draft)
            if draft.is_last:
                break
            texts = texts.after((draft.token_id,), confirmed=False)
        return found

    def _is_sure(self, chance: float) -> bool:
        return chance >= 1 or (chance >= self.bar and self.reached * chance >= LEAST_REACHED)


NO_TEXTS = TextDrafts()
"""Nothing to draft from."""


class AnswerTexts:
    """What is proposed for one answer as it grows. Drafts in flight are followed once each."""

    def __init__(self, *sources: Source | None) -> None:
        """Begin after the prompt. `sources`: the best first; None is none."""
        there = [source for source in sources if source is not None]
        self.on = bool(there)
        """Whether there is anything to draft from."""
        self._committed = NO_TEXTS
        if there:
            proposers = tuple(source.begin() for source in there)
            self._committed = TextDrafts(proposers, there[0].vocabulary_size)
        self._forget_ahead()

    def _forget_ahead(self) -> None:
        self._in_flight: tuple[int, ...] = ()
        self._ahead = self._committed
        self._counted = (0, 0)  # how many were looked for, and found

    def commit(self, token_ids: Sequence[int]) -> None:
        """Note tokens of the answer."""
        if not self.on:
            return
        self._committed = self._committed.after(token_ids, confirmed=True)
        self._forget_ahead()

    def after(self, in_flight: tuple[int, ...], acceptance_rate: float) -> TextDrafts:
        """Return what is proposed after the committed text and these drafts. `acceptance_rate`: of
        the draft model's tokens."""
        known = len(self._in_flight)
        if in_flight[:known] != self._in_flight:
            self._forget_ahead()
            known = 0
        if self.on and known < len(in_flight):
            ahead = self._ahead.surer_than(acceptance_rate)
            self._ahead = ahead.after(in_flight[known:], confirmed=False)
            self._in_flight = in_flight
            self._counted = (0, 0)
        return self._ahead.surer_than(acceptance_rate)

    def count(self, in_flight: tuple[int, ...], acceptance_rate: float, most: int) -> int:
        """Return how many tokens in a row are proposed after them, `most` at most."""
        texts = self.after(in_flight, acceptance_rate)
        looked_for, count = self._counted
        if most > looked_for == count:
            count = len(texts.row(most))
            self._counted = most, count
        return min(count, most)
