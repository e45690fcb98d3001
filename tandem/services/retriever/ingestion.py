"""Documents put together from messages, and what became of each.

Invariants: no more than one document's content is held while it comes in, and never more than
`MAX_DOCUMENT_BYTES`; every number gets answers, exactly one of them the last.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from tandem.core.errors import InvalidArgument
from tandem.index.document_index import DocumentIndex
from tandem.index.extraction import Format, Refusal, check_size
from tandem.index.extractor import Extractor, Part, parts_of
from tandem.index.records import Document, Outcome
from tandem.services.retriever.conversion import answer_of, format_from_proto
from tandem_api.retriever.v1 import retriever_pb2 as pb

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
    refused: str = ""


class Intake:
    """Joins the messages of one stream; see `take`."""

    def __init__(self) -> None:
        self._open: tuple[int, str, str, Format] | None = None
        self._parts: list[bytes] = []
        self._size = 0
        self._refused = ""

    @property
    def in_the_middle(self) -> bool:
        return self._open is not None

    def take(self, message: pb.IngestRequest) -> Incoming | None:
        """The document that this message completes. InvalidArgument for one out of order."""
        if self._open is None:
            form = format_from_proto(message.format)
            self._open = (message.number, message.id, message.title, form)
        elif message.number != self._open[0]:
            why = f"{message.number} came before the end of {self._open[0]}"
            raise InvalidArgument("number", why)
        self._keep(message.content)
        if message.more:
            return None
        incoming = Incoming(*self._open, b"".join(self._parts), self._refused)
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


@dataclass(frozen=True, slots=True)
class Unread:
    """A part of what came in under a number; `part` is a Refusal for one that needs no reading, and
    None for a file without parts."""

    number: int
    part: Part | Refusal | None
    last: bool


def unread_of(batch: Iterable[Incoming]) -> Iterator[Unread]:
    """All that is to be read, in order. A step may take as long as it takes to split a file."""
    for incoming in batch:
        before: Part | Refusal | None = None
        for part in _parts(incoming):
            if before is not None:
                yield Unread(incoming.number, before, last=False)
            before = part
        yield Unread(incoming.number, before, last=True)


def read_group(unread: Iterator[Unread], extractor: Extractor) -> tuple[list[Found], float]:
    """What is to be stored together, empty at the end, and the seconds of a processor that reading
    it took. Takes of `unread` until there are enough documents or letters, or so much time passed
    that another tenant should have a turn. Blocks. Raises Unavailable as `extractor` does."""
    group: list[Found] = []
    letters, cpu_s, began_s = 0, 0.0, time.monotonic()
    for one in unread:
        document: Document | Refusal | None
        if isinstance(one.part, Part):
            extracted = extractor.read(one.part)
            document = extracted.document
            cpu_s += extracted.cpu_s
        else:
            document = one.part
        group.append(Found(one.number, document, one.last))
        letters += len(document.text) if isinstance(document, Document) else 0
        full = len(group) == DOCUMENTS_PER_COMMIT or letters >= LETTERS_PER_COMMIT
        if full or time.monotonic() - began_s >= TURN_S:
            break
    return group, cpu_s


def commit(
    index: DocumentIndex, group: Sequence[Found], leaving: Callable[[list[str]], None]
) -> list[pb.IngestResponse]:
    """Add the documents, durably; blocks. `leaving` is told the ids whose texts will go."""
    documents = [one.document for one in group if isinstance(one.document, Document)]
    if outdated := index.outdated(documents):
        leaving(outdated)
    outcomes = iter(index.add(documents))
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


def _parts(incoming: Incoming) -> Iterator[Part | Refusal]:
    if incoming.refused:
        return iter((Refusal(incoming.id, incoming.refused),))
    return parts_of(incoming.content, incoming.format, incoming.id, incoming.title)
