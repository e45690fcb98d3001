"""HEAD, with which load balancers and other monitors ask: as GET, without a body (RFC 9110 9.1)."""

from __future__ import annotations

from pathlib import Path

from tests.gateway.http_suite import KEY, HttpSuite, http_suite, one_loop

PATHS = (
    *("/", "/page/main.mjs", "/page/features.json", "/docs", "/openapi.json", "/healthz"),
    *("/readyz", "/metrics", "/v1/models", "/v1/models/tandem", "/v1/models/none"),
    *("/api/tags", "/api/version", "/nowhere"),
)


@one_loop
async def test_head_is_answered_as_get_without_a_body(served: HttpSuite) -> None:
    for path in PATHS:
        whole, head = await served.http.get(path), await served.http.head(path)
        assert head.status_code == whole.status_code, path
        assert head.content == b"", path
        assert head.headers["content-type"] == whole.headers["content-type"], path
        if path != "/metrics":  # which tells of the request before it
            assert head.headers["content-length"] == whole.headers["content-length"], path
        assert head.headers["x-request-id"] != whole.headers["x-request-id"]
        assert head.headers["request-id"] == head.headers["x-request-id"]  # Anthropic's name
    assert (await served.http.head("/v1/chat/completions")).status_code == 405
    answered = (await served.http.get("/metrics")).text
    assert 'route="/api/version"' in answered


async def test_head_needs_the_key_that_get_needs(keys: Path) -> None:
    async with http_suite(http_keys_file=keys) as suite:
        assert (await suite.http.head("/v1/models")).status_code == 401
        key = {"Authorization": f"Bearer {KEY}"}
        assert (await suite.http.head("/v1/models", headers=key)).status_code == 200
        assert (await suite.http.head("/metrics", headers=key)).status_code == 403
        assert (await suite.http.head("/healthz")).status_code == 200


async def test_a_page_of_another_site_may_ask_so() -> None:
    async with http_suite(http_origins="https://chat.example") as suite:
        asked = {
            "Origin": "https://chat.example",
            "Access-Control-Request-Method": "HEAD",
            "Access-Control-Request-Headers": "authorization",
        }
        assert (await suite.http.options("/v1/models", headers=asked)).status_code == 200
