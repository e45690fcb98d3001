"""What a web page can reach: nothing, unless the operator named it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tandem.gateway.errors import ApiError
from tandem.gateway.known_names import KnownNames, names_in
from tandem.net.access_keys import key_line
from tandem.net.scopes import Scope
from tandem.services.aggregator.config import AggregatorSettings
from tandem.services.aggregator.http import gateway_settings
from tests.gateway.http_suite import HttpSuite, chat_body, http_suite, one_loop

CHAT = "/v1/chat/completions"
KEY = "tandem-" + "k" * 43


async def ask(served: HttpSuite, **headers: str) -> httpx2.Response:
    return await served.http.post(CHAT, json=chat_body(max_tokens=1), headers=headers)


@one_loop
async def test_a_page_that_made_its_own_name_point_here_is_refused(served: HttpSuite) -> None:
    """DNS rebinding: to the browser the page and this server are one site. Private notes too."""
    port = httpx2.URL(served.url).port
    for path in ("/v1/models", "/metrics", "/healthz", "/readyz"):
        answer = await served.http.get(path, headers={"Host": f"evil.example:{port}"})
        assert (answer.status_code, answer.json()["error"]["code"]) == (421, "unknown_host")
    for body in (chat_body(), chat_body(tandem={"rag": True, "query": "my notes"})):
        headers = {"Host": "evil.example", "Origin": "http://evil.example"}
        answer = await served.http.post(CHAT, json=body, headers=headers)
        assert answer.status_code == 421
    for host in ("localhost", "LOCALHOST:8000", "a.localhost", "127.0.0.1", "[::1]:8000"):
        assert (await ask(served, host=host)).status_code == 200, host


@one_loop
async def test_a_page_of_another_site_is_refused(served: HttpSuite) -> None:
    own = httpx2.URL(served.url).netloc.decode()
    others = ("http://evil.example", "null", "http://localhost:3000", f"ftp://{own}", "")
    for origin in others:
        answer = await ask(served, origin=origin)
        assert (answer.status_code, answer.json()["error"]["code"]) == (
            403,
            "origin_not_allowed",
        ), origin
    assert (await ask(served, origin=f"http://{own}")).status_code == 200
    assert (await ask(served)).status_code == 200, "programs send no Origin"


@one_loop
async def test_a_body_must_say_that_it_is_json(served: HttpSuite) -> None:
    """A browser asks nobody before it sends the other types for a page of any site."""
    forms = ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data", "json")
    raw = json.dumps(chat_body(max_tokens=1)).encode()
    for headers in ({}, *({"Content-Type": form} for form in forms)):
        for path in (CHAT, "/v1/completions"):
            answer = await served.http.post(path, content=raw, headers=headers)
            error = answer.json()["error"]
            assert (answer.status_code, error["code"]) == (415, "unsupported_media_type")
            assert error["type"] == "invalid_request_error"
    said = {"Content-Type": "Application/JSON; charset=utf-8"}
    assert (await served.http.post(CHAT, content=raw, headers=said)).status_code == 200


async def test_pages_and_names_that_are_named_may_ask() -> None:
    hosts, origins = "API.example.com, *.example.org", "https://chat.example"
    async with http_suite(http_hosts=hosts, http_origins=origins) as served:
        for host in ("api.example.com", "a.b.example.org:80"):
            assert (await ask(served, host=host)).status_code == 200, host
        for host in ("example.org", "xapi.example.com", "api.example.com.evil.example"):
            assert (await ask(served, host=host)).status_code == 421, host
        answer = await ask(served, origin="https://chat.example")
        assert answer.status_code == 200
        assert answer.headers["access-control-allow-origin"] == "https://chat.example"
        asked = {
            "Access-Control-Request-Method": "POST",
            "Access-Control-Request-Headers": "authorization,content-type",
        }
        for origin, status in (("https://chat.example", 200), ("https://evil.example", 400)):
            may = await served.http.options(CHAT, headers={**asked, "Origin": origin})
            assert may.status_code == status
        assert (await ask(served, origin="https://evil.example")).status_code == 403


def test_where_keys_are_needed_any_name_will_do_unless_some_are_set(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text(key_line("app", KEY, {Scope.GENERATE}))

    def refused(host: str, **given: Any) -> bool:
        settings = AggregatorSettings(http_keys_file=keys, **given)
        return is_refused(gateway_settings(settings).names, {"host": host})

    assert not refused("edge.example.com")
    assert not refused("edge.example.com:8000", http_hosts="edge.example.com")
    assert refused("evil.example", http_hosts="edge.example.com")
    assert not refused("evil.example", http_hosts="*")


@pytest.mark.parametrize(
    ("host", "known"),
    [
        ("1.2.3.4:80", True),
        ("[fe80::1]:80", True),
        ("localhost.", True),
        ("mine.lan", True),
        ("", False),
        (":80", False),
        ("[", False),
        ("[evil.example]", False),
        ("1.2.3.4.evil.example", False),
        ("127.0.0.1@evil.example", False),
        ("évil", False),
    ],
)
def test_names(host: str, known: bool) -> None:
    assert is_refused(KnownNames(names_in(" Mine.LAN ,")), {"host": host}) != known


def is_refused(names: KnownNames, headers: Mapping[str, str]) -> bool:
    try:
        names.check(headers)
    except ApiError:
        return True
    return False
