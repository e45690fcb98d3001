"""Messages of the retriever to values of the index, and back."""

from __future__ import annotations

from tandem.core.errors import InvalidArgument
from tandem.index.documents import Hit, Outcome
from tandem.index.extraction import Format
from tandem.index.searcher import SearchMode
from tandem_api.retriever.v1 import retriever_pb2 as pb

_FORMATS: dict[int, Format] = {
    pb.FORMAT_TEXT: Format.TEXT,
    pb.FORMAT_MARKDOWN: Format.MARKDOWN,
    pb.FORMAT_HTML: Format.HTML,
    pb.FORMAT_PDF: Format.PDF,
    pb.FORMAT_JSONL: Format.JSONL,
}
_MODES: dict[int, SearchMode] = {
    pb.SEARCH_MODE_UNSPECIFIED: SearchMode.HYBRID,
    pb.SEARCH_MODE_HYBRID: SearchMode.HYBRID,
    pb.SEARCH_MODE_DENSE: SearchMode.DENSE,
    pb.SEARCH_MODE_LEXICAL: SearchMode.LEXICAL,
}
_OUTCOMES = {
    Outcome.ADDED: pb.OUTCOME_ADDED,
    Outcome.UPDATED: pb.OUTCOME_UPDATED,
    Outcome.UNCHANGED: pb.OUTCOME_UNCHANGED,
    Outcome.REFUSED: pb.OUTCOME_REFUSED,
}
DEFAULT_COUNT = 5


def format_from_proto(value: int) -> Format:
    """InvalidArgument for one that is not known."""
    form = _FORMATS.get(value)
    if form is None:
        raise InvalidArgument("format", f"{value} is no format")
    return form


def mode_from_proto(value: int) -> SearchMode:
    """InvalidArgument for one that is not known."""
    mode = _MODES.get(value)
    if mode is None:
        raise InvalidArgument("mode", f"{value} is no search mode")
    return mode


def answer_of(
    number: int, document_id: str, outcome: Outcome, reason: str = ""
) -> pb.IngestResponse:
    """What became of one document."""
    return pb.IngestResponse(
        number=number, document_id=document_id, outcome=_OUTCOMES[outcome], reason=reason
    )


def hit_to_proto(hit: Hit) -> pb.Hit:
    """A hit as it travels."""
    return pb.Hit(
        document_id=hit.document_id,
        title=hit.title,
        chunk=hit.chunk,
        start=hit.start,
        text=hit.text,
        score=hit.score,
        similarity=hit.similarity,
        dense_rank=hit.dense_rank,
        lexical_rank=hit.lexical_rank,
    )
