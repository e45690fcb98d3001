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

from collections.abc import Sequence

from tandem.core.frozen import frozen
from tandem.core.ngram_index import NgramIndex
from tandem.core.tokens import check_token_ids
from tandem.specdec.proposers import Proposed

SURE_MATCH = 3
"""Tokens in a row after which the answer is believed to follow the prediction."""
_AHEAD = {1: 4, 2: 16}
"""Tokens that are proposed after a match of fewer, until the target has confirmed a sure one. One
token often recurs by chance."""
_NEAR = 64
"""How far from the place that was left a single token is a match: beyond it is chance."""


class PredictedText:
    """The prediction's tokens, found by the last tokens of an answer. Making it takes time in
    proportion to its length."""

    def __init__(self, token_ids: Sequence[int], vocabulary_size: int) -> None:
        """Index the prediction. Raises InvalidArgument("prediction") for an id that is not below
        `vocabulary_size`."""
        check_token_ids(token_ids, vocabulary_size, "prediction")
        self.token_ids = tuple(token_ids)
        self.vocabulary_size = vocabulary_size
        self._index = NgramIndex((SURE_MATCH - 1, SURE_MATCH))
        self._index.extend(token_ids)

    def __len__(self) -> int:
        return len(self.token_ids)

    def begin(self) -> PredictionProposer:
        """Return what is proposed at the beginning of the answer: the beginning of the text."""
        return PredictionProposer(self)

    def find(self, tail: Sequence[int], left: int) -> tuple[int | None, int]:
        """Return the place after the best match of the end of an answer, and its length up to
        `SURE_MATCH`; None and 0 where there is none.

        Args:
            tail: the last tokens of the answer, at least one.
            left: the place at which the answer left the prediction. Of matches of one length the
                nearest after it is taken, then the nearest before."""
        near = range(left + 1, min(left + _NEAR, len(self)) + 1)
        far = self._index.places(tail)
        after = sorted(place for place in far if place > left)
        before = sorted((place for place in far if place <= left), reverse=True)
        best: tuple[int | None, int] = None, 0
        for place in (*near, *after, *before):
            length = min(SURE_MATCH, self._index.matched(tail, place))
            if length > best[1]:
                best = place, length
            if length == SURE_MATCH:
                break
        return best


@frozen
class PredictionProposer:
    """A `Proposer` from where in the prediction an answer is. `place`: of the token that is
    proposed next; None where the answer is elsewhere. `matched`: how many of the answer's last
    tokens stand before it. `last_sure`: the last place at which the answer surely followed.
    `limit`: nothing is proposed from there on until more is confirmed; None for no limit. `tail`:
    the answer's last tokens."""

    text: PredictedText
    place: int | None = 0
    matched: int = SURE_MATCH
    last_sure: int = 0
    limit: int | None = None
    tail: tuple[int, ...] = ()

    def propose(self) -> tuple[Proposed, ...]:
        """Return the token that follows in the prediction; none where the answer is elsewhere."""
        place = self.place
        if place is None or place >= len(self.text):
            return ()
        if self.limit is not None and place >= self.limit:
            return ()
        is_last = place + 1 == self.limit
        return (Proposed(self.text.token_ids[place], is_last=is_last, predicted=True),)

    def after(self, token_id: int, *, confirmed: bool) -> PredictionProposer:
        """Return what is proposed once a token follows. Only a `confirmed` one lifts a limit."""
        tail = (*self.tail[1 - SURE_MATCH :], token_id)
        place = self.place
        if place is None or place >= len(self.text) or self.text.token_ids[place] != token_id:
            place, matched = self.text.find(tail, self.last_sure)
            ahead = _AHEAD.get(matched)
            limit = None if place is None or ahead is None else place + ahead
            return PredictionProposer(self.text, place, matched, self.last_sure, limit, tail)
        place, matched = place + 1, self.matched + 1
        sure = confirmed and matched >= SURE_MATCH
        return PredictionProposer(
            self.text,
            place,
            matched,
            last_sure=place if sure else self.last_sure,
            limit=None if sure else self.limit,
            tail=tail,
        )
