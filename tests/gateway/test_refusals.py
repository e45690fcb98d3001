"""Whatever a caller sends, the answer is a 4xx in OpenAI's format that names what to change."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from typing import Any

import httpx2
import pytest
import pytest_asyncio
from pydantic import ValidationError

from tandem.core.errors import InvalidArgument
from tandem.gateway.errors import ApiError, api_error, validation_error
from tandem.gateway.request_reading import RequestLimits, chat_requests
from tandem.gateway.schema import ChatCompletionRequest, TandemOptions
from tests.gateway.http_suite import MODEL, HttpSuite, chat_body, http_suite

pytestmark = pytest.mark.asyncio(loop_scope="module")

CHAT = "/v1/chat/completions"
JSON = {"Content-Type": "application/json"}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def served() -> AsyncIterator[HttpSuite]:
    async with http_suite(http_max_tokens=64) as running:
        yield running


def error_of(answer: httpx2.Response) -> dict[str, Any]:
    """The error, after its form was checked."""
    body = answer.json()
    assert set(body) == {"error"}
    error: dict[str, Any] = body["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["message"]
    return error


@pytest.mark.parametrize(
    ("field", "value", "param"),
    [
        ("temperature", -0.1, "temperature"),
        ("temperature", 2.1, "temperature"),
        ("temperature", "1", "temperature"),
        ("top_p", 0, "top_p"),
        ("top_p", 1.5, "top_p"),
        ("max_tokens", 0, "max_tokens"),
        ("max_tokens", -5, "max_tokens"),
        ("max_tokens", 5.5, "max_tokens"),
        ("max_tokens", 65, "max_tokens"),
        ("max_completion_tokens", 65, "max_completion_tokens"),
        ("n", 0, "n"),
        ("n", 9, "n"),
        ("n", True, "n"),
        ("seed", -2, "seed"),
        ("seed", 2**64, "seed"),
        ("stop", "", "stop"),
        ("stop", ["a", 1], "stop"),
        ("stop", ["x"] * 17, "stop"),
        ("stream", "yes", "stream"),
        ("stream_options", {"include_usage": True}, "stream_options"),
        ("messages", [], "messages"),
        ("messages", "hello", "messages"),
        ("messages", [{"role": "user"}], "messages.0.content"),
        ("messages", [{"role": "robot", "content": "x"}], "messages.0.role"),
        ("messages", [{"role": "user", "content": ["x"]}], "messages.0.content"),
        ("messages", [{"role": "user", "content": ""}], "messages"),
        ("messages", [{"role": "user", "content": "a" * 600}], "messages"),
        ("model", None, "model"),
        ("tools", [{"type": "function"}], "tools.0.function"),
        ("logit_bias", {"a": 1}, "logit_bias"),
        ("logit_bias", {"64": 1}, "logit_bias"),
        ("logit_bias", {"5": 101}, "logit_bias"),
        ("frequency_penalty", 2.5, "frequency_penalty"),
        ("presence_penalty", -2.5, "presence_penalty"),
        ("repetition_penalty", 0, "repetition_penalty"),
        ("min_p", 1.5, "min_p"),
        ("typical_p", 0, "typical_p"),
        ("banned_token_ids", list(range(64)), "banned_token_ids"),
        ("allowed_token_ids", [64], "allowed_token_ids"),
        ("response_format", {"type": "yaml"}, "response_format"),
        (
            *("response_format", {"type": "json_schema", "json_schema": {}}),
            "response_format.json_schema.name",
        ),
        ("guided_json", "{", "guided_json"),
        ("guided_choice", [], "guided_choice"),
        ("structured_outputs", {"json": 1}, "structured_outputs.json"),
        ("temprature", 1, "temprature"),
        ("top_k", -2, "top_k"),
        ("top_k", 10**6, "top_k"),
        ("stop_token_ids", [-1], "stop_token_ids.0"),
        ("stop_token_ids", [64], "stop_token_ids"),
        ("stop_token_ids", [1] * 65, "stop_token_ids"),
        ("truncate", "newest", "truncate"),
        ("priority", 2**31, "priority"),
        ("ignore_eos", "yes", "ignore_eos"),
        ("tandem", {"preset": "fastest"}, "tandem.preset"),
        ("tandem", {"draft_length": 10**6}, "tandem.draft_length"),
        ("tandem", {"top_k": -1}, "tandem.top_k"),
        ("tandem", {"overrides": ["window=many"]}, "tandem.overrides"),
        ("tandem", {"lost_cloud": "hope"}, "tandem.lost_cloud"),
        ("tandem", {"speed": 9}, "tandem.speed"),
        ("top_logprobs", 3, "top_logprobs"),
        ("top_logprobs", 21, "top_logprobs"),
        ("logprobs", 1, "logprobs"),
    ],
)
async def test_a_bad_value_is_named(served: HttpSuite, field: str, value: Any, param: str) -> None:
    answer = await served.post(CHAT, {**chat_body(), field: value})
    error = error_of(answer)
    assert (answer.status_code, error["param"]) == (400, param)
    assert error["type"] == "invalid_request_error"


@pytest.mark.parametrize(
    ("prompt", "more"),
    [
        ([], {}),
        ("", {}),
        ([1, "a"], {}),
        ([-1], {}),
        ([64], {}),
        ([2**40], {}),
        ("a" * 600, {}),
        (["a"] * 9, {}),
        ({"text": "a"}, {}),
    ],
)
async def test_a_bad_prompt_is_named(served: HttpSuite, prompt: Any, more: Any) -> None:
    answer = await served.post("/v1/completions", {"model": MODEL, "prompt": prompt, **more})
    assert answer.status_code == 400
    assert error_of(answer)["param"] in ("prompt", "n")


async def test_what_asks_for_nothing_is_taken(served: HttpSuite) -> None:
    body = chat_body(
        max_tokens=2,
        user="me",
        tools=[],
        frequency_penalty=0.0,
        logit_bias={},
        response_format={"type": "text"},
        stop=None,
        n=None,
    )
    assert (await served.post(CHAT, body)).status_code == 200


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"{",
        b"\xff\xfe",
        b"null",
        b"[1]",
        b'{"model": NaN}',
        b"[" * 100_000,
        b'{"model": "scripted", "messages": [{"role": "user", "content": "\\ud800"}]}',
    ],
)
async def test_what_is_no_json_object_is_said_to_be_none(served: HttpSuite, raw: bytes) -> None:
    answer = await served.http.post(CHAT, content=raw, headers=JSON)
    assert answer.status_code == 400
    error_of(answer)


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e999", "9" * 400])
@pytest.mark.parametrize("field", ["temperature", "top_p", "seed", "max_tokens"])
async def test_numbers_that_are_none_are_refused(
    served: HttpSuite, field: str, number: str
) -> None:
    raw = json.dumps({**chat_body(), field: 0}).replace(f'"{field}": 0', f'"{field}": {number}')
    answer = await served.http.post(CHAT, content=raw, headers=JSON)
    assert answer.status_code == 400
    error_of(answer)


async def test_ten_megabytes_are_refused_and_the_connection_goes_on(served: HttpSuite) -> None:
    for body in (chat_body("x" * 10**7), {**chat_body(), "messages": ["x"] * 10**6}):
        answer = await served.http.post(CHAT, json=body)
        assert (answer.status_code, error_of(answer)["code"]) == (413, "request_too_large")
    assert (await served.post(CHAT, chat_body(max_tokens=1))).status_code == 200


def junk_bodies() -> Iterator[dict[str, Any]]:
    """Every field of a body with values of every kind, also inside `tandem` and a message."""
    junk: list[Any] = [
        *(None, True, -1, 0, 3, 1e308, 2**63, 10**30, "", "x", "\x00", "é" * 300),
        *([], {}, [[]], [None], ["x"], [3], {"x": None}, [{"role": "user", "content": "x"}]),
    ]
    for value in junk:
        for field in (*ChatCompletionRequest.model_fields, "tools", "user", "ignore_exit"):
            yield {**chat_body(max_tokens=1), field: value}
        for field in TandemOptions.model_fields:
            yield chat_body(max_tokens=1, tandem={field: value})
        for field in ("role", "content", "name"):
            message = {"role": "user", "content": "x", field: value}
            yield chat_body(max_tokens=1, messages=[message])


def refused_by_the_gateway(body: dict[str, Any]) -> ApiError | None:
    try:
        read = ChatCompletionRequest.model_validate_json(json.dumps(body))
        chat_requests(read, RequestLimits(max_tokens=64))
    except ValidationError as error:
        return validation_error(error.errors(include_url=False))
    except (ApiError, InvalidArgument) as error:
        return api_error(error)
    return None


async def test_no_junk_in_any_field_is_our_fault(served: HttpSuite) -> None:
    """What the gateway lets through is asked of the suite as well."""
    passed = 0
    for body in junk_bodies():
        refused = refused_by_the_gateway(body)
        if refused is not None:
            assert refused.status == 400, body
            continue
        passed += 1
        if passed % 3 == 0 or "prompt" in body or "tandem" in body:
            answer = await served.post(CHAT, body)
            assert answer.status_code in (200, 400, 404), (body, answer.text)
    assert passed > 60


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [("GET", "/v1/chat/completions", 405), ("GET", "/v2/models", 404), ("POST", "/", 405)],
)
async def test_wrong_addresses_are_errors_of_the_same_form(
    served: HttpSuite, method: str, path: str, status: int
) -> None:
    answer = await served.http.request(method, path)
    assert answer.status_code == status
    error_of(answer)


async def test_every_method_of_a_path_is_named_to_who_asks_by_another(served: HttpSuite) -> None:
    for path, methods in (("/v1/responses/resp_1", "DELETE, GET"), (CHAT, "POST")):
        answer = await served.http.request("PUT", path)
        assert (answer.status_code, answer.headers["allow"]) == (405, methods)


async def test_a_model_that_is_not_here_is_not_found(served: HttpSuite) -> None:
    answer = await served.post(CHAT, {**chat_body(), "model": "gpt\n<script>"})
    assert answer.status_code == 404
    assert error_of(answer)["code"] == "model_not_found"


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("model", "m" * 500_000),
        ("tandem", {"n" * 500_000: 1}),
        ("tandem", {"preset": "p" * 500_000}),
    ],
    ids=["model", "unknown name", "preset"],
)
async def test_a_refusal_repeats_no_more_than_a_reader_needs(
    served: HttpSuite, field: str, value: Any
) -> None:
    """A name of half a megabyte came back, twice where it was the parameter's."""
    answer = await served.post(CHAT, chat_body(**{field: value}))
    assert answer.status_code in (400, 404)
    assert error_of(answer)["param"].startswith(field)
    assert len(answer.content) < 4000
