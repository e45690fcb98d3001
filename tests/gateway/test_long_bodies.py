"""Long bodies: read as short ones are, and answered as they are, without holding the event loop."""

from __future__ import annotations

import asyncio
import gc
import json
import time
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from typing import Any

import pytest

from tandem.core.prompt import Turn
from tandem.gateway.base_models import Lenient
from tandem.generation.client import Generated
from tandem.generation.request import GenerationRequest
from tests.gateway.http_suite import MODEL, http_to
from tests.gateway.said_answer import Saying

TURNS = 5001
MESSAGES = [{"role": ("user", "assistant")[place % 2], "content": "a"} for place in range(TURNS)]
PATHS: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": MESSAGES},
    "/v1/responses": {"input": MESSAGES},
    "/v1/messages": {"messages": MESSAGES, "max_tokens": 8},
    "/api/chat": {"messages": MESSAGES, "stream": False},
}
JSON = {"Content-Type": "application/json"}
TRIES = 3
"""Where others share the processors, the best of a few."""


@pytest.mark.parametrize("path", PATHS)
async def test_a_long_conversation_is_read_beside_the_event_loop(path: str) -> None:
    suite = Saying("Four.")
    content = json.dumps({"model": MODEL, **PATHS[path]}).encode()
    shares = list[float]()
    async with http_to(suite) as http:
        for _ in range(TRIES):
            here_s, all_s = time.thread_time(), time.process_time()
            answer = await http.post(path, content=content, headers=JSON)
            here_s, all_s = time.thread_time() - here_s, time.process_time() - all_s
            assert answer.status_code == 200, answer.text
            shares.append(here_s / all_s)
    for asked in suite.asked:
        assert asked.prompt == tuple(Turn(each["role"], each["content"]) for each in MESSAGES)
    assert min(shares) < 0.25


@pytest.mark.parametrize("place", [2, TURNS - 1])
@pytest.mark.parametrize("path", [path for path in PATHS if path != "/v1/responses"])
async def test_what_is_wrong_with_a_long_body_is_told_as_of_a_short_one(
    path: str, place: int
) -> None:
    async def told(messages: list[dict[str, Any]]) -> tuple[int, str]:
        body = {"model": MODEL, **PATHS[path], "messages": messages}
        answer = await http.post(path, content=json.dumps(body).encode(), headers=JSON)
        return answer.status_code, answer.text

    wrong = {"role": "user", "content": 1}
    async with http_to(Saying("Four.")) as http:
        short = await told([*MESSAGES[:2], wrong])
        long = await told([*MESSAGES[:place], wrong, *MESSAGES[place + 1 :]])
    assert short[0] == long[0] == 400
    assert short[1].replace("messages.2", f"messages.{place}") == long[1]


async def test_many_long_bodies_at_once_are_all_answered() -> None:
    suite = Saying("Four.")
    content = json.dumps({"model": MODEL, "messages": MESSAGES[:1001]}).encode()
    async with http_to(suite) as http:
        answers = await asyncio.gather(
            *(http.post("/v1/chat/completions", content=content, headers=JSON) for _ in range(8))
        )
    assert {answer.status_code for answer in answers} == {200}
    assert len(suite.asked) == 8


@dataclass
class Slow(Saying):
    """Says nothing until it may."""

    may: asyncio.Event = field(default_factory=asyncio.Event)
    waiting: bool = False

    async def stream(
        self, request: GenerationRequest, timeout_s: float
    ) -> AsyncGenerator[Generated]:
        self.waiting = True
        await self.may.wait()
        async for answer in super().stream(request, timeout_s):
            yield answer


@pytest.mark.parametrize("path", PATHS)
async def test_no_message_of_a_body_stays_once_it_is_read(path: str) -> None:
    """Else those of many callers together would have the collector stop everybody."""
    suite = Slow("Four.")
    content = json.dumps({"model": MODEL, **PATHS[path]}).encode()
    async with http_to(suite) as http:
        asked = asyncio.create_task(http.post(path, content=content, headers=JSON))
        async with asyncio.timeout(30):
            while not suite.waiting:
                await asyncio.sleep(0.01)
        gc.collect()
        assert sum(isinstance(each, Lenient) for each in gc.get_objects()) < TURNS
        suite.may.set()
        assert (await asked).status_code == 200
