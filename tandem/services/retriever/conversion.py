"""Messages of the retriever to values of the index, and back."""

from dataclasses import asdict

from tandem.core.errors import InvalidArgument
from tandem.index.extraction import Format
from tandem.index.owners import ListedDocument
from tandem.index.records import Hit, Outcome
from tandem.index.searcher import SearchMode
from tandem_api.retriever.v1 import retriever_pb2 as pb

_FORMATS: dict[int, Format] = {pb.Format.Value(f"FORMAT_{form.name}"): form for form in Format}
_MODES: dict[int, SearchMode] = {
    pb.SEARCH_MODE_UNSPECIFIED: SearchMode.HYBRID,
    **{pb.SearchMode.Value(f"SEARCH_MODE_{mode.name}"): mode for mode in SearchMode},
}
_OUTCOMES = {outcome: pb.Outcome.Value(f"OUTCOME_{outcome.name}") for outcome in Outcome}
DEFAULT_COUNT = 5


def format_from_proto(value: int) -> Format:
    """Return the format. Raises InvalidArgument for one that is not known."""
    if value not in _FORMATS:
        raise InvalidArgument("format", f"{value} is not a known format")
    return _FORMATS[value]


def mode_from_proto(value: int) -> SearchMode:
    """Return the search mode. Raises InvalidArgument for one that is not known."""
    if value not in _MODES:
        raise InvalidArgument("mode", f"{value} is not a known search mode")
    return _MODES[value]


def answer_of(
    number: int, document_id: str, outcome: Outcome, reason: str = ""
) -> pb.IngestResponse:
    """Return what became of one document."""
    return pb.IngestResponse(
        number=number, document_id=document_id, outcome=_OUTCOMES[outcome], reason=reason
    )


def hit_to_proto(hit: Hit) -> pb.Hit:
    """Return the message of a hit, which has the same fields."""
    return pb.Hit(**asdict(hit))


def listed_to_proto(document: ListedDocument) -> pb.ListedDocument:
    """Return what is told of a document without its text."""
    return pb.ListedDocument(id=document.name, bytes=document.bytes, shared=document.shared)
