"""Drafts from what was said before: in a tenant's earlier texts, in the prompt, and in the answer
so far, what followed the longest match of the text's end is proposed to follow again. Pure.

Of several places with the longest match each has a vote: the token that most of them have is
proposed, and its share of them counts. How much a match of some length is worth is measured: at
each token of an answer it is seen whether the proposal was right, drafted or not (`HitRates`).
Share and rate give the chance of a token.

Invariant: what is proposed at a position is decided by the text before it and by what happened to
earlier positions, never by the random numbers of that position. So it is a draft like any other,
from a distribution that is certain of it, and every acceptance rule stays exact."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tandem.core.frozen import frozen
from tandem.core.ngram_index import LONGEST_MATCH, MOST_PLACES, NgramIndex, Tokens
from tandem.specdec.proposers import DraftSource, Proposed

_LENGTHS = (3, 5, 8, 16, LONGEST_MATCH)
"""Matches are told apart by which of these they reach."""
_PRIOR_RATES = (0.45, 0.65, 0.78, 0.88, 0.93)
_PRIOR_WEIGHT = 8.0
"""Tokens that the prior counts for."""
_KEEP = 0.98
"""What a token counts for beside the next one with a match of about its length: the last fifty
decide."""


class HitRates:
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
    return max(0, sum(length >= least for least in _LENGTHS) - 1)


class NgramTexts:
    """What one answer may be drafted from: its `own` text, which grows, and `earlier` ones."""

    def __init__(
        self,
        prompt_ids: Sequence[int],
        vocabulary_size: int,
        earlier: NgramIndex | None = None,
        hit_rates: HitRates | None = None,
    ) -> None:
        """Index the prompt, in some 0.2 µs a token.

        Args:
            prompt_ids: of the answer.
            vocabulary_size: of the drafts.
            earlier: the tenant's texts; None: the answer is drafted from itself alone.
            hit_rates: of the tenant's matches so far."""
        self.own = NgramIndex()
        self.own.extend(prompt_ids)
        self.earlier = NgramIndex() if earlier is None else earlier
        self.hit_rates = hit_rates or HitRates()
        self.vocabulary_size = vocabulary_size

    def begin(self) -> NgramProposer:
        """Return what is proposed at the end of the text."""
        return NgramProposer(self, tuple(self.own.tokens[-LONGEST_MATCH:])).found()

    def find(self, tail: Tokens) -> tuple[int, tuple[tuple[Tokens, int], ...]]:
        """Return the length of the longest match of the end of a text, and the places that follow
        it, each with the tokens that it is a place of; the newest first."""
        matches = [(index.tokens, index.find(tail)) for index in (self.own, self.earlier)]
        longest = max(length for _, (length, _) in matches)
        found = [
            (tokens, place)
            for tokens, (length, places) in matches
            if length == longest
            for place in places
        ]
        return longest, tuple(found[:MOST_PLACES])


@frozen
class NgramProposer:
    """A `Proposer` from texts. `tail`: the last tokens before it. `length`: of their longest match
    that is followed, and `places`, where that stands; `drafts`: what comes there."""

    texts: NgramTexts
    tail: tuple[int, ...]
    length: int = 0
    places: tuple[tuple[Tokens, int], ...] = ()
    drafts: tuple[Proposed, ...] = ()

    def propose(self) -> tuple[Proposed, ...]:
        """Return every token that the places have, with its chance, likeliest first."""
        return self.drafts

    def commit(self, token_id: int) -> NgramProposer:
        """Return what is proposed once a token of the answer follows. It is part of the text, and
        shows whether the match was right."""
        if self.drafts:
            best = self.drafts[0]
            self.texts.hit_rates.add(self.length, best.share, best.token_id == token_id)
        self.texts.own.extend((token_id,))
        return self.after(token_id)

    def after(self, token_id: int) -> NgramProposer:
        """Return what is proposed once a draft follows."""
        followed = tuple(
            (tokens, place + 1)
            for tokens, place in self.places
            if place < len(tokens) and tokens[place] == token_id
        )
        step = NgramProposer(self.texts, (*self.tail[1 - LONGEST_MATCH :], token_id))
        if followed:  # those with the longest match still have it
            step = step._voted(min(self.length + 1, LONGEST_MATCH), followed)
        return step if step.drafts else step.found()

    def found(self) -> NgramProposer:
        """Return the same with the longest match of all that the texts have."""
        return self._voted(*self.texts.find(self.tail))

    def _voted(self, length: int, places: tuple[tuple[Tokens, int], ...]) -> NgramProposer:
        votes: dict[int, int] = {}
        for tokens, place in places:
            if place < len(tokens) and (follower := tokens[place]) >= 0:
                votes[follower] = votes.get(follower, 0) + 1
        count = sum(votes.values())
        most_first = sorted(votes, key=lambda token_id: -votes[token_id])  # of equals the newest
        drafts = tuple(
            Proposed(
                token_id,
                DraftSource.MEMORY,
                chance=self.texts.hit_rates.chance(length, votes[token_id] / count),
                share=votes[token_id] / count,
            )
            for token_id in most_first
        )
        return replace(self, length=length, places=places, drafts=drafts) if drafts else self
