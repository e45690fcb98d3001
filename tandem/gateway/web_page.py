"""The page that the aggregator serves at `/`: files of this package, and what it can do here.
Invariant: nothing of the page says what a caller without a key may not know, and a browser runs
nothing on it but these files."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import Any

from fastapi import FastAPI, Request
from starlette.responses import Response

from tandem.gateway.docs_page import PAGE_HEADERS
from tandem.gateway.errors import ApiError, json_response

HEADERS: Mapping[str, str] = {
    **PAGE_HEADERS,
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-cache",
}
_TYPES: Mapping[str, str] = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "mjs": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}
FEATURES_PATH = "/page/features.json"


@dataclass(frozen=True)
class WebPage:
    """`features` says which of the page's controls have something behind them here."""

    features: Mapping[str, bool]

    @property
    def paths(self) -> frozenset[str]:
        """A browser that is led to a page has no key to show; the page asks for one."""
        return frozenset({*self._files, FEATURES_PATH})

    def add_routes(self, app: FastAPI) -> None:
        """Add the page's routes, which are left out of the API's document."""
        for path, handler in (("/", self._file), (FEATURES_PATH, self._features)):
            app.add_api_route(path, handler, include_in_schema=False, response_model=None)
        app.add_api_route(
            "/page/{name:path}", self._file, include_in_schema=False, response_model=None
        )

    async def _features(self) -> Response:
        return json_response(dict(self.features))

    async def _file(self, request: Request) -> Response:
        page = self._files.get(request.url.path)
        if page is None:
            raise ApiError(404, f"{request.url.path}: there is no such file", code="unknown_url")
        content, kind = page
        tag = f'"{hashlib.sha256(content).hexdigest()[:32]}"'
        headers = {**HEADERS, "ETag": tag}
        if request.headers.get("if-none-match") == tag:
            return Response(status_code=304, headers=headers)
        return Response(content, media_type=kind, headers=headers)

    @cached_property
    def _files(self) -> Mapping[str, tuple[bytes, str]]:
        """Path to content and type; read once, as they are few and small."""
        folder = files("tandem.gateway") / "page"
        contents: dict[str, Any] = {}
        for each in (*folder.iterdir(), *(folder / "vendor").iterdir()):
            kind = _TYPES.get(each.name.rpartition(".")[2])
            if kind is not None:
                contents[_path(each, folder)] = (each.read_bytes(), kind)
        return contents


def _path(file: Traversable, folder: Traversable) -> str:
    if file.name == "index.html":
        return "/"
    vendored = not (folder / file.name).is_file()
    return f"/page/vendor/{file.name}" if vendored else f"/page/{file.name}"
