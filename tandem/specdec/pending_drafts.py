"""The drafts that wait at the cloud."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tandem.core.errors import InvalidArgument
from tandem.core.tokens import PrefixedTokens
from tandem.specdec.messages import Drafts
from tandem.specdec.rounds.payloads import proposals_of
from tandem.specdec.rules import Proposal


class PendingDrafts:
    """The chain of drafts that wait to be judged: a queue of proposals, oldest first, contiguous
    from the end of the committed text. The first `ready` of them may be judged. Those of the edge
    take the place of the cloud's `own`: all are of one or of the other."""

    def __init__(self, committed: PrefixedTokens, window: int, length_limit: int) -> None:
        """Start without drafts. `length_limit` is the most tokens of prompt and answer together."""
        self.ready = 0
        self.own = False
        """Whether those that wait are the cloud's own."""
        self._committed = committed
        self._window = window
        self._length_limit = length_limit
        self._drafts: list[Proposal] = []
        self._token_ids: list[int] = []

    def __len__(self) -> int:
        return len(self._drafts)

    @property
    def token_ids(self) -> tuple[int, ...]:
        return tuple(self._token_ids)

    def first_ready(self) -> tuple[Proposal, ...]:
        """Return the drafts that may be judged."""
        return tuple(self._drafts[: self.ready])

    def follows_text(self, draft: Drafts) -> bool:
        """Return whether a draft is live: its hash is that of the text up to its base, committed or
        waiting. Others come late, after a text that is gone."""
        after = draft.base - self._committed.end
        if after > (0 if self.own else len(self._drafts)):
            return False
        if after <= 0:
            return self._committed.prefix_at(draft.base) == draft.prefix_hash
        return self._committed.prefix_with(self.token_ids[:after]) == draft.prefix_hash

    def add(self, draft: Drafts, *, ready: bool) -> bool:
        """Queue those of a live draft that are new; `ready`: all up to its last may be judged.
        False where one of the others is not the token that is committed, or waits, at its position:
        then those after it are void. Raises InvalidArgument, before anything changes, if more would
        wait than may."""
        end = draft.base + len(draft.token_ids)
        committed = self._committed.end
        if end > self._length_limit:
            raise InvalidArgument("token_ids", "drafts beyond max_tokens")
        if end - committed > self._window:
            raise InvalidArgument("draft_length", "more drafts are waiting than the window allows")
        self.drop_own()
        after = max(0, draft.base - committed)
        known = (*self._committed.since(draft.base), *self._token_ids[after:])
        count = min(len(known), len(draft.token_ids))
        if known[:count] != draft.token_ids[:count]:
            return False
        self._drafts += proposals_of(draft)[count:]
        self._token_ids += draft.token_ids[count:]
        if ready:
            self.ready = max(self.ready, end - committed)
        return True

    def add_own(self, proposals: Iterable[Proposal]) -> None:
        """Queue drafts that the cloud made itself, unless some of the edge's wait."""
        if self._drafts and not self.own:
            return
        self.clear()
        self._drafts.extend(proposals)
        self._token_ids.extend(proposal.token_ids[0] for proposal in self._drafts)
        self.ready = len(self._drafts)
        self.own = True

    def drop_own(self) -> None:
        """Drop the drafts that the cloud made itself."""
        if self.own:
            self.clear()

    def pass_by(self, token_ids: Sequence[int]) -> None:
        """Drop the first drafts, for whose positions these tokens are committed, and unless they
        are those tokens all others too."""
        if not self._drafts:
            return
        count = len(token_ids)
        if self._token_ids[:count] != [*token_ids]:
            self.clear()
            return
        del self._drafts[:count], self._token_ids[:count]
        self.ready = max(0, self.ready - count)

    def clear(self) -> None:
        """Drop all drafts: none of them will be judged."""
        self._drafts.clear()
        self._token_ids.clear()
        self.ready = 0
        self.own = False
