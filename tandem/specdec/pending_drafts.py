"""The drafts that wait at the cloud."""

from __future__ import annotations

from collections import deque
from itertools import islice

from tandem.core.errors import InvalidArgument
from tandem.core.tokens import PrefixedTokens
from tandem.specdec.messages import Drafts
from tandem.specdec.rounds.payloads import proposals_of
from tandem.specdec.rules import Proposal


class PendingDrafts:
    """The chain of drafts that wait to be judged: a queue of proposals, oldest first, contiguous
    from the end of the committed text. The first `ready` of them may be judged."""

    def __init__(self, committed: PrefixedTokens, window: int, length_limit: int) -> None:
        """Start without drafts. `length_limit` is the most tokens of prompt and answer together."""
        self.ready = 0
        self._committed = committed
        self._window = window
        self._length_limit = length_limit
        self._drafts: deque[Proposal] = deque()
        self._token_ids: deque[int] = deque()

    def __len__(self) -> int:
        return len(self._drafts)

    @property
    def token_ids(self) -> tuple[int, ...]:
        return tuple(self._token_ids)

    def first_ready(self) -> tuple[Proposal, ...]:
        """Return the drafts that may be judged."""
        return tuple(islice(self._drafts, self.ready))

    def follows_text(self, draft: Drafts) -> bool:
        """Return whether a draft is live: its hash is that of the text up to its base, committed or
        waiting. Others come late, after a text that is gone."""
        after = draft.base - len(self._committed)
        if after > len(self._drafts):
            return False
        if after <= 0:
            return self._committed.prefix_at(draft.base) == draft.prefix_hash
        return self._committed.prefix_with(self.token_ids[:after]) == draft.prefix_hash

    def check(self, draft: Drafts) -> None:
        """Check that no more drafts wait than may. Raises InvalidArgument."""
        end = draft.base + len(draft.token_ids)
        if end > self._length_limit:
            raise InvalidArgument("token_ids", "drafts beyond max_tokens")
        if end - len(self._committed) > self._window:
            raise InvalidArgument("draft_length", "more drafts are waiting than the window allows")

    def add(self, draft: Drafts) -> bool:
        """Queue those of a live draft that are new. False where one of the others is not the token
        that is committed, or waits, at its position: then those after it are void."""
        for position, proposal in enumerate(proposals_of(draft), start=draft.base):
            after = position - len(self._committed)
            if after >= len(self._drafts):
                self._drafts.append(proposal)
                self._token_ids.append(proposal.token_ids[0])
                continue
            known = self._committed[position] if after < 0 else self._token_ids[after]
            if known != proposal.token_ids[0]:
                return False
        return True

    def make_ready(self, end: int) -> None:
        """Note that the drafts before position `end` may be judged."""
        self.ready = max(self.ready, end - len(self._committed))

    def pass_by(self, token_id: int) -> None:
        """Drop the first draft, for whose position this token is committed, and unless it is that
        token all others too."""
        if not self._drafts:
            return
        self._drafts.popleft()
        if self._token_ids.popleft() != token_id:
            self.clear()
        self.ready = max(0, self.ready - 1)

    def clear(self) -> None:
        """Drop all drafts: none of them will be judged."""
        self._drafts.clear()
        self._token_ids.clear()
        self.ready = 0
