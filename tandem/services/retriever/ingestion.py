"""Documents put together from messages, and what became of each.

Invariants: no more than one document's content is held while it comes in, and never more than
`MAX_DOCUMENT_BYTES`; every number gets answers, exactly one of them the last.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, groupby

from tandem.core.errors import InvalidArgument
from tandem.index.document_index import DocumentIndex, Preparation
from tandem.index.extraction import Format, Refusal, check_size
from tandem.index.extractor import Extractor, Part, parts_of
from tandem.index.names import MAX_NAME_BYTES, clean_name, shown
from tandem.index.owners import (
    NO_DOCUMENT_QUOTA,
    OPERATORS,
    Collection,
    DocumentQuota,
    DocumentQuotaExceeded,
)
from tandem.index.records import Content, Document, Outcome
from tandem.services.retriever.conversion import answer_of, format_from_proto
from tandem_api.retriever.v1 import retriever_pb2 as pb

Leaving = Callable[[list[str], str], None]
"""Told, before it happens, of which ids, of which owner, the texts will go."""

DOCUMENTS_PER_COMMIT = 64
"""Written and synced together; a file of JSON lines may hold many more."""
LETTERS_PER_COMMIT = 4 * 2**20
TURN_S = 0.5
"""After so long of reading another tenant may have a turn; one file is always read to its end."""


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
        """Return the document that this message completes, if it does. Raises InvalidArgument for
        one out of order."""
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
        self._open = None
        self._parts = []
        self._size = 0
        self._refused = ""
        return incoming

    def _keep(self, content: bytes) -> None:
        self._size += len(content)
        # JSON lines are bounded as a whole here; a line of them is when it is read.
        try:
            check_size(self._size)
            self._parts.append(content)
        except InvalidArgument as error:
            self._refused = str(error)
            self._parts = []


@dataclass(frozen=True, slots=True)
class ReadDocument:
    """One document of an upload's number, or why there is none; `last` of its number. `document` is
    None for a file without documents."""

    number: int
    document: Document | Refusal | None
    last: bool
    collection: Collection = OPERATORS
    quota: DocumentQuota = NO_DOCUMENT_QUOTA


@dataclass(frozen=True, slots=True)
class Unread:
    """A part of what came in; `part` is a Refusal for one that needs no reading, and None for a
    file without parts."""

    incoming: Incoming
    part: Part | Refusal | None
    last: bool


def runs_of_owners(batch: Iterable[Incoming]) -> Iterator[tuple[str, list[Incoming]]]:
    """Yield what came in one after the other of one owner with one quota: it is read in that
    owner's turn, and stored together."""
    for (owner, _), run in groupby(batch, lambda one: (one.collection.owner, one.quota)):
        yield owner, list(run)


def unread_of(run: Iterable[Incoming]) -> Iterator[Unread]:
    """Yield all that is to be read, in order. A step may take as long as it takes to split a
    file."""
    for incoming in run:
        before: Part | Refusal | None = None
        for part in _parts(incoming):
            if before is not None:
                yield Unread(incoming, before, last=False)
            before = _named(part, incoming.collection)
        yield Unread(incoming, before, last=True)


def read_group(unread: Iterator[Unread], extractor: Extractor) -> tuple[list[ReadDocument], float]:
    """Return what is to be stored together and the seconds of a processor that reading it took.
    Takes of `unread` until there are enough documents or letters, or so much time passed that
    another tenant should have a turn. Blocks. Raises Unavailable as `extractor` does."""
    group: list[ReadDocument] = []
    letters = 0
    cpu_s = 0.0
    began_s = time.monotonic()
    for one in unread:
        document: Document | Refusal | None
        collection = one.incoming.collection
        if isinstance(one.part, Part):
            extracted = extractor.read(one.part)
            document = _owned(extracted.document, collection)
            cpu_s += extracted.cpu_s
        else:
            document = one.part
        group.append(
            ReadDocument(
                number=one.incoming.number,
                document=document,
                last=one.last,
                collection=collection,
                quota=one.incoming.quota,
            )
        )
        letters += len(document.text) if isinstance(document, Document) else 0
        full = len(group) == DOCUMENTS_PER_COMMIT or letters >= LETTERS_PER_COMMIT
        if full or time.monotonic() - began_s >= TURN_S:
            break
    return group, cpu_s


def letters_of(group: Iterable[ReadDocument]) -> int:
    """Return the letters of a group's texts."""
    return sum(len(one.document.text) for one in group if isinstance(one.document, Document))


def preparation_of(
    index: DocumentIndex,
    group: Sequence[ReadDocument],
    owner_quota: DocumentQuota = NO_DOCUMENT_QUOTA,
) -> Preparation:
    """Return the work for a group before `commit`: none for a group beyond the owner's quota, so
    that refused documents cost no embedding."""
    documents = [one.document for one in group if isinstance(one.document, Document)]
    try:
        index.check_room(documents, group[0].quota.over(owner_quota))
    except DocumentQuotaExceeded:
        documents = []
    return index.preparation(documents)


def commit(
    index: DocumentIndex,
    group: Sequence[ReadDocument],
    leaving: Leaving,
    owner_quota: DocumentQuota = NO_DOCUMENT_QUOTA,
    prepared: Mapping[str, Content] | None = None,
) -> list[pb.IngestResponse]:
    """Add a group of `read_group`, durably; blocks. `leaving` is told the ids whose texts will go,
    and their owner. `owner_quota` holds where the group says nothing. Where the whole group is more
    than the owner may have, its documents are taken one by one, as long as there is room.
    `prepared`: as of `preparation_of`."""
    documents = [one.document for one in group if isinstance(one.document, Document)]
    owner = group[0].collection.owner
    quota = group[0].quota.over(owner_quota)
    try:
        index.check_room(documents, quota)  # nothing is forgotten for what will be refused
        if outdated := index.outdated(documents, owner):
            leaving(outdated, owner)
        outcomes = iter(index.add(documents, quota, prepared))
    except DocumentQuotaExceeded as error:
        if len(group) > 1:
            parts = ([one] for one in group)
            singly = (
                commit(index, part, leaving, owner_quota=owner_quota, prepared=prepared)
                for part in parts
            )
            return list(chain.from_iterable(singly))
        (refused,) = documents
        answer = answer_of(group[0].number, refused.id, Outcome.REFUSED, str(error))
        answer.last = group[0].last
        answer.over_quota = True
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


def _named(part: Part | Refusal, collection: Collection) -> Part | Refusal:
    """Refuse a tenant's document whose name is not clean before reading it costs anything."""
    if collection == OPERATORS or isinstance(part, Refusal) or part.form is Format.JSONL:
        return part
    try:
        return replace(part, document_id=clean_name(part.document_id))
    except InvalidArgument as error:
        return Refusal(shown(part.document_id[:MAX_NAME_BYTES]), str(error))


def _owned(document: Document | Refusal, collection: Collection) -> Document | Refusal:
    """Give a tenant's document its owner, and its clean name where the file chose it."""
    if collection == OPERATORS:
        return document
    try:
        name = clean_name(document.id)
    except InvalidArgument as error:
        return Refusal(shown(document.id[:MAX_NAME_BYTES]), str(error))
    if isinstance(document, Refusal):
        return document
    return replace(document, id=name, owner=collection.owner, shared=collection.shared)


def _parts(incoming: Incoming) -> Iterator[Part | Refusal]:
    if incoming.refused:
        return iter((Refusal(incoming.id, incoming.refused),))
    return parts_of(incoming.content, incoming.format, incoming.id, incoming.title)
