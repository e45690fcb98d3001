"""Two keys: what the one asks for is not at the other's expense."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tandem.backends.interface import Engine
from tandem.net.access_keys import key_line
from tandem.net.scopes import Scope
from tests.gateway.http_suite import TIMEOUT_S, HttpSuite, chat_body, http_suite
from tests.gateway.test_admission import SLOW, slow_target
from tests.services.scripted_suite import until

CHAT = "/v1/chat/completions"
KEYS = {"greedy": "tandem-" + "g" * 43, "honest": "tandem-" + "h" * 43}
LONG = chat_body(max_tokens=400, tandem=SLOW)
SHORT = chat_body(max_tokens=1)


@asynccontextmanager
async def two_callers(
    folder: Path, target: Engine | None = None, **settings: Any
) -> AsyncIterator[tuple[HttpSuite, httpx2.AsyncClient, httpx2.AsyncClient]]:
    """With those of the greedy and of the honest key."""
    path = folder / "keys"
    lines = [key_line(name, key, {Scope.GENERATE}) for name, key in KEYS.items()]
    path.write_text("\n".join(lines))
    async with AsyncExitStack() as stack:
        suite = http_suite(target, KEYS["greedy"], http_keys_file=path, **settings)
        served = await stack.enter_async_context(suite)
        headers = {"Authorization": f"Bearer {KEYS['honest']}"}
        honest = httpx2.AsyncClient(base_url=served.url, headers=headers, timeout=TIMEOUT_S)
        yield served, served.http, await stack.enter_async_context(honest)


async def open_requests(served: HttpSuite, count: int) -> None:
    await until(lambda: served.suite.front.open_requests == count)


async def test_a_slot_that_comes_free_is_the_honest_one_s(tmp_path: Path) -> None:
    """Though the greedy key asked for more before."""
    limits = {"max_running": 1, "max_waiting": 3}
    async with two_callers(tmp_path, slow_target(), **limits) as (served, greedy, honest):
        asked = []
        for count in range(1, 4):
            asked.append(asyncio.create_task(greedy.post(CHAT, json=LONG)))
            await open_requests(served, count)
        waiting = asyncio.create_task(honest.post(CHAT, json=SHORT))
        await open_requests(served, 4)
        asked[0].cancel()
        assert (await waiting).status_code == 200
        assert not any(task.done() for task in asked[1:]), "their turn came after"
        for task in asked:
            task.cancel()
        await served.suite.idle()


@pytest.mark.parametrize("stream", [False, True])
async def test_a_place_in_a_full_queue_is_the_honest_one_s(tmp_path: Path, stream: bool) -> None:
    """The greedy key's last request makes way, and is told when to come again."""
    limits = {"max_running": 1, "max_waiting": 2}
    async with two_callers(tmp_path, slow_target(), **limits) as (served, greedy, honest):
        asked = []
        for count in range(1, 4):
            body = {**LONG, "stream": stream}
            asked.append(asyncio.create_task(greedy.post(CHAT, json=body)))
            await open_requests(served, count)
        waiting = asyncio.create_task(honest.post(CHAT, json=SHORT))
        refused = await asked.pop()
        assert (refused.status_code, refused.headers["retry-after"]) == (429, "1")
        assert "'greedy' holds the most request slots" in refused.json()["error"]["message"]
        asked[0].cancel()
        assert (await waiting).status_code == 200
        asked[1].cancel()
        await served.suite.idle()


async def test_a_key_alone_may_have_all_that_is_handled_at_once(tmp_path: Path) -> None:
    limits = {"http_max_requests": 2}
    async with two_callers(tmp_path, slow_target(), **limits) as (served, greedy, honest):
        asked = [asyncio.create_task(greedy.post(CHAT, json=LONG)) for _ in range(2)]
        await open_requests(served, 2)
        refused = await greedy.post(CHAT, json=SHORT)
        assert refused.status_code == 429
        assert "all 2 HTTP requests are in use" in refused.json()["error"]["message"]
        assert (await honest.post(CHAT, json=SHORT)).status_code == 429
        asked.pop().cancel()
        await open_requests(served, 1)
        refused = await greedy.post(CHAT, json=SHORT)
        assert refused.status_code == 429, "the other key is active now"
        words = "fair-share limit reached: 'greedy' holds 1 of 2 HTTP requests"
        assert words in refused.json()["error"]["message"]
        assert (await honest.post(CHAT, json=SHORT)).status_code == 200
        asked.pop().cancel()
        await served.suite.idle()


@pytest.mark.parametrize("what", ["requests", "tokens"])
async def test_a_minute_s_worth_is_told_of(tmp_path: Path, what: str) -> None:
    limit = {f"quota_{what}_per_minute": 2}
    async with two_callers(tmp_path, None, **limit) as (_, greedy, honest):
        for _ in range(2):
            assert (await greedy.post(CHAT, json=SHORT)).status_code == 200
        for stream in (False, True):
            refused = await greedy.post(CHAT, json={**SHORT, "stream": stream})
            assert refused.status_code == 429
            error = refused.json()["error"]
            assert (error["type"], error["code"]) == ("rate_limit_error", "rate_limit_exceeded")
            assert f"'greedy' has used its 2 {what} per minute" in error["message"]
            assert 5 <= int(refused.headers["retry-after"]) <= 60
        assert (await greedy.get("/v1/models")).status_code == 200
        assert (await honest.post(CHAT, json=SHORT)).status_code == 200


TOKENISING = {
    "/tokenize": {"model": "scripted", "prompt": "abc"},
    "/detokenize": {"model": "scripted", "tokens": [1, 2]},
    "/v1/messages/count_tokens": {
        "model": "scripted",
        "messages": [{"role": "user", "content": "abc"}],
    },
}


@pytest.mark.parametrize("path", TOKENISING)
async def test_calls_that_ask_for_no_answer_count_too(tmp_path: Path, path: str) -> None:
    async with two_callers(tmp_path, None, quota_requests_per_minute=3) as (_, greedy, honest):
        for _ in range(3):
            assert (await greedy.post(path, json=TOKENISING[path])).status_code == 200
        for refused_path, body in (*TOKENISING.items(), (CHAT, SHORT)):
            refused = await greedy.post(refused_path, json=body)
            assert refused.status_code == 429
            assert "'greedy' has used its 3 requests per minute" in refused.text
            assert 5 <= int(refused.headers["retry-after"]) <= 60
        assert (await honest.post(path, json=TOKENISING[path])).status_code == 200


async def test_the_tokens_of_an_answer_that_is_left_are_counted(tmp_path: Path) -> None:
    limits = {"quota_tokens_per_minute": 3}
    async with two_callers(tmp_path, slow_target(), **limits) as (served, greedy, _):
        body = {**LONG, "stream": True, "n": 2}
        async with greedy.stream("POST", CHAT, json=body) as answer:
            lines = answer.aiter_lines()
            for _ in range(24):
                await anext(lines)
        await served.suite.idle()
        refused = await greedy.post(CHAT, json=SHORT)
        assert refused.status_code == 429
        assert "has used its 3 tokens per minute" in refused.json()["error"]["message"]


LARGE_BODIES: dict[str, dict[str, Any]] = {
    "bytes": {"user": "x" * 400_000},
    "objects": {"messages": [{"role": "user", "content": "a"}] * 1500},
}


@pytest.mark.parametrize("what", LARGE_BODIES)
async def test_large_bodies_are_read_at_their_sender_s_pace(tmp_path: Path, what: str) -> None:
    """Also those that are refused, whose reading is all that they cost."""
    large = {**SHORT, **LARGE_BODIES[what], "temprature": 1}
    async with two_callers(tmp_path, http_body_bytes_per_s=500_000) as (_, greedy, honest):
        began_s = time.monotonic()
        sending = [asyncio.create_task(greedy.post(CHAT, json=large)) for _ in range(4)]
        assert (await honest.post(CHAT, json={**SHORT, "user": "x" * 400_000})).status_code == 200
        honest_s = time.monotonic() - began_s
        assert [(await sent).status_code for sent in sending] == [400] * 4
        greedy_s = time.monotonic() - began_s
    assert greedy_s > 2.0  # 1.6 MB, of which 0.5 at once and 0.5 in a second
    assert honest_s < greedy_s / 2
