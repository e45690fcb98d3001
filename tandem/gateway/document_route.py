"""Documents that the page's visitor drops for the device. The route is there only where the
aggregator may add documents. Invariant: a document goes to the device's retriever and nowhere else,
and counts as added when that has stored it."""

from collections.abc import Awaitable, Callable, Mapping
from typing import Annotated

from fastapi import FastAPI, Request
from pydantic import Field
from starlette.responses import Response

from tandem.gateway.body_parsing import Strict, parse_body
from tandem.gateway.connection_body import read_body
from tandem.gateway.errors import json_response
from tandem.net.retriever_client import Upload

DOCUMENTS_PATH = "/v1/tandem/documents"
AddDocument = Callable[[Upload], Awaitable[None]]
_FORMATS: Mapping[str, str] = {
    "md": "markdown",
    "markdown": "markdown",
    "html": "html",
    "htm": "html",
}


class DocumentUpload(Strict):
    """A document of that name that was there is replaced."""

    name: Annotated[str, Field(min_length=1, max_length=200)]
    content: Annotated[str, Field(min_length=1, description="Text, Markdown or HTML, by the name.")]


class DocumentAdded(Strict):
    name: str


class DocumentRoute:
    def __init__(self, add: AddDocument, max_body_bytes: int) -> None:
        self._add, self._max_body_bytes = add, max_body_bytes

    def add_routes(self, app: FastAPI) -> None:
        app.add_api_route(DOCUMENTS_PATH, self.add, methods=["POST"], response_model=None)

    async def add(self, request: Request) -> Response:
        """Add a document to the device's; it stays there."""
        upload = parse_body(await read_body(request, self._max_body_bytes), DocumentUpload, 0)
        kind = _FORMATS.get(upload.name.lower().rpartition(".")[2], "text")
        await self._add(Upload(upload.name, upload.content.encode(), kind))
        return json_response(DocumentAdded(name=upload.name).model_dump())
