"""Interactive documentation at /docs: Swagger UI over /openapi.json. Invariant: its files are this
server's own, and the page may load and ask nothing else; none of them says anything of this server,
so they need no key, while the document that they show does."""

from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path

from fastapi import FastAPI
from starlette.responses import FileResponse
from swagger_ui_bundle import swagger_ui_path

DOCS_PATH = "/docs"
_OWN = Path(__file__).parent / "pages"
_FILES: Mapping[str, Path] = {
    DOCS_PATH: _OWN / "docs.html",
    f"{DOCS_PATH}/docs.css": _OWN / "docs.css",
    f"{DOCS_PATH}/docs.js": _OWN / "docs.js",
    f"{DOCS_PATH}/swagger-ui.css": Path(str(swagger_ui_path)) / "swagger-ui.css",
    f"{DOCS_PATH}/swagger-ui.js": Path(str(swagger_ui_path)) / "swagger-ui-bundle.js",
}
DOCS_PATHS = frozenset(_FILES)
PAGE_HEADERS: Mapping[str, str] = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self';"
    " img-src 'self' data:; connect-src 'self'; base-uri 'none'; form-action 'none';"
    " frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
}
"""Of pages that this server shows in a browser."""


def add_docs_page(app: FastAPI) -> None:
    """Add the routes; the OpenAPI document does not list them."""
    for path, file in _FILES.items():
        app.add_api_route(path, _sender(file), include_in_schema=False)


def _sender(file: Path) -> Callable[[], Awaitable[FileResponse]]:
    async def send() -> FileResponse:
        return FileResponse(file, headers=dict(PAGE_HEADERS))

    return send
