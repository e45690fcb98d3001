"""Documents that callers with keys keep among the device's: who may, whose they are, who finds
them. Both sides' services behind the routes are real."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx2
import pytest

from tandem.gateway.app import GatewaySettings, make_app
from tandem.gateway.guard import scopes_for
from tandem.gateway.server import HttpServer
from tandem.generation.request import GenerationRequest
from tandem.net.access_keys import KEY_BYTES, key_line, new_key, parse_keys
from tandem.net.retriever_client import Upload
from tandem.net.scopes import Scope
from tandem.specdec.messages import GenerationParams
from tandem.telemetry.metrics import Metrics, new_registry
from tandem_api.retriever.v1.retriever_pb2 import ListRequest, ListResponse
from tests.gateway.http_suite import chat_body, http_to
from tests.gateway.test_failures import Breaking
from tests.services.scripted_suite import summary_of, until
from tests.services.two_sided_suite import PROMPT, TwoSides, two_sides
from tests.unit.index.written_pdfs import pdf

PATH = "/v1/tandem/documents"
OWN = {Scope.GENERATE, Scope.DOCUMENTS_WRITE}
SCOPES = {
    "asks": {Scope.GENERATE},
    "ann": OWN,
    "bob": {*OWN, Scope.DOCUMENTS_SHARE},
    "lists": {Scope.DOCUMENTS_READ},
    "small": OWN,
    "writes": {Scope.DOCUMENTS_WRITE},
}
KEYS = {name: new_key(bytes([number]) * KEY_BYTES) for number, name in enumerate(SCOPES)}
QUOTAS = {"small": " documents=2 document_bytes=40"}
HOSTILE = ("../0", "a\x1b[2Jb.md", "\u202egpj.exe", "notes\u200b.md", "a/b.md", " ", "é" * 101)
BOBS = "only bob's.md"
NOTE = "0"
"""The name of the operator's document about a heron."""


@dataclass(frozen=True, slots=True)
class Served:
    suite: TwoSides
    http: httpx2.AsyncClient

    async def ask(self, who: str, method: str, path: str = PATH, **more: Any) -> httpx2.Response:
        headers = {"Authorization": f"Bearer {KEYS[who]}"} if who else {}
        return await self.http.request(method, path, headers=headers, **more)

    async def put(self, who: str, name: str, content: str, **more: Any) -> httpx2.Response:
        return await self.ask(who, "POST", json={"name": name, "content": content, **more})

    async def names(self, who: str) -> list[str]:
        answer = await self.ask(who, "GET")
        assert answer.status_code == 200, answer.text
        return [each["name"] for each in answer.json()["data"]]

    async def used(self, who: str, query: str) -> list[str]:
        """Names of the device's documents in an answer."""
        tandem = {"rag": True, "query": query, "documents": 8}
        body = chat_body(PROMPT, max_tokens=2, tandem=tandem)
        answer = await self.ask(who, "POST", "/v1/chat/completions", json=body)
        assert answer.status_code == 200, answer.text
        found: list[str] = answer.json()["choices"][0]["tandem"]["device"]["names"]
        return found

    async def found(self, tenant: str, query: str) -> set[tuple[str, str]]:
        """Owner and name of what the device's retriever finds."""
        answer = await self.suite.retrievers[0].search(query, 50, tenant=tenant)
        return {(hit.owner, hit.document_id) for hit in answer.hits}


@asynccontextmanager
async def served(folder: Path, keys: bool = True) -> AsyncIterator[Served]:
    lines = [
        key_line(name, KEYS[name], scopes) + QUOTAS.get(name, "") for name, scopes in SCOPES.items()
    ]
    ring = parse_keys("\n".join(lines))
    async with two_sides(folder) as suite:
        settings = GatewaySettings(
            keys=(lambda: ring) if keys else None, documents=suite.front.requests.documents
        )
        async with http_to(suite.front.requests, settings) as http:
            yield Served(suite, http)


async def operators(served: Served) -> dict[str, int]:
    """The operator's documents, with their sizes."""
    found = await served.suite.retrievers[0].listed()
    return {each.id: each.bytes for each in found.documents}


async def test_a_key_made_to_generate_changes_no_document(tmp_path: Path) -> None:
    async with served(tmp_path) as suite:
        before = await operators(suite)
        for answer in (
            await suite.put("asks", NOTE, "a forged heron"),
            await suite.ask("asks", "DELETE", f"{PATH}/{NOTE}"),
            await suite.put("lists", NOTE, "a forged heron"),
            await suite.ask("lists", "DELETE", f"{PATH}/{NOTE}"),
        ):
            assert answer.status_code == 403
            error = answer.json()["error"]
            assert (error["code"], error["type"]) == ("missing_scope", "permission_error")
            assert "does not have the scope 'documents:write'" in error["message"]
        answer = await suite.ask("asks", "GET")
        assert answer.status_code == 403
        assert "'documents:read' or 'documents:write'" in answer.json()["error"]["message"]
        assert (await suite.ask("", "GET")).status_code == 401
        assert await operators(suite) == before
        assert await suite.used("asks", "forged") == []
        assert await suite.names("lists") == []
        # What changes documents is good for nothing else.
        assert (await suite.put("writes", "a.md", "x")).status_code == 200
        assert (await suite.ask("writes", "GET", "/v1/models")).status_code == 403


async def test_an_upload_leaves_the_operator_s_document_of_that_name_alone(tmp_path: Path) -> None:
    async with served(tmp_path) as suite:
        before = await operators(suite)
        answer = await suite.put("ann", NOTE, "a violet heron of ann")
        assert (answer.status_code, answer.json()) == (200, {"name": NOTE, "shared": False})
        assert await operators(suite) == before
        assert ("", NOTE) in await suite.found("", "my heron note")
        assert await suite.found("", "violet") == set()
        assert await suite.found("ann", "violet") == {("ann", NOTE)}
        assert {("", NOTE), ("ann", NOTE)} <= await suite.found("ann", "heron")
        # Replaced and deleted is the tenant's own, and that once.
        assert (await suite.put("ann", NOTE, "an orange heron")).status_code == 200
        assert await suite.found("ann", "violet") == set()
        deleted = await suite.ask("ann", "DELETE", f"{PATH}/{NOTE}")
        assert (deleted.status_code, deleted.json()) == (200, {"name": NOTE, "deleted": True})
        again = await suite.ask("ann", "DELETE", f"{PATH}/{NOTE}")
        assert (again.status_code, again.json()["error"]["code"]) == (404, "document_not_found")
        assert await operators(suite) == before


async def test_an_answer_is_from_the_operator_s_documents_and_the_asker_s(tmp_path: Path) -> None:
    async with served(tmp_path) as suite:
        await suite.put("ann", "anns.md", "violet is ann's word")
        await suite.put("bob", "bobs.md", "orange is bob's word")
        query = "violet orange heron"
        assert set(await suite.used("ann", query)) == {"0", "1", "anns.md"}
        assert set(await suite.used("bob", query)) == {"0", "1", "bobs.md"}
        assert set(await suite.used("asks", query)) == {"0", "1"}
        assert await suite.used("bob", "violet") == []
        # A holder of a key for gRPC is no tenant, whatever it is called.
        request = GenerationRequest(
            PROMPT,
            "dragon-coupled",
            GenerationParams(max_tokens=2),
            query="violet orange",
            documents=8,
        )
        answered = await suite.suite.client.generate(request)
        assert list(summary_of(answered).device.names) == []


async def test_each_lists_and_deletes_its_own(tmp_path: Path) -> None:
    async with served(tmp_path) as suite:
        for name in ("c.md", "a.md", "b.md"):
            await suite.put("ann", name, f"# {name}")
        await suite.put("bob", BOBS, "x")
        assert await suite.names("ann") == ["a.md", "b.md", "c.md"]
        assert await suite.names("bob") == [BOBS]
        assert await suite.names("writes") == []
        first = (await suite.ask("ann", "GET", f"{PATH}?limit=2")).json()
        assert (len(first["data"]), first["has_more"]) == (2, True)
        rest = (await suite.ask("ann", "GET", f"{PATH}?limit=2&after=b.md")).json()
        assert ([each["name"] for each in rest["data"]], rest["has_more"]) == (["c.md"], False)
        assert rest["usage"]["documents"] == 3
        for wrong in ("0", "-1", "1000", "x", "1.5", ""):
            refused = await suite.ask("ann", "GET", f"{PATH}?limit={wrong}")
            assert (refused.status_code, refused.json()["error"]["param"]) == (400, "limit"), wrong
        theirs = await suite.ask("ann", "DELETE", f"{PATH}/{quote(BOBS)}")
        missing = await suite.ask("ann", "DELETE", f"{PATH}/none.md")
        assert theirs.status_code == missing.status_code == 404
        assert theirs.json()["error"]["code"] == missing.json()["error"]["code"]
        assert await suite.names("bob") == [BOBS]


async def test_sharing_is_a_right_of_its_own(tmp_path: Path) -> None:
    async with served(tmp_path) as suite:
        refused = await suite.put("ann", "a.md", "a violet heron", shared=True)
        assert refused.status_code == 403
        assert "'documents:share'" in refused.json()["error"]["message"]
        assert await suite.names("ann") == []
        answer = await suite.put("bob", "a.md", "an orange heron", shared=True)
        assert answer.json() == {"name": "a.md", "shared": True}
        assert await suite.used("ann", "orange") == ["a.md"]
        assert await suite.used("asks", "orange") == ["a.md"]
        assert (await suite.ask("ann", "DELETE", f"{PATH}/a.md")).status_code == 404
        assert await suite.names("ann") == []
        await suite.put("bob", "a.md", "an orange heron")
        assert await suite.used("ann", "orange") == []
        assert await suite.used("bob", "orange") == ["a.md"]


async def test_a_quota_is_of_the_key_and_says_what_is_left(tmp_path: Path) -> None:
    async with served(tmp_path) as suite:
        assert (await suite.put("small", "a.md", "x" * 30)).status_code == 200
        refused = await suite.put("small", "b.md", "y" * 11)
        error = refused.json()["error"]
        assert (refused.status_code, error["code"]) == (413, "document_quota_exceeded")
        assert "11 bytes more needed, 'small' has 10 of 40 left" in error["message"]
        assert "Retry-After" not in refused.headers
        at_once = [suite.put("small", f"{number}.md", "z") for number in range(6)]
        statuses = [answer.status_code for answer in await asyncio.gather(*at_once)]
        assert sorted(statuses) == [200, *[413] * 5]
        usage = (await suite.ask("small", "GET")).json()["usage"]
        assert usage == {"documents": 2, "bytes": 31, "max_documents": 2, "max_bytes": 40}
        assert (await suite.put("small", "a.md", "x" * 39)).status_code == 200
        assert (await suite.ask("small", "DELETE", f"{PATH}/a.md")).status_code == 200
        assert (await suite.put("small", "b.md", "y" * 11)).status_code == 200
        assert (await suite.put("ann", "b.md", "y" * 99)).status_code == 200


async def test_a_file_in_base64_is_read_by_its_name(tmp_path: Path) -> None:
    async with served(tmp_path) as suite:

        async def put(name: str, content: bytes) -> httpx2.Response:
            written = base64.b64encode(content).decode()
            return await suite.put("ann", name, written, encoding="base64")

        assert (await put("a.pdf", pdf("a violet heron"))).status_code == 200
        assert (await put("b.txt", "ein größerer Reiher".encode("utf-16"))).status_code == 200
        assert await suite.found("ann", "violet") == {("ann", "a.pdf")}
        assert await suite.found("ann", "größerer") == {("ann", "b.txt")}


@pytest.mark.parametrize(
    ("body", "why"),
    [
        ({"content": pdf("x").decode("latin-1")}, "is a PDF; send its bytes with encoding base64"),
        ({"content": "a b", "encoding": "base64"}, "is not valid base64"),
        ({"content": "ä", "encoding": "base64"}, "is not valid base64"),
        (
            {"content": "YQBi", "encoding": "base64", "name": "a.txt"},
            "is not text: a zero byte at 1",
        ),
        ({"content": "YQBi", "encoding": "base64"}, "is not a readable PDF"),
        ({"content": "YQ==", "encoding": "gzip"}, "must be 'text' or 'base64'"),
    ],
)
async def test_a_file_that_cannot_be_read_is_refused_in_words_that_say_why(
    body: dict[str, str], why: str, tmp_path: Path
) -> None:
    async with served(tmp_path) as suite:
        answer = await suite.ask("ann", "POST", json={"name": "a.pdf", **body})
        error = answer.json()["error"]
        assert answer.status_code == 400
        field = "encoding" if "gzip" in body.values() else "content"
        assert error["param"] == field
        assert error["message"].startswith(f"{field}: {why}")
        assert await suite.names("ann") == []


async def test_a_question_too_long_to_search_with_is_named_by_its_field(tmp_path: Path) -> None:
    async with served(tmp_path) as suite:
        body = chat_body("heron " * 1500, max_tokens=2, tandem={"rag": True})
        answer = await suite.ask("ann", "POST", "/v1/chat/completions", json=body)
        error = answer.json()["error"]
        assert (answer.status_code, error["param"]) == (400, "tandem.query")
        assert error["message"] == "query: must have 1…8192 characters, has 8999"


@pytest.mark.parametrize("name", HOSTILE)
async def test_a_hostile_name_is_refused_and_stored_under_no_other(
    name: str, tmp_path: Path
) -> None:
    async with served(tmp_path) as suite:
        answer = await suite.put("ann", name, "x")
        assert answer.status_code == 400
        assert answer.json()["error"]["param"] == "name"
        assert await suite.names("ann") == []


async def test_a_name_is_kept_trimmed_and_composed(tmp_path: Path) -> None:
    async with served(tmp_path) as suite:
        answer = await suite.put("ann", " Re\u0301sume\u0301.md", "heron")
        assert answer.json()["name"] == "Résumé.md"
        assert await suite.names("ann") == ["Résumé.md"]
        path = f"{PATH}/{quote('Résumé.md')}"
        assert (await suite.ask("ann", "DELETE", path)).status_code == 200


async def test_without_keys_every_caller_is_the_operator(tmp_path: Path) -> None:
    async with served(tmp_path, keys=False) as suite:
        assert (await suite.put("", "new.md", "violet", shared=True)).status_code == 200
        assert set(await operators(suite)) == {"0", "1", "new.md"}
        assert await suite.used("", "violet") == ["new.md"]
        assert (await suite.ask("", "DELETE", f"{PATH}/{NOTE}")).status_code == 200
        assert set(await operators(suite)) == {"1", "new.md"}


def test_no_spelling_of_the_path_is_opened_by_another_scope() -> None:
    write, generate = (Scope.DOCUMENTS_WRITE,), (Scope.GENERATE,)
    for method in ("POST", "PUT", "PATCH", "DELETE", "OPTIONS"):
        for path in (PATH, f"{PATH}/", f"{PATH}/a/b", f"{PATH}//"):
            assert scopes_for(method, path) == write
    for path in ("/v1/models", f"{PATH}s", "/v1/tandem", "/"):
        assert scopes_for("POST", path) == generate


class EndlessDocuments:
    """Documents that are never stored; `adding` are on their way."""

    adding = 0

    async def add(self, upload: Upload) -> None:
        self.adding += 1
        try:
            await asyncio.Event().wait()
        finally:
            self.adding -= 1

    async def delete(self, name: str, owner: str) -> bool:
        raise NotImplementedError

    async def listed(self, request: ListRequest) -> ListResponse:
        raise NotImplementedError


async def test_an_upload_ends_when_its_caller_leaves_or_the_server_stops() -> None:
    """A large document is embedded for minutes: those whose callers had left kept the retriever's
    places, and other tenants got none."""
    documents, ending = EndlessDocuments(), asyncio.Event()
    settings = GatewaySettings(documents=documents)
    app = make_app(Breaking(RuntimeError()), Metrics(new_registry(), "device"), settings, ending)
    async with (
        HttpServer(app, "127.0.0.1", 0) as server,
        httpx2.AsyncClient(base_url=server.url, timeout=60) as http,
    ):
        leaves, stays = (
            asyncio.create_task(http.post(PATH, json={"name": name, "content": "x"}))
            for name in ("a.md", "b.md")
        )
        await until(lambda: documents.adding == 2)
        leaves.cancel()
        await until(lambda: documents.adding == 1)
        ending.set()
        answer = await stays
    assert answer.status_code == 503
    assert documents.adding == 0
