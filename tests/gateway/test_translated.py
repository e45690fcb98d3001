"""What is asked in other APIs' forms is asked of the same suite: admitted, limited, counted and
ended as what OpenAI's routes are asked."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.gateway.http_suite import KEY, MODEL, chat_body, http_suite, http_to
from tests.gateway.said_answer import Saying

OPENAI = ("/v1/chat/completions", chat_body(max_tokens=1))
OTHERS: dict[str, dict[str, Any]] = {
    "/v1/messages": chat_body(max_tokens=1),
    "/api/chat": {**chat_body(), "options": {"num_predict": 1}, "stream": False},
    "/api/generate": {"model": MODEL, "prompt": "a", "options": {"num_predict": 1}},
}


@pytest.mark.parametrize("path", OTHERS)
async def test_a_quota_is_one_for_all_apis(keys: Path, path: str) -> None:
    limits: dict[str, Any] = {"http_keys_file": keys, "quota_requests_per_minute": 2}
    async with http_suite(key=KEY, **limits) as served:
        assert (await served.post(*OPENAI)).status_code == 200
        assert (await served.post(path, OTHERS[path])).status_code == 200
        for each, body in (OPENAI, (path, OTHERS[path])):
            refused = await served.post(each, body)
            assert refused.status_code == 429
            assert "'ann' has used its 2 requests per minute" in refused.text
            assert 1 <= int(refused.headers["retry-after"]) <= 60


@pytest.mark.parametrize("path", OTHERS)
async def test_a_stream_that_is_left_frees_both_sides(path: str) -> None:
    long = {**OTHERS[path], "stream": True}
    if "options" in long:
        long["options"] = {"num_predict": 400}
    else:
        long["max_tokens"] = 400
    async with http_suite() as served:
        async with served.http.stream("POST", path, json=long) as answer:
            await anext(answer.aiter_lines())
        await served.suite.idle()


@pytest.mark.parametrize("path", OTHERS)
async def test_a_body_that_is_no_json_is_refused_in_the_api_s_form(path: str) -> None:
    async with http_to(Saying("x")) as http:
        json_type = {"Content-Type": "application/json"}
        broken = await http.post(path, content=b"{", headers=json_type)
        untyped = await http.post(path, content=b"{}")
    for answer, status in ((broken, 400), (untyped, 415)):
        assert answer.status_code == status
        error = answer.json()["error"]
        message = error["message"] if path == "/v1/messages" else error
        assert message.startswith("the body ")
