"""What goes wrong behind the gateway reaches the caller as the right error, and never in full."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import grpc
import httpx2
import openai
import pytest
from openai import AsyncOpenAI

from tandem.core.errors import ResourceExhausted
from tandem.gateway.app import GatewaySettings, make_app
from tandem.gateway.caller_connection import ConnectionLimits
from tandem.gateway.server import HttpServer
from tandem.generation.client import Generated
from tandem.generation.request import GenerationRequest
from tandem.net.lifecycle import PortInUse
from tandem.net.status import Rejected
from tandem.telemetry.metrics import Metrics, new_registry
from tandem_api.common.v1 import generation_pb2 as pb
from tests.gateway.http_suite import MODEL, TIMEOUT_S, NoTexts, asking, chat_body, http_to


@dataclass
class Breaking(NoTexts):
    """A suite that says `text`, then raises; without a target its cloud is lost."""

    error: Exception
    text: str = ""
    target: str = MODEL
    asked: int = 0

    async def describe(self) -> pb.DescribeResponse:
        self.asked += 1
        described = pb.DescribeResponse(cloud_error="" if self.target else "cut off")
        described.target.model_name = self.target
        return described

    async def stream(
        self, request: GenerationRequest, timeout_s: float
    ) -> AsyncGenerator[Generated]:
        if self.text:
            yield Generated(text=self.text)
        raise self.error


@asynccontextmanager
async def served(suite: Breaking) -> AsyncIterator[tuple[AsyncOpenAI, httpx2.AsyncClient]]:
    async with http_to(suite) as http:
        yield AsyncOpenAI(base_url="http://localhost/v1", api_key="none", http_client=http), http


@pytest.mark.parametrize(
    ("error", "status", "words"),
    [
        (Rejected(grpc.StatusCode.INVALID_ARGUMENT, "prompt: too long"), 400, "too long"),
        (ResourceExhausted("queue: full"), 429, "queue: full"),
        (Rejected(grpc.StatusCode.UNAVAILABLE, "the cloud is lost"), 503, "the cloud is lost"),
        (Rejected(grpc.StatusCode.DEADLINE_EXCEEDED, "late"), 504, "late"),
        (Rejected(grpc.StatusCode.DATA_LOSS, "prefix"), 502, "prefix"),
        (RuntimeError("the password is 1234"), 500, "internal error"),
        (Rejected(grpc.StatusCode.UNKNOWN, "weird"), 500, "weird"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
async def test_a_refusal_is_a_status_also_of_a_stream(
    error: Exception, status: int, words: str, stream: bool
) -> None:
    async with served(Breaking(error)) as (_, http):
        answer = await http.post("/v1/chat/completions", json=chat_body(stream=stream))
    assert answer.status_code == status
    assert words in answer.json()["error"]["message"]
    assert "1234" not in answer.text
    assert ("retry-after" in answer.headers) == (status in (429, 503))


async def test_a_stream_that_breaks_ends_with_an_error_event() -> None:
    suite = Breaking(Rejected(grpc.StatusCode.UNAVAILABLE, "the cloud is lost"), "so far")
    async with served(suite) as (client, http):
        stream = await client.chat.completions.create(**asking(), stream=True)
        assert (await anext(stream)).choices[0].delta.content == "so far"
        with pytest.raises(openai.APIError, match="the cloud is lost"):
            await anext(stream)
        bare = await http.post("/v1/chat/completions", json=chat_body(stream=True))
        assert bare.text.endswith("data: [DONE]\n\n")


@dataclass
class Pausing(Breaking):
    """Goes on once `resumed` is set."""

    resumed: asyncio.Event = field(default_factory=asyncio.Event)

    async def stream(
        self, request: GenerationRequest, timeout_s: float
    ) -> AsyncGenerator[Generated]:
        yield Generated(text="so far")
        await self.resumed.wait()
        raise self.error


async def test_a_silent_stream_is_kept_alive(monkeypatch: pytest.MonkeyPatch) -> None:
    """What comes meanwhile is a comment, which clients skip."""
    monkeypatch.setattr("tandem.gateway.event_stream.KEEP_ALIVE_S", 0.01)
    suite = Pausing(Rejected(grpc.StatusCode.UNAVAILABLE, "the cloud is lost"))
    app = make_app(suite, Metrics(new_registry(), "device"), GatewaySettings())
    async with (
        HttpServer(app, "127.0.0.1", 0) as server,
        AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client,
    ):
        bare = client.with_streaming_response.chat.completions.create(**asking(), stream=True)
        async with bare as answer:
            async for line in answer.iter_lines():
                if line.startswith(":"):
                    break
        stream = await client.chat.completions.create(**asking(), stream=True)
        assert (await anext(stream)).choices[0].delta.content == "so far"
        suite.resumed.set()
        with pytest.raises(openai.APIError, match="the cloud is lost"):
            await anext(stream)


async def test_a_choice_that_fails_ends_the_others() -> None:
    async with served(Breaking(ResourceExhausted("queue: full"))) as (_, http):
        answer = await http.post("/v1/chat/completions", json=chat_body(n=4))
    assert answer.status_code == 429


async def test_a_lost_cloud_is_not_ready_and_says_why() -> None:
    async with served(Breaking(RuntimeError(), target="")) as (_, http):
        for path in ("/readyz", "/v1/models"):
            answer = await http.get(path)
            assert answer.status_code == 503
            assert "cut off" in answer.text
        assert (await http.get("/healthz")).status_code == 200


async def test_probes_ask_the_suite_no_more_than_needed() -> None:
    suite = Breaking(RuntimeError())
    async with served(suite) as (_, http):
        for _ in range(20):
            assert (await http.get("/readyz")).status_code == 200
    assert suite.asked == 1


async def test_a_storm_of_probes_of_a_broken_cloud_asks_it_once_in_a_while(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    suite = Breaking(RuntimeError(), target="")
    async with served(suite) as (_, http):
        storm = [http.get(path) for path in ("/readyz", "/v1/models") * 20]
        answers = await asyncio.gather(*storm, http.post("/v1/completions", json=chat_body()))
        assert {answer.status_code for answer in answers[:-1]} == {503}
        assert all("cut off" in answer.text for answer in answers[:-1])
        assert suite.asked == 1
        suite.target = MODEL
        monkeypatch.setattr("tandem.gateway.catalog.FAILED_AGE_S", 0.0)
        assert (await http.get("/readyz")).status_code == 200


async def test_callers_who_send_no_request_are_cut_off_and_others_are_not() -> None:
    suite = Pausing(Rejected(grpc.StatusCode.UNAVAILABLE, "the cloud is lost"))
    app = make_app(suite, Metrics(new_registry(), "device"), GatewaySettings())
    async with (
        HttpServer(app, "127.0.0.1", 0, limits=ConnectionLimits(idle_s=0.05)) as server,
        AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client,
    ):
        stream = await client.chat.completions.create(**asking(), stream=True)
        for words in (b"", b"GET /healthz HTTP/1.1\r\nHost: x\r\n"):
            reader, writer = await asyncio.open_connection(server.host, server.port)
            writer.write(words)
            assert await asyncio.wait_for(reader.read(), TIMEOUT_S) == b""
            writer.close()
        assert (await anext(stream)).choices[0].delta.content == "so far"
        suite.resumed.set()
        with pytest.raises(openai.APIError, match="the cloud is lost"):
            await anext(stream)


async def test_a_port_that_is_taken_is_named() -> None:
    app = make_app(Breaking(RuntimeError()), Metrics(new_registry(), "device"), GatewaySettings())
    async with HttpServer(app, "127.0.0.1", 0) as server:
        with pytest.raises(PortInUse, match=f"^port {server.port} is in use: "):
            HttpServer(app, "127.0.0.1", server.port)
    with pytest.raises(httpx2.ConnectError):
        async with httpx2.AsyncClient() as http:
            await http.get(server.url + "/healthz")
