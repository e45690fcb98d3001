"""Proposers of drafts that need no model, in order: the first that is sure enough says what comes
next, and the draft model, if there is one, says the rest. Pure.

To add one, name it in `DraftSource`, write its `Proposer`, and give its `Source` to the
`AnswerTexts` of an answer (`edge.py`, `cloud.py`), at its place in the order. A grammar's is put
before them in `tandem/runtime/forced_drafts.py`; the model is asked last, in
`tandem/runtime/session_jobs.py`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from enum import StrEnum
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


class DraftSource(StrEnum):
    """Who proposed a draft."""

    MODEL = "model"
    GRAMMAR = "grammar"
    """No other token may follow."""
    PREDICTION = "prediction"
    """It stands in the text that the caller expects."""
    MEMORY = "memory"
    """It stands in the prompt, the answer so far or an earlier text."""

    @property
    def is_text(self) -> bool:
        """True if it is a text that the answer may depart from."""
        return self in (DraftSource.PREDICTION, DraftSource.MEMORY)


@frozen
class Proposed:
    """A token that may come next, and who says so. `chance`: that it does. `share`: of the places
    that the proposer found. `is_last`: nothing is proposed after it before it is confirmed."""

    token_id: int
    source: DraftSource
    chance: float = 1.0
    share: float = 1.0
    is_last: bool = False


class Proposer(Protocol):
    """Proposes what follows one context. It does not change: a task on another thread goes on from
    the one that it was given."""

    def propose(self) -> tuple[Proposed, ...]:
        """Return the tokens that may come next, likeliest first; none where nothing is known. They
        depend on the text before alone, never on the random numbers of the position."""

    def after(self, token_id: int) -> Proposer:
        """Return what is proposed once a draft follows. It changes nothing."""

    def commit(self, token_id: int) -> Proposer:
        """Return what is proposed once a token of the answer follows. Each is said once, on the
        answer's thread: the source may learn from it."""


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

    def after(self, *token_ids: int) -> TextDrafts:
        """Return what is proposed once these drafts follow."""
        texts = self
        for token_id in token_ids:
            drafts = [draft for each in texts.proposers for draft in each.propose()[:1]]
            chances = [draft.chance for draft in drafts if draft.token_id == token_id]
            reached = texts.reached * max(chances, default=texts.bar)
            proposers = tuple(each.after(token_id) for each in texts.proposers)
            texts = replace(texts, proposers=proposers, reached=reached)
        return texts

    def commit(self, *token_ids: int) -> TextDrafts:
        """Return what is proposed once these tokens of the answer follow; see `Proposer.commit`."""
        proposers = self.proposers
        for token_id in token_ids:
            proposers = tuple(each.commit(token_id) for each in proposers)
        return replace(self, proposers=proposers, reached=1.0)

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
            texts = texts.after(draft.token_id)
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
        self._committed = self._committed.commit(*token_ids)
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
            self._ahead = ahead.after(*in_flight[known:])
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
