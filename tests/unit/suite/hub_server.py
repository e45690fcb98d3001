"""A small hub on loopback that speaks as much of Hugging Face's API as a download needs."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote, urlsplit

COMMIT = "a" * 40
LARGE = (".safetensors", ".gguf")


@dataclass
class Repository:
    """A model's files at one commit. `gated`: files need the token; `private`: everything does."""

    files: dict[str, bytes]
    commit: str = COMMIT
    gated: bool = False
    private: bool = False


@dataclass
class FakeHub:
    """What it serves, and what it was asked for. `cut`: files that break off after so many bytes,
    once; `ignores_ranges`: every answer is a whole file; `lies`: files whose hash is wrong;
    `renamed`: what it says that a repository is called; `says`: all that it says of any."""

    repositories: dict[str, Repository] = field(default_factory=dict)
    token: str = "let me in"
    cut: dict[str, int] = field(default_factory=dict)
    down: set[str] = field(default_factory=set)
    ignores_ranges: bool = False
    lies: set[str] = field(default_factory=set)
    renamed: dict[str, Any] = field(default_factory=dict)
    says: bytes = b""
    asked: list[tuple[str, str | None]] = field(default_factory=list)
    url: str = ""

    def described(self, name: str) -> dict[str, Any]:
        repository = self.repositories[name]
        siblings = [self._sibling(*item) for item in repository.files.items()]
        return {"id": self.renamed.get(name, name), "sha": repository.commit, "siblings": siblings}

    def _sibling(self, name: str, content: bytes) -> dict[str, Any]:
        if name in self.lies:
            content = b"?" * len(content)
        git = hashlib.sha1(f"blob {len(content)}\0".encode() + content).hexdigest()
        sibling: dict[str, Any] = {"rfilename": name, "size": len(content), "blobId": git}
        if name.endswith(LARGE):
            sha256 = hashlib.sha256(content).hexdigest()
            sibling["lfs"] = {"sha256": sha256, "size": len(content), "pointerSize": 130}
        return sibling


@contextmanager
def serving(hub: FakeHub) -> Iterator[FakeHub]:
    """Serve on a free port; `hub.url` is its address."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:  # http.server's name
            path = unquote(urlsplit(self.path).path)
            hub.asked.append((path, self.headers.get("range")))
            knows = self.headers.get("authorization") == f"Bearer {hub.token}"
            if path.startswith("/api/models/"):
                name, _, revision = path.removeprefix("/api/models/").partition("/revision/")
                repository = hub.repositories.get(name)
                if repository is None or (repository.private and not knows):
                    self.refuse(401, "RepoNotFound")
                elif revision not in ("main", repository.commit):
                    self.refuse(404, "RevisionNotFound")
                else:
                    self.answer(hub.says or json.dumps(hub.described(name)).encode())
                return
            name, _, rest = path.removeprefix("/").partition("/resolve/")
            commit, _, file = rest.partition("/")
            repository = hub.repositories[name]
            assert commit == repository.commit
            if file in hub.down:
                self.refuse(503, "")
            elif repository.gated and not knows:
                self.refuse(403, "GatedRepo")
            else:
                self.file(file, repository.files[file])

        def refuse(self, status: int, code: str) -> None:
            self.send_response(status)
            self.send_header("X-Error-Code", code)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def answer(self, content: bytes) -> None:
            self.send_response(200)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def file(self, name: str, content: bytes) -> None:
            wanted = self.headers.get("range")
            first = 0
            if wanted is not None and not hub.ignores_ranges:
                first = int(wanted.removeprefix("bytes=").removesuffix("-"))
            self.send_response(206 if first else 200)
            self.send_header("Content-Length", str(len(content) - first))
            self.end_headers()
            end = hub.cut.pop(name, len(content))
            self.wfile.write(content[first:end])
            if end < len(content):
                hub.down.add(name)
                self.close_connection = True

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    hub.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
