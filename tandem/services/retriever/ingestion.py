"""Documents put together from messages, and what became of each.

Invariants: no more than one document's content is held while it comes in, and never more than
`MAX_DOCUMENT_BYTES`; every number gets answers, exactly one of them the last.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain

from tandem.core.errors import InvalidArgument
from tandem.index.document_index import DocumentIndex
from tandem.index.extraction import Format, Refusal, check_size
from tandem.index.extractor import Extractor
from tandem.index.names import MAX_NAME_BYTES, clean_name, shown
from tandem.index.owners import (
    NO_DOCUMENT_QUOTA,
    OPERATORS,
    Collection,
    DocumentQuota,
    DocumentQuotaExceeded,
)
from tandem.index.records import Document, Outcome
from tandem.services.retriever.conversion import answer_of, format_from_proto
from tandem_api.retriever.v1 import retriever_pb2 as pb

Leaving = Callable[[list[str], str], None]
"""Told, before it happens, of which ids, of which owner, the texts will go."""

DOCUMENTS_PER_COMMIT = 64
"""Written and synced together; a file of JSON lines may hold many more."""
LETTERS_PER_COMMIT = 4 * 2**20


@dataclass(frozen=True, slots=True)
class Incoming:
    """A whole document as it was sent; `refused` says why its content was not kept."""

    number: int
    id: str
    title: str
    format: Format
    content: bytes
    collection: Collection = OPERATORS
    quota: DocumentQuota = NO_DOCUMENT_QUOTA
    """What the message says of the owner's; the retriever's own holds where that is nothing."""
    refused: str = ""


class Intake:
    """Joins the messages of one stream; see `take`."""

    def __init__(self) -> None:
        self._open: Incoming | None = None
        self._parts: list[bytes] = []
        self._size = 0
        self._refused = ""

    @property
    def in_the_middle(self) -> bool:
        return self._open is not None

    def take(self, message: pb.IngestRequest) -> Incoming | None:
        """The document that this message completes. InvalidArgument for one out of order."""
        if self._open is None:
            self._open = Incoming(
                number=message.number,
                id=message.id,
                title=message.title,
                format=format_from_proto(message.format),
                content=b"",
                collection=Collection.of(message.owner, message.shared),
                quota=DocumentQuota(message.max_documents, message.max_bytes),
            )
        elif message.number != self._open.number:
            why = f"{message.number} came before the end of {self._open.number}"
            raise InvalidArgument("number", why)
        self._keep(message.content)
        if message.more:
            return None
        incoming = replace(self._open, content=b"".join(self._parts), refused=self._refused)
        self._open, self._parts, self._size, self._refused = None, [], 0, ""
        return incoming

    def _keep(self, content: bytes) -> None:
        self._size += len(content)
        # JSON lines are bounded as a whole here; a line of them is when it is read.
        try:
            check_size(self._size)
            self._parts.append(content)
        except InvalidArgument as error:
            self._refused, self._parts = str(error), []


@dataclass(frozen=True, slots=True)
class Found:
    """One document of a number, or why there is none; `last` of its number. `document` is None for
    a file without documents."""

    number: int
    document: Document | Refusal | None
    last: bool
    collection: Collection = OPERATORS
    quota: DocumentQuota = NO_DOCUMENT_QUOTA


def groups_of(batch: Iterable[Incoming], extractor: Extractor) -> Iterator[list[Found]]:
    """What is to be stored together: of one owner with one quota, bounded in number and, but for
    one document, in letters. Each
    step reads files, which may take long; it blocks. Raises Unavailable as `extractor` does."""
    group: list[Found] = []
    letters = 0
    for found in chain.from_iterable(_found(incoming, extractor) for incoming in batch):
        if group and _owner_of(group[0]) != _owner_of(found):
            yield group
            group, letters = [], 0
        group.append(found)
        letters += len(found.document.text) if isinstance(found.document, Document) else 0
        if len(group) == DOCUMENTS_PER_COMMIT or letters >= LETTERS_PER_COMMIT:
            yield group
            group, letters = [], 0
    if group:
        yield group


def commit(
    index: DocumentIndex,
    group: Sequence[Found],
    leaving: Leaving,
    owner_quota: DocumentQuota = NO_DOCUMENT_QUOTA,
) -> list[pb.IngestResponse]:
    """Add a group of `groups_of`, durably; blocks. `leaving` is told the ids whose texts will go,
    and their owner. `owner_quota` holds where the group says nothing. Where the whole group is more
    than the owner may have, its documents are taken one by one, as long as there is room."""
    documents = [one.document for one in group if isinstance(one.document, Document)]
    owner, quota = group[0].collection.owner, group[0].quota.over(owner_quota)
    try:
        index.check_room(documents, quota)  # nothing is forgotten for what will be refused
        if outdated := index.outdated(documents, owner):
            leaving(outdated, owner)
        outcomes = iter(index.add(documents, quota))
    except DocumentQuotaExceeded as error:
        if len(group) > 1:
            parts = ([one] for one in group)
            singly = (commit(index, part, leaving, owner_quota) for part in parts)
            return list(chain.from_iterable(singly))
        (refused,) = documents
        answer = answer_of(group[0].number, refused.id, Outcome.REFUSED, str(error))
        answer.last, answer.over_quota = group[0].last, True
        return [answer]
    answers: list[pb.IngestResponse] = []
    for one in group:
        if isinstance(one.document, Refusal):
            refusal = one.document
            answer = answer_of(one.number, refusal.id, Outcome.REFUSED, refusal.why)
        elif one.document is None:
            answer = answer_of(one.number, "", Outcome.UNCHANGED)
        else:
            answer = answer_of(one.number, one.document.id, next(outcomes))
        answer.last = one.last
        answers.append(answer)
    return answers


def _owner_of(found: Found) -> tuple[str, DocumentQuota]:
    return found.collection.owner, found.quota


def _found(incoming: Incoming, extractor: Extractor) -> Iterator[Found]:
    belongs = partial(Found, incoming.number, collection=incoming.collection, quota=incoming.quota)
    before: Document | Refusal | None = None
    for one in _documents(incoming, extractor):
        if before is not None:
            yield belongs(before, last=False)
        before = _owned(one, incoming.collection)
    yield belongs(before, last=True)


def _owned(found: Document | Refusal, collection: Collection) -> Document | Refusal:
    """A tenant's document under a clean name, or why it has none."""
    if collection == OPERATORS:
        return found
    try:
        name = clean_name(found.id)
    except InvalidArgument as error:
        return Refusal(shown(found.id[:MAX_NAME_BYTES]), str(error))
    if isinstance(found, Refusal):
        return found
    return replace(found, id=name, owner=collection.owner, shared=collection.shared)


def _documents(incoming: Incoming, extractor: Extractor) -> Iterator[Document | Refusal]:
    if incoming.refused:
        return iter((Refusal(incoming.id, incoming.refused),))
    return extractor.extract(incoming.content, incoming.format, incoming.id, incoming.title)
