"""An aggregator that is told to stop while HTTP requests are answered."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from typing import Any

import httpx2
import pytest

from tandem_api.common.v1 import generation_pb2 as pb
from tests.gateway.http_suite import HttpSuite, chat_body, http_suite, http_to
from tests.gateway.test_admission import SLOW, slow_target
from tests.gateway.test_failures import Breaking
from tests.services.scripted_suite import until

CHAT = "/v1/chat/completions"


async def stopped(
    served: HttpSuite, bodies: list[dict[str, Any]], drain_s: float
) -> list[httpx2.Response]:
    """Answers to what was asked before the aggregator was told to stop and given `drain_s`."""
    asked = [asyncio.create_task(served.post(CHAT, body)) for body in bodies]
    await until(lambda: served.suite.front.open_requests >= len(bodies))
    draining = asyncio.create_task(served.suite.aggregator.drain(drain_s))
    await until(lambda: served.suite.front.requests.leaving)
    await asyncio.sleep(0.01)
    with pytest.raises(OSError, match=r"refused|Connect"):
        await asyncio.open_connection(*served.url.removeprefix("http://").split(":"))
    await draining
    return await asyncio.gather(*asked)


async def test_what_ends_in_time_is_answered(caplog: pytest.LogCaptureFixture) -> None:
    async with http_suite(slow_target()) as served:
        body = chat_body(max_tokens=10, tandem=SLOW)
        answers = await stopped(served, [body, {**body, "stream": True}], 30.0)
    assert [answer.status_code for answer in answers] == [200, 200]
    assert answers[0].json()["usage"]["completion_tokens"] == 10
    assert answers[1].text.endswith("data: [DONE]\n\n")
    assert "error" not in answers[1].text
    assert_quiet(caplog)


async def test_what_does_not_is_told_so(caplog: pytest.LogCaptureFixture) -> None:
    """503 where no status was sent yet, and otherwise an error in the stream; never a reset, and no
    traceback. Two of these run, two wait for a slot."""
    async with http_suite(slow_target(), max_running=2) as served:
        body = chat_body(max_tokens=400, tandem=SLOW)
        stream = {**body, "stream": True}
        answers = await stopped(served, [body, stream, body, {**stream, "n": 1}], 0.2)
    whole = [answer for answer in answers if answer.status_code != 200]
    for answer in whole:
        assert answer.status_code == 503
        assert answer.headers["retry-after"] == "1"
        assert "stopping" in answer.json()["error"]["message"]
    begun = [answer for answer in answers if answer.status_code == 200]
    assert len(begun) <= 1 < len(whole)
    for answer in begun:
        assert '"code":"unavailable"' in answer.text
        assert answer.text.endswith("data: [DONE]\n\n")
    assert_quiet(caplog)


async def test_a_body_on_its_way_is_told_so_too(caplog: pytest.LogCaptureFixture) -> None:
    async with http_suite() as served:
        host, port = served.url.removeprefix("http://").split(":")
        reader, writer = await asyncio.open_connection(host, port)
        head = "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n"
        writer.write(f"{head}Content-Type: application/json\r\n\r\n{{".encode())
        await asyncio.sleep(0.1)
        await served.suite.aggregator.drain(0.0)
        assert (await reader.readline()).startswith(b"HTTP/1.1 503 ")
        writer.close()
    assert_quiet(caplog)


@dataclass
class Ended(Breaking):
    """Its connections were closed below what was asked of them."""

    async def describe(self) -> pb.DescribeResponse:
        raise asyncio.CancelledError


async def test_a_call_that_is_ended_below_is_no_fault_of_ours() -> None:
    async with http_to(Ended(RuntimeError())) as http:
        for path in ("/readyz", "/v1/models"):
            answer = await http.get(path)
            assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")


def assert_quiet(caplog: pytest.LogCaptureFixture) -> None:
    errors = [record for record in caplog.records if record.levelno >= logging.ERROR]
    assert not errors, [record.getMessage() for record in errors]
