"""Documents put together from messages, and what became of each.

Invariants: no more than one document's content is held while it comes in, and never more than
`MAX_DOCUMENT_BYTES`; every number gets answers, exactly one of them the last.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain

from tandem.core.errors import InvalidArgument
from tandem.index.document_index import DocumentIndex
from tandem.index.extraction import Format, Refusal, check_size
from tandem.index.extractor import Extractor
from tandem.index.records import Document, Outcome
from tandem.services.retriever.conversion import answer_of, format_from_proto
from tandem_api.retriever.v1 import retriever_pb2 as pb

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


def groups_of(batch: Iterable[Incoming], extractor: Extractor) -> Iterator[list[Found]]:
    """What is to be stored together: bounded in number and, but for one document, in letters. Each
    step reads files, which may take long; it blocks. Raises Unavailable as `extractor` does."""
    group: list[Found] = []
    letters = 0
    for found in chain.from_iterable(_found(incoming, extractor) for incoming in batch):
        group.append(found)
        letters += len(found.document.text) if isinstance(found.document, Document) else 0
        if len(group) == DOCUMENTS_PER_COMMIT or letters >= LETTERS_PER_COMMIT:
            yield group
            group, letters = [], 0
    if group:
        yield group


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


def _found(incoming: Incoming, extractor: Extractor) -> Iterator[Found]:
    before: Document | Refusal | None = None
    for one in _documents(incoming, extractor):
        if before is not None:
            yield Found(incoming.number, before, last=False)
        before = one
    yield Found(incoming.number, before, last=True)


def _documents(incoming: Incoming, extractor: Extractor) -> Iterator[Document | Refusal]:
    if incoming.refused:
        return iter((Refusal(incoming.id, incoming.refused),))
    return extractor.extract(incoming.content, incoming.format, incoming.id, incoming.title)
