"""A text that the caller expects the answer to be much like (OpenAI's predicted outputs), as a
proposer of drafts: what follows in it is drafted without a model, as prompt lookup does from the
prompt. Pure.

Where the answer departs from the prediction, a proposer has to find its place again, as a diff
would: where the last tokens of the answer recur in the prediction, nearest after the place that was
left. The longer the match, the more is proposed before the target has confirmed any of it.

Invariant: what is proposed at a position is decided by what stands before it, never by the random
numbers of that position. So it is a draft like any other, from a distribution that is certain of
it, and every acceptance rule stays exact."""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tandem.core.tokens import check_token_ids

SURE_MATCH = 3
"""Tokens in a row after which the answer is believed to follow the prediction."""
_AHEAD = {1: 4, 2: 16}
"""Tokens that are proposed after a match of fewer, until the target has confirmed a sure one. One
token often recurs by chance."""
_NEAR = 64
"""How far from the place that was left a single token is a match: beyond it is chance."""
_MOST_TRIED = 48
"""Places that are looked at in each direction, of a token that is everywhere."""


class PredictedText:
    """The prediction's tokens, with an index of where each stands. Making it takes time in
    proportion to its length."""

    def __init__(self, token_ids: Sequence[int], vocabulary_size: int) -> None:
        """Index the prediction. Raises InvalidArgument("prediction") for an id that is not below
        `vocabulary_size`."""
        check_token_ids(token_ids, vocabulary_size, "prediction")
        self.token_ids = tuple(token_ids)
        self.vocabulary_size = vocabulary_size
        self._places: dict[int, list[int]] = defaultdict(list)
        for place, token_id in enumerate(self.token_ids):
            self._places[token_id].append(place)

    def __len__(self) -> int:
        return len(self.token_ids)

    def find(self, tail: Sequence[int], left: int) -> tuple[int | None, int]:
        """Return the place after the best match of the end of an answer, and its length up to
        `SURE_MATCH`; None and 0 where there is none.

        Args:
            tail: the last tokens of the answer, at least one.
            left: the place at which the answer left the prediction. Of matches of one length the
                nearest after it is taken, then the nearest before."""
        places = self._places.get(tail[-1], ())
        first = bisect_left(places, left)
        after = places[first : first + _MOST_TRIED]
        before = reversed(places[max(0, first - _MOST_TRIED) : first])
        best: tuple[int | None, int] = None, 0
        for place in (*after, *before):
            length = self._matched(tail, place)
            near = left <= place < left + _NEAR
            if length > best[1] and (length > 1 or near):
                best = place + 1, length
            if length == SURE_MATCH:
                break
        return best

    def _matched(self, tail: Sequence[int], place: int) -> int:
        """Return how many tokens at the end of `tail` equal those that end at `place`, at most
        SURE_MATCH."""
        longest = min(SURE_MATCH, len(tail), place + 1)
        length = 1
        while length < longest and self.token_ids[place - length] == tail[-1 - length]:
            length += 1
        return length


@dataclass(frozen=True, slots=True)
class Alignment:
    """Where in the prediction an answer is. `place`: of the token that is proposed next; None where
    the answer is elsewhere. `matched`: how many of the answer's last tokens stand before it.
    `left`: the last place at which the answer surely followed. `limit`: nothing is proposed from
    there on until more is confirmed; None for no limit. `tail`: the answer's last tokens."""

    text: PredictedText
    place: int | None = 0
    matched: int = SURE_MATCH
    left: int = 0
    limit: int | None = None
    tail: tuple[int, ...] = ()

    @property
    def proposed(self) -> int | None:
        """The token that follows in the prediction; None where the answer is elsewhere."""
        if self.place is None or self.place >= len(self.text):
            return None
        if self.limit is not None and self.place >= self.limit:
            return None
        return self.text.token_ids[self.place]

    @property
    def is_last(self) -> bool:
        """True if nothing is proposed after the proposed token before that is confirmed."""
        return self.place is not None and self.place + 1 == self.limit

    def after(self, token_ids: Iterable[int], *, confirmed: bool) -> Alignment:
        """Return the alignment once these tokens follow. `confirmed`: whether they are in the
        answer; otherwise they are drafts of it, which lift no limit."""
        aligned = self
        for token_id in token_ids:
            aligned = aligned._after(token_id, confirmed)
        return aligned

    def _after(self, token_id: int, confirmed: bool) -> Alignment:
        tail = (*self.tail[1 - SURE_MATCH :], token_id)
        place = self.place
        if place is None or place >= len(self.text) or self.text.token_ids[place] != token_id:
            place, matched = self.text.find(tail, self.left)
            ahead = _AHEAD.get(matched)
            limit = None if place is None or ahead is None else place + ahead
            return Alignment(self.text, place, matched, self.left, limit, tail)
        place, matched = place + 1, self.matched + 1
        sure = confirmed and matched >= SURE_MATCH
        return Alignment(
            self.text,
            place,
            matched,
            left=place if sure else self.left,
            limit=None if sure else self.limit,
            tail=tail,
        )
