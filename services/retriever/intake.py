"""Documents put together from messages, and what became of each.

Invariants: no more than one document's content is held while it comes in, and never more than
`MAX_DOCUMENT_BYTES`; every number gets answers, exactly one of them the last.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

from services.retriever.convert import answer_of, format_from_proto
from tandem.core.errors import InvalidArgument
from tandem.index.document_index import DocumentIndex
from tandem.index.documents import Document, Outcome
from tandem.index.extraction import Format, Refusal, check_size, extract
from tandem_api.retriever.v1 import retriever_pb2 as pb

DOCUMENTS_PER_COMMIT = 64
"""Written and synced together; a file of JSON lines may hold many more."""


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
        """Whether a document has begun and not ended."""
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
        except InvalidArgument as error:
            self._refused = str(error)
            self._parts = []
            return
        self._parts.append(content)


def ingest_all(
    index: DocumentIndex, batch: Sequence[Incoming], leaving: Callable[[list[str]], None]
) -> list[pb.IngestResponse]:
    """Add what can be added; returns when it is durable. `leaving` is told the ids whose texts are
    about to be replaced. Blocks."""
    answers: list[pb.IngestResponse] = []
    found = _extracted(batch)
    while group := list(islice(found, DOCUMENTS_PER_COMMIT)):
        documents = [document for _, document in group if isinstance(document, Document)]
        if outdated := index.outdated(documents):
            leaving(outdated)
        outcomes = iter(index.add(documents))
        for number, one in group:
            if isinstance(one, Refusal):
                answers.append(answer_of(number, one.id, Outcome.REFUSED, one.why))
            else:
                answers.append(answer_of(number, one.id, next(outcomes)))
    return _with_last([incoming.number for incoming in batch], answers)


def _extracted(batch: Iterable[Incoming]) -> Iterator[tuple[int, Document | Refusal]]:
    for incoming in batch:
        if incoming.refused:
            yield incoming.number, Refusal(incoming.id, incoming.refused)
            continue
        for one in extract(incoming.content, incoming.format, incoming.id, incoming.title):
            yield incoming.number, one


def _with_last(
    numbers: Sequence[int], answers: Sequence[pb.IngestResponse]
) -> list[pb.IngestResponse]:
    """The same, with the end of each number marked; a file without documents gets one answer."""
    by_number: dict[int, list[pb.IngestResponse]] = {number: [] for number in numbers}
    for answer in answers:
        by_number[answer.number].append(answer)
    marked: list[pb.IngestResponse] = []
    for number, own in by_number.items():
        own = own or [answer_of(number, "", Outcome.UNCHANGED)]
        own[-1].last = True
        marked += own
    return marked
