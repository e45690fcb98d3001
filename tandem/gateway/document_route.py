"""Routes to add, list and delete documents on the device. They exist only where the aggregator may
change documents."""

import asyncio
import base64
import binascii
from typing import Annotated, Literal, Protocol

from fastapi import FastAPI, Query, Request
from pydantic import ConfigDict, Field
from starlette.responses import Response

from tandem.gateway.base_models import Answer, Body
from tandem.gateway.connection_body import cancel_on_disconnect
from tandem.gateway.errors import ApiError, invalid, json_response, lacks_scope
from tandem.gateway.openapi import FROM_THE_SUITE, add_route
from tandem.index.extraction import Format, format_of
from tandem.index.names import clean_name, shown
from tandem.net.retriever_client import Upload
from tandem.net.scopes import Scope, current_caller
from tandem_api.retriever.v1.retriever_pb2 import ListRequest, ListResponse

DOCUMENTS_PATH = "/v1/tandem/documents"
DEFAULT_LISTED = 100
MAX_LISTED = 1000
_TEXTS = frozenset({Format.MARKDOWN, Format.HTML, Format.CSV, Format.EML})
_FILES = frozenset({Format.PDF, Format.DOCX, Format.XLSX, Format.PPTX})
"""No texts: read as what they are only where they come in base64."""
_PDF_MARK = "%PDF-"


class TenantDocuments(Protocol):
    """The device's documents. All raise what `Retrieval` raises."""

    async def add(self, upload: Upload) -> None:
        """Store one document, durably."""

    async def delete(self, name: str, owner: str) -> bool:
        """Delete a document. Returns whether the owner had it."""

    async def listed(self, request: ListRequest) -> ListResponse:
        """Return some of an owner's documents, and the totals of all of them."""


class DocumentUpload(Body):
    """A document to store. It replaces the caller's document with the same name. Unknown fields are
    refused: no other server has this route."""

    model_config = ConfigDict(extra="forbid")

    name: Annotated[
        str,
        Field(
            min_length=1, max_length=200, description="File name without a path, 1 to 200 bytes."
        ),
    ]
    content: Annotated[
        str,
        Field(
            min_length=1,
            description="Text, Markdown, HTML or CSV, or a file in base64, which may also be a PDF"
            " or an office document. The extension of the name tells which.",
        ),
    ]
    encoding: Annotated[
        Literal["text", "base64"],
        Field(
            description="How `content` is written: as text, or as the bytes of a file in base64."
        ),
    ] = "text"
    shared: Annotated[
        bool,
        Field(
            description="Let answers to other callers use the document too. Requires the scope"
            " documents:share."
        ),
    ] = False


class DocumentAdded(Answer):
    name: str
    shared: bool


class DocumentDeleted(Answer):
    name: str
    deleted: Literal[True] = True


class DocumentEntry(Answer):
    name: str
    bytes: Annotated[int, Field(description="Size of title and text in UTF-8.")]
    shared: bool


class DocumentUsage(Answer):
    """Storage used by the caller, and its limits. A limit of 0 means unlimited."""

    documents: int
    bytes: int
    max_documents: int
    max_bytes: int


class DocumentList(Answer):
    """The caller's documents, sorted by name."""

    object: Literal["list"] = "list"
    data: list[DocumentEntry]
    has_more: Annotated[
        bool,
        Field(
            description="True if there are more documents. To get them, pass the last name as"
            " `after`."
        ),
    ]
    usage: DocumentUsage


class DocumentRoute:
    def __init__(self, documents: TenantDocuments, ending: asyncio.Event) -> None:
        self._documents = documents
        self._ending = ending

    def add_routes(self, app: FastAPI) -> None:
        one, of_a_body = f"{DOCUMENTS_PATH}/{{name:path}}", (400, 408, 413, 415)
        for method, path, handler, answer, refusals in (
            ("POST", DOCUMENTS_PATH, self.add, DocumentAdded, of_a_body),
            ("GET", DOCUMENTS_PATH, self.list_documents, DocumentList, (400,)),
            ("DELETE", one, self.delete_document, DocumentDeleted, (400, 404)),
        ):
            statuses = (*FROM_THE_SUITE, *refusals)
            add_route(app, method, path, handler, answer=answer, refusals=statuses)

    async def add(self, request: Request, body: DocumentUpload) -> Response:
        """Add a document to the device. It is stored there and nowhere else."""
        name = clean_name(body.name)
        caller = current_caller()
        if body.shared and Scope.DOCUMENTS_SHARE not in caller.scopes:
            raise lacks_scope(caller.holder, [Scope.DOCUMENTS_SHARE])
        upload = Upload(
            id=name,
            content=_bytes_of(body),
            format=_format_of(name, body.encoding),
            owner=caller.holder,
            shared=body.shared,
            max_documents=caller.quota.documents,
            max_bytes=caller.quota.document_bytes,
        )
        adding = self._documents.add(upload)
        await cancel_on_disconnect(request.receive, self._ending, adding)
        return json_response(DocumentAdded(name=name, shared=body.shared))

    async def list_documents(
        self,
        after: Annotated[
            str, Query(description="Return documents whose names sort after this one.")
        ] = "",
        limit: Annotated[int, Query(ge=1, le=MAX_LISTED - 1)] = DEFAULT_LISTED,
    ) -> Response:
        """List the caller's documents and its storage quota."""
        caller = current_caller()
        listing = ListRequest(
            owner=caller.holder,
            after=after,
            count=min(limit + 1, MAX_LISTED),  # one more, to know whether there is one
            max_documents=caller.quota.documents,
            max_bytes=caller.quota.document_bytes,
        )
        listed = await self._documents.listed(listing)
        documents = [
            DocumentEntry(name=shown(each.id), bytes=each.bytes, shared=each.shared)
            for each in listed.documents[:limit]
        ]
        usage = DocumentUsage(
            documents=listed.total_documents,
            bytes=listed.total_bytes,
            max_documents=listed.max_documents,
            max_bytes=listed.max_bytes,
        )
        more = len(listed.documents) > limit
        return json_response(DocumentList(data=documents, has_more=more, usage=usage))

    async def delete_document(self, name: str) -> Response:
        """Delete one of the caller's documents."""
        owner = current_caller().holder
        if owner:
            name = clean_name(name)  # the operator's are also paths
        if not await self._documents.delete(name, owner):
            why = f"you have no document {shown(name)!r}"
            raise ApiError(404, why, param="name", code="document_not_found")
        return json_response(DocumentDeleted(name=shown(name)))


def _bytes_of(body: DocumentUpload) -> bytes:
    """Return the content's bytes. Raises ApiError for invalid base64, and for a PDF that was sent
    as text."""
    if body.encoding == "text":
        if body.content.startswith(_PDF_MARK):
            raise invalid("content", "content: is a PDF; send its bytes with encoding base64")
        return body.content.encode(errors="surrogatepass")
    try:
        return base64.b64decode(body.content, validate=True)
    except (binascii.Error, ValueError):  # the latter for letters outside of ASCII
        raise invalid("content", "content: is not valid base64") from None


def _format_of(name: str, encoding: str) -> Format:
    form = format_of(name)
    known = _TEXTS | _FILES if encoding == "base64" else _TEXTS
    return form if form in known else Format.TEXT
