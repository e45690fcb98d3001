"""What a browser is shown: this package's page at `/`, and at `/docs` Swagger UI over
/openapi.json. Invariant: nothing of these files says what a caller without a key may not know, so
they need none, and a browser runs nothing on them but these files."""

import os
from collections.abc import Mapping
from pathlib import Path

from fastapi import FastAPI, Request
from starlette.responses import Response
from starlette.staticfiles import StaticFiles
from swagger_ui_bundle import swagger_ui_path

from tandem.gateway.errors import ApiError, json_response

_HERE = Path(__file__).parent
_SWAGGER = Path(str(swagger_ui_path))
_TYPES: Mapping[str, str] = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".mjs": "text/javascript; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
_HEADERS: Mapping[str, str] = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self';"
    " img-src 'self' data:; connect-src 'self'; base-uri 'none'; form-action 'none';"
    " frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-cache",
}
_STATIC = StaticFiles(directory=_HERE)
FEATURES_PATH = "/page/features.json"

DOCS_FILES: Mapping[str, Path] = {
    "/docs": _HERE / "pages/docs.html",
    "/docs/docs.css": _HERE / "pages/docs.css",
    "/docs/docs.js": _HERE / "pages/docs.js",
    "/docs/swagger-ui.css": _SWAGGER / "swagger-ui.css",
    "/docs/swagger-ui.js": _SWAGGER / "swagger-ui-bundle.js",
}
PAGE_FILES: Mapping[str, Path] = {
    "/" if file.name == "index.html" else f"/{file.relative_to(_HERE).as_posix()}": file
    for file in (_HERE / "page").rglob("*")
    if file.suffix in _TYPES
}


def add_page(app: FastAPI, features: Mapping[str, bool]) -> None:
    """Add the routes of the page. `features` says which of its controls have something behind them
    here."""

    async def send_features() -> Response:
        return json_response(dict(features))

    app.add_api_route(FEATURES_PATH, send_features, include_in_schema=False, response_model=None)
    _add_files(app, PAGE_FILES, "/", "/page/{name:path}")


def add_docs(app: FastAPI) -> None:
    """Add the routes of the documentation."""
    _add_files(app, DOCS_FILES, "/docs", "/docs/{name}")


def _add_files(app: FastAPI, files: Mapping[str, Path], *addresses: str) -> None:
    """Add routes that the OpenAPI document does not list."""

    async def send(request: Request) -> Response:
        file = files.get(request.url.path)
        if file is None:
            raise ApiError(404, f"{request.url.path}: there is no such file", code="unknown_url")
        response = _STATIC.file_response(file, os.stat(file), request.scope)
        response.headers.update({**_HEADERS, "Content-Type": _TYPES[file.suffix]})
        return response

    for address in addresses:
        app.add_api_route(address, send, include_in_schema=False, response_model=None)
