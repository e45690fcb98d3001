"""Who gets in, how many, and what the others are told."""

from __future__ import annotations

import asyncio
from pathlib import Path

import httpx2
import openai
import pytest
from openai import AsyncOpenAI

from tandem.gateway.app import make_routes
from tandem.gateway.guard import OPEN_PATHS
from tandem.gateway.web_page import DOCS_FILES, FEATURES_PATH, PAGE_FILES
from tandem.generation.request import GenerationRequest
from tandem.net.access_keys import key_line
from tandem.net.scopes import Scope
from tandem.net.status import Rejected
from tandem.services.aggregator.config import AggregatorSettings
from tandem.services.aggregator.http import gateway_settings
from tandem.settings import SettingsError
from tandem.testing.paced import PacedEngine
from tandem.testing.scripted import ScriptedEngine, scripted_probs
from tests.gateway.http_suite import TIMEOUT_S, HttpSuite, asking, chat_body, http_suite
from tests.services.scripted_suite import CONTEXT, VOCABULARY, until

KEY = "tandem-" + "k" * 43
OTHER_KEY = "tandem-" + "o" * 43
SLOW = {"preset": "ar"}


def slow_target() -> PacedEngine:
    """A pass takes 20 ms and no token ends the text: an answer of 400 tokens holds its slot until
    it is left."""
    probs = scripted_probs(1, VOCABULARY, sharpness=9.0)
    return PacedEngine(ScriptedEngine(VOCABULARY, probs, context_length=CONTEXT), 0.02, 0.0)


async def test_overload_is_429_at_both_doors_and_passes() -> None:
    async with http_suite(slow_target(), max_running=1, max_waiting=0) as served:
        first = asking(max_tokens=400, tandem=SLOW)
        async with await served.openai.chat.completions.create(**first, stream=True) as stream:
            await anext(aiter(stream))
            with pytest.raises(openai.RateLimitError) as refused:
                await served.openai.chat.completions.create(**asking())
            assert int(refused.value.response.headers["retry-after"]) >= 1
            assert refused.value.code == "rate_limit_exceeded"
            with pytest.raises(Rejected, match="all 1 request slots are in use"):
                await served.suite.client.generate(GenerationRequest("a"))
        await served.suite.idle()
        # OpenAI's client waits as long as it is told, and tries again.
        patient = served.openai.with_options(max_retries=2)
        answer = await patient.chat.completions.create(**asking(max_tokens=2))
        assert answer.choices[0].message.content


async def test_no_slot_in_time_is_504() -> None:
    async with http_suite(slow_target(), max_running=1, request_timeout_s=0.3) as served:
        bodies = [chat_body(max_tokens=400, tandem=SLOW) for _ in range(2)]
        answers = await asyncio.gather(
            *(served.post("/v1/chat/completions", body) for body in bodies)
        )
        assert [answer.status_code for answer in answers] == [504, 504]
        await served.suite.idle()


async def test_a_caller_who_leaves_the_queue_makes_room_in_it() -> None:
    async with http_suite(slow_target(), max_running=1, max_waiting=1) as served:
        first = asking(max_tokens=400, tandem=SLOW)
        async with await served.openai.chat.completions.create(**first, stream=True):
            waiting = asyncio.create_task(served.post("/v1/chat/completions", chat_body()))
            async with asyncio.timeout(TIMEOUT_S):
                await until(lambda: served.suite.front.open_requests >= 2)
                assert (await served.post("/v1/chat/completions", chat_body())).status_code == 429
                waiting.cancel()
                await until(lambda: served.suite.front.open_requests <= 1)
        await served.suite.idle()


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    path = tmp_path / "keys"
    path.write_text(f"# who may ask\n{key_line('app', KEY, {Scope.GENERATE})}\n")
    return path


def all_routes(served: HttpSuite, settings: AggregatorSettings) -> list[tuple[str, str]]:
    """Method and path of everything the application answers, FastAPI's own included."""
    app = make_routes(
        served.suite.front.requests, served.suite.front_metrics, gateway_settings(settings)
    )
    return [
        (method, path)
        for route in app.routes
        if (path := getattr(route, "path", ""))
        for method in getattr(route, "methods", None) or {"GET"}
    ]


async def test_without_a_key_nothing_is_open_but_health_and_the_page(keys: Path) -> None:
    async with http_suite(http_keys_file=keys, key=KEY) as served:
        settings = AggregatorSettings(http_keys_file=keys)
        routes = all_routes(served, settings)
        assert len(routes) >= 8
        async with httpx2.AsyncClient(base_url=served.url) as nobody:
            for method, path in [*routes, ("GET", "/nowhere"), ("POST", "/v1/models/../metrics")]:
                answer = await nobody.request(method, path.replace("{model:path}", "scripted"))
                if path in OPEN_PATHS | {
                    *DOCS_FILES,
                    *PAGE_FILES,
                    FEATURES_PATH,
                }:  # say nothing of the server
                    assert answer.status_code == 200, path
                else:
                    assert answer.status_code == 401, path
                    assert answer.headers["www-authenticate"] == "Bearer"
        answer = await served.openai.chat.completions.create(**asking(max_tokens=1))
        assert answer.choices


async def test_a_wrong_key_is_401(keys: Path) -> None:
    async with http_suite(http_keys_file=keys, key=KEY) as served:
        shown = [f"Bearer {OTHER_KEY}", f"Basic {KEY}", KEY, "Bearer", f"Bearer {KEY[:-1]}"]
        for header in shown:
            answer = await served.http.get("/v1/models", headers={"Authorization": header})
            assert answer.status_code == 401, header
            assert answer.json()["error"]["code"] == "invalid_api_key"
        wrong = AsyncOpenAI(base_url=f"{served.url}/v1", api_key=OTHER_KEY, max_retries=0)
        async with wrong:
            with pytest.raises(openai.AuthenticationError):
                await wrong.models.list()


def test_keys_that_cannot_be_read_stop_the_start(tmp_path: Path) -> None:
    bad = tmp_path / "keys"
    bad.write_text(f"app {KEY}\n")
    for path, why in ((bad, "line 1"), (tmp_path / "none", ""), (None, "must be set")):
        with pytest.raises(SettingsError, match=f"TANDEM_HTTP_KEYS_FILE: .*{why}") as refused:
            gateway_settings(AggregatorSettings(http_keys_file=path))
        assert KEY not in str(refused.value)


async def test_a_stopping_aggregator_says_so() -> None:
    async with http_suite() as served:
        assert (await served.http.get("/readyz")).status_code == 200
        served.suite.front.going_away(1.0)
        assert (await served.http.get("/readyz")).status_code == 503
        answer = await served.post("/v1/chat/completions", chat_body())
        assert answer.status_code == 503
        assert answer.headers["retry-after"] == "1"
        assert "stopping" in answer.json()["error"]["message"]
        assert (await served.http.get("/healthz")).status_code == 200


async def test_answers_are_counted_by_route_and_status() -> None:
    async with http_suite() as served:
        await served.post("/v1/chat/completions", chat_body(max_tokens=1))
        await served.post("/v1/chat/completions", {})
        await served.http.get("/no/such/route")
        text = (await served.http.get("/metrics")).text
    for labels in (
        'code="200",route="/v1/chat/completions"',
        'code="400",route="/v1/chat/completions"',
        'code="404",route="other"',
    ):
        assert f'tandem_http_requests_total{{{labels},side="device"}} 1.0' in text
