"""What a key of an HTTP caller is good for, and until when."""

from __future__ import annotations

import asyncio
import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tandem.gateway.app import GatewaySettings
from tandem.gateway.guard import Guard
from tandem.gateway.known_names import KnownNames
from tandem.net.access_keys import KEY_BYTES, KeyRing, key_line, new_key, parse_keys
from tandem.net.keys_file import UNREADABLE_S, KeysFileState
from tandem.net.scopes import Caller, Scope, current_caller
from tandem.telemetry.metrics import Metrics, new_registry
from tests.gateway.http_suite import chat_body, http_suite, http_to
from tests.services.scripted_suite import scripted_suite

KEY, OTHER = (new_key(bytes([number]) * KEY_BYTES) for number in (7, 8))
RECHECK_S = 0.02


async def test_a_key_without_the_scope_generate_asks_nothing(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.write_text(key_line("indexer", KEY, {Scope.DOCUMENTS_WRITE}))
    async with http_suite(http_keys_file=path, key=KEY) as served:
        for answer in (
            await served.post("/v1/chat/completions", chat_body()),
            await served.http.get("/v1/models"),
        ):
            assert answer.status_code == 403
            error = answer.json()["error"]
            assert error["code"] == "missing_scope"
            assert error["message"] == "The key of 'indexer' does not have the scope 'generate'."


async def test_metrics_are_the_operator_s(tmp_path: Path) -> None:
    """They name every tenant and count what each one asks."""
    path, operator = tmp_path / "keys", new_key(bytes([8]) * KEY_BYTES)
    lines = (
        key_line("alice", KEY, {Scope.GENERATE}),
        key_line("operator", operator, {Scope.ADMIN}),
    )
    path.write_text("\n".join(lines))
    async with http_suite(http_keys_file=path, key=KEY) as served:
        answer = await served.http.get("/metrics")
        assert answer.status_code == 403
        assert "does not have the scope 'admin'" in answer.json()["error"]["message"]
        headers = {"Authorization": f"Bearer {operator}"}
        metrics = await served.http.get("/metrics", headers=headers)
        assert metrics.status_code == 200
        assert "tandem_" in metrics.text


class Endless:
    """An application whose answer begins, where `begins`, and never ends."""

    def __init__(self, begins: bool) -> None:
        self._begins = begins
        self.caller: Caller | None = None
        self.ended = False

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self.caller = current_caller()
        try:
            if self._begins:
                await send({"type": "http.response.start", "status": 200, "headers": []})
            await asyncio.Event().wait()
        finally:
            self.ended = True


@pytest.mark.parametrize("begins", [True, False])
async def test_an_answer_under_way_ends_soon_after_its_key_was_revoked(begins: bool) -> None:
    ring = parse_keys(key_line("app", KEY, {Scope.GENERATE}))
    app, sent = Endless(begins), []

    async def send(message: Any) -> None:
        sent.append(message)

    async def receive() -> Any:
        return {"type": "http.request", "body": b""}

    series = Metrics(new_registry(), "device").http()
    guard = Guard(app, lambda: ring, KnownNames(), 1, series, RECHECK_S)
    headers = [(b"authorization", f"Bearer {KEY}".encode()), (b"host", b"localhost")]
    scope = {"type": "http", "method": "GET", "path": "/v1/models", "headers": headers}
    serving = asyncio.create_task(guard(scope, receive, send))
    await asyncio.sleep(3 * RECHECK_S)
    assert not serving.done()
    assert app.caller == Caller("app", frozenset({Scope.GENERATE}), over_http=True)
    ring = KeyRing()
    await asyncio.wait_for(serving, 30)
    assert app.ended
    starts = [message["status"] for message in sent if "status" in message]
    assert starts == ([200] if begins else [401])
    if not begins:
        assert json.loads(sent[-1]["body"])["error"]["code"] == "invalid_api_key"


async def test_readiness_tells_of_a_malformed_line_and_stays_ready(tmp_path: Path) -> None:
    """Not ready, a whole fleet would be gone with one mistake in a file that is brought to all."""
    path = tmp_path / "keys"
    line = key_line("app", KEY, {Scope.GENERATE, Scope.ADMIN})
    path.write_text(line)
    async with http_suite(http_keys_file=path, key=KEY) as served:
        assert (await served.http.get("/readyz")).json() == {"status": "ready"}
        path.write_text(f"{line}\nother {OTHER}\n")
        answer = await served.http.get("/readyz")
        assert answer.status_code == 200
        told = "malformed lines of the keys file are ignored: 2"
        assert answer.json() == {"status": "ready", "warning": told}
        scraped = (await served.http.get("/metrics")).text
        assert 'keys_file_malformed_lines{file="http_keys_file",side="device"} 1.0' in scraped
        assert 'keys_file_unreadable_seconds{file="http_keys_file",side="device"} 0.0' in scraped
        path.write_text(f"other {OTHER}\n")
        assert (await served.http.get("/v1/models")).status_code == 401


async def test_readiness_ends_where_no_key_is_accepted_any_more() -> None:
    async with scripted_suite() as suite:
        answers = []
        for unreadable_s in (UNREADABLE_S - 1, UNREADABLE_S):
            state = partial(KeysFileState, unreadable_s=unreadable_s)
            settings = GatewaySettings(keys=KeyRing, keys_state=state)
            async with http_to(suite.front.requests, settings) as http:
                answers.append(await http.get("/readyz"))
    assert [each.status_code for each in answers] == [200, 503]
    used, refused = answers[0].json(), answers[1].json()
    assert (used["status"], refused["status"]) == ("ready", "not ready")
    assert used["warning"] == "the keys file cannot be read: the last known keys are still used"
    assert refused["reason"] == "the keys file has been unreadable for 300 s: no key is accepted"
