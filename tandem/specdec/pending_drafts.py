"""The drafts that wait for the cloud's judgement. Invariant: oldest first, contiguous from the end
of the committed text; the first `ready` of them may be judged."""

from __future__ import annotations

from collections import deque
from itertools import islice

from tandem.core.errors import InvalidArgument
from tandem.core.tokens import PrefixedTokens
from tandem.specdec.edge_frame_checks import proposals
from tandem.specdec.messages import Draft
from tandem.specdec.rules import Proposal


class PendingDrafts:
    """A queue of proposals, of which a first part may be judged."""

    def __init__(self, committed: PrefixedTokens, window: int, length_limit: int) -> None:
        """`length_limit`: tokens of prompt and answer together."""
        self.ready = 0
        self.next_base = len(committed)
        """Where the next drafts of this epoch begin at the earliest."""
        self._committed = committed
        self._window = window
        self._length_limit = length_limit
        self._drafts: deque[Proposal] = deque()

    def __len__(self) -> int:
        return len(self._drafts)

    @property
    def token_ids(self) -> tuple[int, ...]:
        return tuple(proposal.token_ids[0] for proposal in self._drafts)

    def first_ready(self) -> tuple[Proposal, ...]:
        """Those that may be judged."""
        return tuple(islice(self._drafts, self.ready))

    def check(self, draft: Draft) -> None:
        """Drafts of one epoch are contiguous, and start no later than the committed text ends.
        Raises InvalidArgument or PrefixMismatch."""
        due = len(self._committed) + len(self._drafts)
        if draft.base < self.next_base:
            raise InvalidArgument("base", f"{draft.base} repeats a round; {self.next_base} is due")
        if draft.base > due:
            raise InvalidArgument("base", f"{draft.base} leaves a gap after {due}")
        self._committed.check(draft.base, draft.prefix, self.token_ids)
        end = draft.base + len(draft.token_ids)
        if end > self._length_limit:
            raise InvalidArgument("token_ids", "drafts beyond max_tokens")
        if end - len(self._committed) > self._window:
            raise InvalidArgument("draft_length", "more drafts are waiting than the window allows")

    def add(self, draft: Draft) -> int | None:
        """Queue what is not committed yet. The first position at which another token is committed
        than was drafted, if there is one: then nothing of the draft counts."""
        for position, proposal in enumerate(proposals(draft), start=draft.base):
            if position >= len(self._committed):
                self._drafts.append(proposal)
            elif self._committed[position] != proposal.token_ids[0]:
                return position
        self.next_base = draft.base + len(draft.token_ids)
        return None

    def make_ready(self) -> None:
        """All that wait may be judged."""
        self.ready = len(self._drafts)

    def accept(self, count: int) -> None:
        """The first ones are committed."""
        self.ready -= count
        for _ in range(count):
            self._drafts.popleft()

    def clear(self) -> None:
        """None of them will be judged."""
        self._drafts.clear()
        self.ready = 0

    def begin_epoch(self, base: int) -> None:
        """Discard all; the next ones begin at `base`."""
        self.clear()
        self.next_base = base
