"""Documents that have come in and are not stored yet, bounded in number and bytes.

Invariant: who reads the stream waits while the bounds are met, so gRPC's flow control makes the
caller wait too. Used on the event loop only.
"""

import asyncio

from tandem.services.retriever.ingestion import DOCUMENTS_PER_COMMIT, Incoming

MAX_BYTES = 4 * 2**20
"""One document more may come in beyond this."""


class ReadAhead:
    """Filled by one task, emptied by another."""

    def __init__(self) -> None:
        self._changed = asyncio.Condition()
        self._documents: list[Incoming] = []
        self._error: Exception | None = None
        self._ended = False

    async def put(self, incoming: Incoming) -> None:
        """Add a document, once there is room for it."""
        async with self._changed:
            await self._changed.wait_for(self._has_room)
            self._documents.append(incoming)
            self._changed.notify_all()

    async def end(self, error: Exception | None = None) -> None:
        """Note that nothing more will come; `error` is raised once what came before was taken."""
        async with self._changed:
            self._ended = True
            self._error = error
            self._changed.notify_all()

    async def batch(self) -> list[Incoming]:
        """Return all there is, at least one; empty at the end."""
        async with self._changed:
            await self._changed.wait_for(lambda: self._documents or self._ended)
            batch, self._documents = self._documents, []
            self._changed.notify_all()
        if not batch and self._error is not None:
            raise self._error
        return batch

    def _has_room(self) -> bool:
        size = sum(len(document.content) for document in self._documents)
        return len(self._documents) < DOCUMENTS_PER_COMMIT and size < MAX_BYTES
