"""A scripted suite with its HTTP door, and callers of it: OpenAI's own client, and bare HTTP."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import httpx2
import pytest
from openai import AsyncOpenAI, DefaultAsyncHttpxClient

from tandem.backends.interface import Engine
from tandem.core.errors import Unavailable
from tandem.core.prompt import Prompt
from tandem.gateway.app import GatewaySettings, make_app
from tandem.net.access_keys import KEY_BYTES, new_key
from tandem.runtime.tenant_memories import MemoryLimits
from tandem.services.aggregator.config import AggregatorSettings
from tandem.services.aggregator.http import serve_http
from tandem.telemetry.metrics import Metrics, new_registry
from tandem.text import Tokenizer
from tandem_api.common.v1.generation_pb2 import DescribeResponse
from tandem_api.drafter.v1.drafter_pb2 import TokenizeResponse
from tandem_api.retriever.v1.retriever_pb2 import EmbedResponse
from tests.services.scripted_suite import Path, Suite, scripted_suite

MODEL = "scripted"
KEY = new_key(bytes([7]) * KEY_BYTES)
"""Of "ann", in the fixture `keys`."""
TIMEOUT_S = 60.0
one_loop = pytest.mark.asyncio(loop_scope="session")
"""Of tests that share the running suite of the fixture `served`."""
WITHOUT_TLS = False
"""Ports without TLS ask for no authorities, and a client reads all that this machine trusts."""


class NoTexts:
    """A suite of one model that knows nothing of texts, for suites that are asked for answers."""

    leaving = False

    async def describe(self) -> DescribeResponse:
        described = DescribeResponse(presets=["auto"])
        described.target.model_name = MODEL
        return described

    async def tokenize(
        self,
        prompt: Prompt,
        spell: bool = False,
        *,
        tools: str = "",
        chat_template_kwargs: str = "",
    ) -> TokenizeResponse:
        raise Unavailable("no tokenizer")

    async def embed(
        self, texts: Sequence[str] | Sequence[Sequence[int]], most_tokens: int = 0
    ) -> EmbedResponse:
        raise Unavailable("no embedding model")


@dataclass(frozen=True, slots=True)
class HttpSuite:
    """`openai` does not try again by itself; `http` asks below `url`."""

    suite: Suite
    url: str
    openai: AsyncOpenAI
    http: httpx2.AsyncClient

    async def post(self, path: str, body: Any) -> httpx2.Response:
        return await self.http.post(path, json=body)


@asynccontextmanager
async def http_suite(
    target: Engine | None = None,
    key: str = "none",
    draft: Engine | None = None,
    path: Path | None = None,
    tokenizer: Tokenizer | None = None,
    memory: MemoryLimits | None = None,
    **settings: Any,
) -> AsyncIterator[HttpSuite]:
    """Real services and a real port; callers show `key`. `memory`: of the drafter."""
    configured = AggregatorSettings(http_port=0, insecure=True, **settings)
    async with scripted_suite(
        settings=configured,
        target=target,
        draft=draft,
        path=path,
        tokenizer=tokenizer,
        memory=memory,
    ) as suite:
        door = serve_http(configured, suite.front_metrics, suite.front)
        async with (
            door as words,
            httpx2.AsyncClient(
                base_url=words.removeprefix("http "),
                headers={"Authorization": f"Bearer {key}"},
                timeout=TIMEOUT_S,
                verify=WITHOUT_TLS,
            ) as http,
        ):
            url = str(http.base_url).rstrip("/")
            openai = AsyncOpenAI(
                base_url=f"{url}/v1",
                api_key=key,
                max_retries=0,
                timeout=TIMEOUT_S,
                http_client=DefaultAsyncHttpxClient(verify=WITHOUT_TLS),
            )
            async with openai:
                yield HttpSuite(suite, url, openai, http)


@asynccontextmanager
async def http_to(
    suite: Any, settings: GatewaySettings | None = None
) -> AsyncIterator[httpx2.AsyncClient]:
    """A caller of the gateway before `suite`, without a port."""
    app = make_app(suite, Metrics(new_registry(), "device"), settings or GatewaySettings())
    transport = httpx2.ASGITransport(app=app)
    async with httpx2.AsyncClient(base_url="http://localhost", transport=transport) as http:
        yield http


def chat_body(words: str = "hello", **more: Any) -> dict[str, Any]:
    return {"model": MODEL, "messages": [{"role": "user", "content": words}], **more}


def asking(words: str = "hello", **more: Any) -> dict[str, Any]:
    """Arguments of OpenAI's client; `tandem` goes where it takes what it does not know."""
    tandem = more.pop("tandem", None)
    extra = {} if tandem is None else {"extra_body": {"tandem": tandem}}
    return {**chat_body(words, **more), **extra}
