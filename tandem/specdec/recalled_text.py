"""Drafts from what was said before: in a tenant's earlier texts, in the prompt, and in the answer
so far, what followed the longest match of the text's end is proposed to follow again. Pure.

Of several places with the longest match each has a vote: the token that most of them have is
proposed, and its share of them counts. How much a match of some length is worth is measured: at
each token of an answer it is seen whether the proposal was right, drafted or not (`RecallTally`).
Share and rate give the chance of a token; a token is proposed while its chance is at least that of
the draft model's tokens, and the chance that all drafts since the last confirmed token stand is not
small. So the longer the match and the better it did, the longer the drafts, and where nothing is
surer than the draft model, that model drafts.

Invariant: what is proposed at a position is decided by the text before it and by what happened to
earlier positions, never by the random numbers of that position. So it is a draft like any other,
from a distribution that is certain of it, and every acceptance rule stays exact."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from tandem.specdec.text_memory import (
    LONGEST_MATCH,
    OVERLAP,
    Block,
    LiveText,
    Tokens,
    find,
    make_text,
)

LEAST_CHANCE = 0.5
"""Of a token that is proposed at all: a draft that is wrong more often than right costs more than
the step it saves."""
SUREST_MODEL = 0.85
"""Chance from which on a token is proposed whatever the draft model's acceptance rate."""
LEAST_REACHED = 0.3
"""Chance that all unconfirmed drafts up to a token stand: below it they are a waste of the target's
rows."""

_LENGTHS = (3, 5, 8, 16, LONGEST_MATCH)
"""Matches are told apart by which of these they reach."""
_PRIOR_RATES = (0.45, 0.65, 0.78, 0.88, 0.93)
_PRIOR_WEIGHT = 8.0
"""Tokens that the prior counts for."""
_KEEP = 0.98
"""What a token counts for beside the next one with a match of like length: the last fifty
decide."""


class RecallTally:
    """How often matches of each length were right, of late; carried from answer to answer."""

    def __init__(self) -> None:
        self._expected = [_PRIOR_WEIGHT] * len(_LENGTHS)
        self._right = [_PRIOR_WEIGHT * rate for rate in _PRIOR_RATES]

    def chance(self, length: int, share: float) -> float:
        """Return the chance of a token that has this share of the places of a match."""
        row = _row(length)
        return min(1.0, share * self._right[row] / self._expected[row])

    def add(self, length: int, share: float, right: bool) -> None:
        """Record whether a token with this share came."""
        row = _row(length)
        self._expected[row] = _KEEP * self._expected[row] + share
        self._right[row] = _KEEP * self._right[row] + right


def _row(length: int) -> int:
    row = 0
    while row + 1 < len(_LENGTHS) and length >= _LENGTHS[row + 1]:
        row += 1
    return row


@dataclass(frozen=True, slots=True)
class Recollection:
    """What one answer may be drafted from. `live` grows with the answer."""

    blocks: tuple[Block, ...]
    vocabulary_size: int
    tally: RecallTally
    live: LiveText = field(default_factory=LiveText)
    prompt_tail: tuple[int, ...] = ()

    @classmethod
    def of(
        cls,
        prompt_ids: Sequence[int],
        vocabulary_size: int,
        remembered: Sequence[Block] = (),
        tally: RecallTally | None = None,
    ) -> Recollection:
        """Return what an answer to a prompt may be drafted from: the `remembered` texts and the
        prompt, which is sorted here, in some 0.2 µs a token."""
        live = LiveText()
        live.extend(prompt_ids[-OVERLAP:])
        blocks = (*remembered, Block([make_text(prompt_ids)]))
        tail = tuple(prompt_ids[-LONGEST_MATCH:])
        return cls(blocks, vocabulary_size, tally or RecallTally(), live, tail)

    def begin(self) -> Recall:
        """Return what is recalled after the prompt."""
        return Recall(self, self.prompt_tail)._found()


@dataclass(frozen=True, slots=True)
class Recall:
    """What is recalled at one place of an answer. `tail`: the text's last tokens. `length`,
    `places`: as of `Match`, empty where nothing is. `votes`: how many of the
    places have each token. `best`: the one that most have, with its `share` of them and its
    `chance`. `reached`: the chance that all unconfirmed tokens before stand. `bar`: the chance from
    which on a token is proposed."""

    source: Recollection
    tail: tuple[int, ...]
    length: int = 0
    places: tuple[tuple[Tokens, int], ...] = ()
    votes: Mapping[int, int] = field(default_factory=dict)
    best: int | None = None
    share: float = 0.0
    chance: float = 0.0
    reached: float = 1.0
    bar: float = LEAST_CHANCE

    @property
    def proposed(self) -> int | None:
        """The token that is proposed next; None where nothing is sure enough."""
        if self.chance < self.bar or self.reached * self.chance < LEAST_REACHED:
            return None
        return self.best

    @property
    def branches(self) -> tuple[tuple[int, float], ...]:
        """Every token that the places have, with its chance, likeliest first: for trees, which try
        several. Nothing where all of them together are not sure enough."""
        tally = self.source.tally
        one_of_them = tally.chance(self.length, 1.0) if self.votes else 0.0
        if one_of_them < self.bar or self.reached * one_of_them < LEAST_REACHED:
            return ()
        count = sum(self.votes.values())
        most_first = sorted(self.votes.items(), key=lambda vote: -vote[1])  # of equals the newest
        return tuple(
            (token, tally.chance(self.length, votes / count)) for token, votes in most_first
        )

    def surer_than(self, acceptance_rate: float) -> Recall:
        """Return the same where a token is proposed if it is as sure as a draft model's that are
        accepted at this rate."""
        bar = min(SUREST_MODEL, max(LEAST_CHANCE, acceptance_rate))
        return self if bar == self.bar else replace(self, bar=bar)

    def after(self, token_ids: Iterable[int], *, confirmed: bool) -> Recall:
        """Return what is recalled once these tokens follow. `confirmed`: they are the answer's, and
        are said once each: they count for what is recalled later. Drafts of it else."""
        recall = self
        for token_id in token_ids:
            recall = recall._after(token_id, confirmed)
        return recall

    def _after(self, token_id: int, confirmed: bool) -> Recall:
        if confirmed:
            self._learn(token_id)
            reached = 1.0
        else:
            reached = self.reached * (self.chance if token_id == self.best else self.bar)
        followed = tuple(
            (tokens, place + 1)
            for tokens, place in self.places
            if place < len(tokens) and tokens[place] == token_id
        )
        tail = (*self.tail[1 - LONGEST_MATCH :], token_id)
        step = Recall(self.source, tail, reached=reached, bar=self.bar)
        if followed:  # those with the longest match still have it
            step = step._voted(min(self.length + 1, LONGEST_MATCH), followed)
        return step if step.best is not None else step._found()

    def _learn(self, token_id: int) -> None:
        if self.best is not None:
            self.source.tally.add(self.length, self.share, self.best == token_id)
        self.source.live.extend((token_id,))

    def _found(self) -> Recall:
        match = find(self.source.blocks, self.tail, self.source.live)
        return self if match is None else self._voted(match.length, match.places)

    def _voted(self, length: int, places: tuple[tuple[Tokens, int], ...]) -> Recall:
        """Return the same place of the answer with what these places say of it."""
        votes: dict[int, int] = {}
        for tokens, place in places:
            if place < len(tokens) and (follower := tokens[place]) >= 0:
                votes[follower] = votes.get(follower, 0) + 1
        if not votes:
            return self
        best = max(votes, key=votes.__getitem__)  # of equals the newest
        share = votes[best] / sum(votes.values())
        return replace(
            self,
            length=length,
            places=places,
            votes=votes,
            best=best,
            share=share,
            chance=self.source.tally.chance(length, share),
        )
