"""One side's drafts that wait to be committed. A draft counts only if the text it was drawn after,
which its prefix hash names, is the committed text; so drafts may come late or twice."""

from collections.abc import Iterator

from tandem.core.tokens import PrefixedTokens, PrefixHash, extend_prefix
from tandem.two_sided.protocol.messages import SideDraftFrame


class DraftQueue:
    """The newest draft for each position, from the first on that has not been forgotten."""

    def __init__(self, committed: PrefixedTokens) -> None:
        self._committed = committed
        self._drafts: dict[int, SideDraftFrame] = {}

    def __iter__(self) -> Iterator[SideDraftFrame]:
        """Yield the drafts that follow the committed text and each other, without a gap."""
        position = len(self._committed)
        prefix = self._committed.prefix
        while (draft := self.at(position, prefix)) is not None:
            yield draft
            position += 1
            prefix = extend_prefix(prefix, (draft.token_id,))

    @property
    def first(self) -> SideDraftFrame | None:
        """The draft for the first position that is not committed, if it is of this text."""
        return self.at(len(self._committed), self._committed.prefix)

    def at(self, position: int, prefix: PrefixHash) -> SideDraftFrame | None:
        """Return the draft for a position after a text, committed or not."""
        draft = self._drafts.get(position)
        return draft if draft is not None and draft.prefix_hash == prefix else None

    def add(self, draft: SideDraftFrame) -> None:
        """Keep it if its position is not committed."""
        if draft.base >= len(self._committed):
            self._drafts[draft.base] = draft

    def append(self, draft: SideDraftFrame) -> bool:
        """Keep it if it follows the last draft of this text; return whether it does."""
        text = [each.token_id for each in self]
        place = len(self._committed) + len(text)
        follows = (draft.base, draft.prefix_hash) == (place, self._committed.prefix_with(text))
        if follows:
            self._drafts[draft.base] = draft
        return follows

    def forget_before(self, position: int) -> None:
        """Forget what is committed and before `position`."""
        end = min(position, len(self._committed))
        for passed in [known for known in self._drafts if known < end]:
            del self._drafts[passed]

    def clear(self) -> None:
        """Forget what is not committed."""
        for waiting in [known for known in self._drafts if known >= len(self._committed)]:
            del self._drafts[waiting]
