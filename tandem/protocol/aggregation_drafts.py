"""The draft queues of one side: its own drafts, and those that came from the other side.

A draft belongs to the text it was drawn after, which its prefix hash names; it counts only if that
is the committed text. So a draft of an abandoned text is never mistaken for a valid one, however
late it comes, and one that comes again changes nothing. Must not import asyncio, grpc, torch, time.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tandem.core.laws import Array
from tandem.core.prefix import PrefixHash, extend_prefix
from tandem.core.top_list import TopList
from tandem.protocol.aggregation_messages import SideDraftFrame
from tandem.protocol.decoding_messages import DecodingDraft
from tandem.protocol.prefixes import PrefixedTokens


@dataclass(frozen=True, slots=True)
class QueuedDraft:
    """A side's draft for `position`, drawn after the text that `prefix` names, in its side's
    `epoch`; `law` as far as it is known here."""

    position: int
    prefix: PrefixHash
    epoch: int
    token_id: int
    law: Array | TopList | None
    log_mass: float
    decode_s: float = 0.0


def decoded_draft(draft: DecodingDraft, epoch_offset: int) -> QueuedDraft:
    """A draft of this side's decoder, which counts its epochs from `epoch_offset` on."""
    return QueuedDraft(
        draft.base,
        draft.prefix,
        epoch_offset + draft.epoch,
        draft.token_id,
        draft.law,
        draft.log_mass,
        draft.cost.decode_s,
    )


def sent_draft(frame: SideDraftFrame) -> QueuedDraft:
    """A draft that the other side sent."""
    return QueuedDraft(
        frame.base,
        frame.prefix,
        frame.epoch,
        frame.token_id,
        frame.law,
        frame.log_mass,
        frame.decode_s,
    )


class OwnDrafts:
    """This side's drafts after the committed text, one after the other without a gap."""

    def __init__(self, committed: PrefixedTokens) -> None:
        self._committed = committed
        self._drafts: list[QueuedDraft] = []
        self._decided: dict[int, QueuedDraft] = {}

    def __iter__(self) -> Iterator[QueuedDraft]:
        return iter(self._drafts)

    def __len__(self) -> int:
        return len(self._drafts)

    @property
    def first(self) -> QueuedDraft | None:
        """The draft for the first position that is not committed."""
        return self._drafts[0] if self._drafts else None

    def add(self, draft: QueuedDraft) -> bool:
        """Queue it if it follows what is queued; if not, its decoder will draw it again."""
        position, prefix = len(self._committed), self._committed.prefix
        if self._drafts:
            last = self._drafts[-1]
            position, prefix = last.position + 1, extend_prefix(last.prefix, (last.token_id,))
        if (draft.position, draft.prefix) != (position, prefix):
            return False
        self._drafts.append(draft)
        return True

    def settle(self, token_id: int) -> QueuedDraft | None:
        """`token_id` takes the first position; returns the draft there was. Another one than the
        draft makes all that follow void."""
        if not self._drafts:
            return None
        first = self._drafts.pop(0)
        self._decided[first.position] = first
        if first.token_id != token_id:
            self._drafts.clear()
        return first

    def at(self, position: int, prefix: PrefixHash) -> QueuedDraft | None:
        """The draft for a position after a text, decided or not."""
        found = self._decided.get(position)
        if found is None:
            found = next((draft for draft in self._drafts if draft.position == position), None)
        return found if found is not None and found.prefix == prefix else None

    def forget_before(self, position: int) -> None:
        """The other side needs nothing more of what lies before."""
        for decided in [known for known in self._decided if known < position]:
            del self._decided[decided]

    def clear(self) -> None:
        self._drafts.clear()


class PeerDrafts:
    """The other side's drafts, of which the newest for each position is kept."""

    def __init__(self, committed: PrefixedTokens) -> None:
        self._committed = committed
        self._drafts: dict[int, QueuedDraft] = {}

    def __len__(self) -> int:
        return len(self._drafts)

    @property
    def first(self) -> QueuedDraft | None:
        """The draft for the first position that is not committed, if it is of this text."""
        found = self._drafts.get(len(self._committed))
        return found if found is not None and found.prefix == self._committed.prefix else None

    def add(self, draft: QueuedDraft) -> None:
        if draft.position >= len(self._committed):
            self._drafts[draft.position] = draft

    def settle(self, token_id: int) -> QueuedDraft | None:
        """As `OwnDrafts.settle`; drafts of a later epoch were drawn after the other side had
        learnt of the token, and stay."""
        first = self.first
        self._drafts.pop(len(self._committed), None)
        if first is not None and first.token_id != token_id:
            for draft in [each for each in self._drafts.values() if each.epoch <= first.epoch]:
                del self._drafts[draft.position]
        return first

    def clear(self) -> None:
        self._drafts.clear()
