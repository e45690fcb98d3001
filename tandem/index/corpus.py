"""All documents in memory, changed by operations only. Pure: no files, no threads.

Invariants: every id means a stored content; a content without an id is forgotten; contents that are
equal are stored once, whatever they are called. Must not import grpc.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from tandem.index.documents import Content
from tandem.index.errors import FolderDamaged
from tandem.index.operations import Operation, Put


@dataclass(slots=True)
class Corpus:
    """Empty at first; `apply` changes it."""

    contents: dict[str, Content] = field(default_factory=dict)
    hash_of: dict[str, str] = field(default_factory=dict)
    ids_of: dict[str, dict[str, None]] = field(default_factory=dict)

    def apply(self, operations: Iterable[Operation]) -> tuple[list[Content], list[Content]]:
        """(contents that are new, contents that are forgotten). The operations count as one step:
        only what has no id after all of them is forgotten."""
        new: dict[str, Content] = {}
        released: dict[str, None] = {}
        for operation in operations:
            content_hash = self.hash_of.pop(operation.document_id, None)
            if content_hash is not None:
                del self.ids_of[content_hash][operation.document_id]
                released[content_hash] = None
            if isinstance(operation, Put):
                self._put(operation, new)
        gone = [self._forget(content_hash) for content_hash in released]
        forgotten = [content for content in gone if content is not None]
        return list(new.values()), forgotten

    def _put(self, operation: Put, new: dict[str, Content]) -> None:
        content_hash = operation.content_hash
        if content_hash not in self.contents:
            if operation.content is None:
                name = operation.document_id
                raise FolderDamaged(f"document {name!r} refers to a text that is not there")
            new[content_hash] = self.contents[content_hash] = operation.content
        self.hash_of[operation.document_id] = content_hash
        self.ids_of.setdefault(content_hash, {})[operation.document_id] = None

    def _forget(self, content_hash: str) -> Content | None:
        if self.ids_of[content_hash]:
            return None
        del self.ids_of[content_hash]
        return self.contents.pop(content_hash)

    def document_id(self, content_hash: str) -> str:
        """The oldest id of a content."""
        return next(iter(self.ids_of[content_hash]))

    def operations(self) -> Iterator[Put]:
        """What makes this corpus out of an empty one; each content is given with its first id."""
        given: set[str] = set()
        for document_id, content_hash in self.hash_of.items():
            content = None if content_hash in given else self.contents[content_hash]
            given.add(content_hash)
            yield Put(document_id, content_hash, content)
