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
    once; `down`: files that are refused; `lies`: files whose hash is wrong;
    `renamed`: what it says that a repository is called; `says`: all that it says of any."""

    repositories: dict[str, Repository] = field(default_factory=dict)
    token: str = "let me in"
    cut: dict[str, int] = field(default_factory=dict)
    down: set[str] = field(default_factory=set)
    lies: set[str] = field(default_factory=set)
    renamed: dict[str, Any] = field(default_factory=dict)
    says: bytes = b""
    asked: list[str] = field(default_factory=list)
    url: str = ""

    def described(self, name: str) -> dict[str, Any]:
        repository = self.repositories[name]
        siblings = [self.described_file(*item) for item in repository.files.items()]
        return {"id": self.renamed.get(name, name), "sha": repository.commit, "siblings": siblings}

    def tree(self, name: str) -> list[dict[str, Any]]:
        siblings = self.described(name)["siblings"]
        return [_tree_entry(sibling) for sibling in siblings]

    def described_file(self, name: str, content: bytes) -> dict[str, Any]:
        if name in self.lies:
            content = b"?" * len(content)
        git = hashlib.sha1(f"blob {len(content)}\0".encode() + content).hexdigest()
        sibling: dict[str, Any] = {"rfilename": name, "size": len(content), "blobId": git}
        if name.endswith(LARGE):
            sha256 = hashlib.sha256(content).hexdigest()
            sibling["lfs"] = {"sha256": sha256, "size": len(content), "pointerSize": 130}
        return sibling


def _tree_entry(sibling: dict[str, Any]) -> dict[str, Any]:
    named = {"type": "file", "path": sibling["rfilename"], "size": sibling["size"]}
    if (large := sibling.get("lfs")) is not None:
        named["lfs"] = {**large, "oid": large["sha256"]}
    return {**named, "oid": sibling["blobId"]}


@contextmanager
def serving(hub: FakeHub) -> Iterator[FakeHub]:
    """Serve on a free port; `hub.url` is its address."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:  # http.server's name
            path = unquote(urlsplit(self.path).path)
            hub.asked.append(path)
            knows = self.headers.get("authorization") == f"Bearer {hub.token}"
            if path.startswith("/api/models/"):
                kind = "/tree/" if "/tree/" in path else "/revision/"
                name, _, revision = path.removeprefix("/api/models/").partition(kind)
                repository = hub.repositories.get(name)
                if repository is None or (repository.private and not knows):
                    self.refuse(401, "RepoNotFound")
                elif revision not in ("main", repository.commit):
                    self.refuse(404, "RevisionNotFound")
                elif kind == "/tree/":
                    self.answer(json.dumps(hub.tree(name)).encode())
                else:
                    self.answer(hub.says or json.dumps(hub.described(name)).encode())
                return
            name, _, rest = path.removeprefix("/").partition("/resolve/")
            file = rest.partition("/")[2]
            repository = hub.repositories.get(name)
            if repository is None:  # what the hub's library asks for itself
                self.refuse(404, "")
            elif file in hub.down:
                self.refuse(503, "")
            elif repository.gated and not knows:
                self.refuse(403, "GatedRepo")
            else:
                self.file(repository, file)

        do_HEAD = do_GET  # noqa: N815

        def refuse(self, status: int, code: str) -> None:
            self.send_response(status)
            self.send_header("X-Error-Code", code)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def answer(self, content: bytes) -> None:
            self.send_response(200)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(content)

        def file(self, repository: Repository, name: str) -> None:
            content = repository.files[name]
            sibling = hub.described_file(name, content)
            large = sibling.get("lfs")
            first = int(self.headers.get("range", "bytes=0-").split("=")[1].split("-")[0])
            self.send_response(206 if first else 200)
            self.send_header("ETag", f'"{large["sha256"] if large else sibling["blobId"]}"')
            self.send_header("X-Repo-Commit", repository.commit)
            self.send_header("Content-Length", str(len(content) - first))
            self.end_headers()
            if self.command == "HEAD":
                return
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
