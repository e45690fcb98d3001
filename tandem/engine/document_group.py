"""One answer after several documents: a sequence for each, all fed the same tokens.

Every sequence begins with its own document, whose keys and values it shares with whoever else reads
that document. Invariant: after the documents all sequences are equally long; `length` counts from
there, so that a rollback is one absolute length. Belongs to the engine's thread. Must not import
torch.
"""

from __future__ import annotations

from collections.abc import Sequence

from tandem.engine.base import Engine, Segment, Session
from tandem.engine.batch import check_length


class DocumentGroup:
    """Sequences of up to `capacity` tokens after their documents; without documents a single one
    that begins empty."""

    def __init__(
        self, engine: Engine, documents: Sequence[Session], capacity: int, lead: int = 0
    ) -> None:
        """`documents` hold each its whole document and nothing else; they are only read. `lead`
        tokens at their beginning are the first ones of the text that follows, and count there."""
        self._starts = [document.length - lead for document in documents] or [0]
        self._sessions: list[Session] = []
        try:
            for document, start in zip(documents, self._starts, strict=False):
                self._sessions.append(engine.fork(document, document.length, start + capacity))
            if not documents:
                self._sessions.append(engine.open(capacity))
        except BaseException:
            self.close()
            raise

    @property
    def length(self) -> int:
        """Tokens after each document whose keys and values are kept."""
        return self._sessions[0].length - self._starts[0]

    def rollback(self, length: int) -> None:
        """Forget every token after the first `length` that follow the documents.

        Raises InvalidArgument("length") unless 0 <= length <= self.length.
        """
        check_length(length, self.length)
        for session, start in zip(self._sessions, self._starts, strict=True):
            session.rollback(start + length)

    def segments(self, token_ids: tuple[int, ...]) -> list[Segment]:
        """Feed the same tokens to all, for the logits after the last of them."""
        return [Segment(session, token_ids, wanted=1) for session in self._sessions]

    def close(self) -> None:
        """Free all but the documents. Closing twice is allowed."""
        for session in self._sessions:
            session.close()


def group_kv_tokens(documents: int, capacity: int) -> int:
    """Tokens whose keys and values a group holds beside its documents'."""
    return max(1, documents) * capacity
