"""Anthropic's Messages API is a translation: its answers are those of a chat, in its own form."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import httpx2
import pytest
import pytest_asyncio

from tandem.core.errors import ResourceExhausted
from tandem.core.prompt import Turn
from tandem.gateway.anthropic_messages import MessagesRequest, chat_of_messages
from tandem.gateway.request_reading import RequestLimits, chat_requests
from tandem.generation.request import GenerationRequest
from tandem.net.status import Rejected
from tests.gateway.http_suite import KEY, MODEL, HttpSuite, chat_body, http_suite, http_to
from tests.gateway.said_answer import CACHED_TOKENS, PROMPT_TOKENS, Saying

pytestmark = pytest.mark.asyncio(loop_scope="module")

MESSAGES = "/v1/messages"
COUNT = "/v1/messages/count_tokens"
PICTURE = {
    "type": "image",
    "source": {"type": "base64", "media_type": "image/png", "data": "aGVyb24="},
}
IMAGES_REFUSED = ("invalid_request_error", "messages: the tokens of images cannot be counted")
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
TOOL = {"name": "weather", "description": "The weather.", "input_schema": SCHEMA}
CITED = {
    "type": "document",
    "source": {"type": "text", "media_type": "text/plain", "data": "It rains."},
    "citations": {"enabled": True},
}
CALLS = (
    'So: <tool_call>\n{"name": "weather", "arguments": {"city": "Rome"}}\n</tool_call>\n'
    '<tool_call>\n{"name": "weather", "arguments": {"city": "Oslo"}}\n</tool_call>'
)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def served() -> AsyncIterator[HttpSuite]:
    async with http_suite(http_max_tokens=64) as running:
        yield running


def asked(**more: Any) -> dict[str, Any]:
    return {**chat_body(), "max_tokens": 12, "seed": 5, **more}


def events_of(answer: httpx2.Response) -> list[dict[str, Any]]:
    """The events, each named as its type."""
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"].startswith("text/event-stream")
    parts = answer.text.split("\n\n")
    assert parts.pop() == ""
    events = []
    for part in parts:
        name, content = part.split("\n")
        events.append(json.loads(content.removeprefix("data: ")))
        assert name == f"event: {events[-1]['type']}"
    return events


def joined(events: list[dict[str, Any]]) -> dict[str, Any]:
    """The message that the events make up, as Anthropic's client puts it together."""
    message: dict[str, Any] = events[0]["message"]
    inputs: dict[int, str] = {}
    for event in events[1:]:
        match event["type"]:
            case "content_block_start":
                assert event["index"] == len(message["content"])
                message["content"].append(event["content_block"])
            case "content_block_delta" if event["delta"]["type"] == "text_delta":
                message["content"][event["index"]]["text"] += event["delta"]["text"]
            case "content_block_delta":
                part = event["delta"]["partial_json"]
                inputs[event["index"]] = inputs.get(event["index"], "") + part
            case "message_delta":
                message |= event["delta"]
                message["usage"] |= event["usage"]
    for index, text in inputs.items():
        message["content"][index]["input"] = json.loads(text)
    assert events[-1] == {"type": "message_stop"}
    starts = [event["type"] for event in events].count("content_block_start")
    assert [event["type"] for event in events].count("content_block_stop") == starts
    return message


def alike(message: dict[str, Any]) -> dict[str, Any]:
    """Without what differs between two answers to one question."""
    content = [{**block, "id": ""} for block in message["content"]]
    return {**message, "content": content, "id": ""}


async def test_a_message_is_the_chat_s_answer(served: HttpSuite) -> None:
    chat = {"messages": [{"role": "system", "content": "be brief"}, *chat_body()["messages"]]}
    body = {"model": MODEL, "max_tokens": 12, "seed": 5, "temperature": 0.7, "top_k": 9, **chat}
    whole = (await served.post("/v1/chat/completions", body)).json()
    answer = await served.post(MESSAGES, asked(system="be brief", temperature=0.7, top_k=9))
    assert answer.status_code == 200, answer.text
    message = answer.json()
    text = whole["choices"][0]["message"]["content"]
    assert message["content"] == [{"type": "text", "text": text, "citations": None}]
    assert (message["type"], message["role"], message["model"]) == ("message", "assistant", MODEL)
    tokens = whole["usage"]["completion_tokens"]
    assert message["stop_reason"] == ("max_tokens" if tokens == 12 else "end_turn")
    usage = message["usage"]
    assert usage["input_tokens"] == len("be briefhello")
    assert usage["output_tokens"] == tokens
    assert usage["cache_read_input_tokens"] == usage["cache_creation_input_tokens"] == 0


async def test_the_events_make_up_the_whole_message(served: HttpSuite) -> None:
    whole = (await served.post(MESSAGES, asked(max_tokens=30))).json()
    events = events_of(await served.post(MESSAGES, asked(max_tokens=30, stream=True)))
    assert len(events) > 6
    assert events[0]["message"]["stop_reason"] is None
    assert events[0]["message"]["usage"]["input_tokens"] == len("hello")
    assert alike(joined(events)) == alike(whole)


async def test_a_stop_sequence_ends_the_text_before_it(served: HttpSuite) -> None:
    whole = (await served.post(MESSAGES, asked(max_tokens=30))).json()["content"][0]["text"]
    stop = "<" + whole.split("<")[4]
    answer = (await served.post(MESSAGES, asked(max_tokens=30, stop_sequences=[stop]))).json()
    assert answer["content"][0]["text"] == whole.split(stop)[0]
    assert (answer["stop_reason"], answer["stop_sequence"]) == ("stop_sequence", stop)
    body = asked(max_tokens=30, stop_sequences=["never", stop], stream=True)
    assert alike(joined(events_of(await served.post(MESSAGES, body)))) == alike(answer)


async def test_kept_prompt_tokens_are_told_apart() -> None:
    async with http_to(Saying("Yes.")) as http:
        whole = (await http.post(MESSAGES, json=asked())).json()
        events = events_of(await http.post(MESSAGES, json=asked(stream=True)))
    for usage in (whole["usage"], joined(events)["usage"]):
        assert usage["input_tokens"] == PROMPT_TOKENS - CACHED_TOKENS
        assert usage["cache_read_input_tokens"] == CACHED_TOKENS
        assert usage["output_tokens"] == len("Yes.")


async def test_calls_are_blocks_whole_and_streamed() -> None:
    suite = Saying(CALLS)
    async with http_to(suite) as http:
        whole = (await http.post(MESSAGES, json=asked(tools=[TOOL]))).json()
        events = events_of(await http.post(MESSAGES, json=asked(tools=[TOOL], stream=True)))
    text, *calls = whole["content"]
    assert text == {"type": "text", "text": "So: ", "citations": None}
    assert [(call["type"], call["name"], call["input"]) for call in calls] == [
        ("tool_use", "weather", {"city": "Rome"}),
        ("tool_use", "weather", {"city": "Oslo"}),
    ]
    assert len({call["id"] for call in calls}) == 2
    assert whole["stop_reason"] == "tool_use"
    assert alike(joined(events)) == alike(whole)
    offered = json.loads(suite.asked[0].tools)
    function = {"name": "weather", "description": "The weather.", "parameters": SCHEMA}
    assert offered == [{"type": "function", "function": function}]


async def test_a_call_that_was_cut_off_is_left_out_of_the_whole_message() -> None:
    cut = CALLS[: CALLS.index("Oslo") + 2]
    async with http_to(Saying(cut, finish_reason="length")) as http:
        whole = (await http.post(MESSAGES, json=asked(tools=[TOOL]))).json()
    assert [block.get("input") for block in whole["content"]] == [None, {"city": "Rome"}]
    assert whole["stop_reason"] == "max_tokens"


@pytest.mark.parametrize(
    ("more", "status", "kind", "words"),
    [
        ({"model": "other"}, 404, "not_found_error", "The model 'other' does not exist here"),
        ({"mesages": 5}, 400, "invalid_request_error", "Unknown parameter: mesages; did you mean"),
        ({"messages": []}, 400, "invalid_request_error", "messages: "),
        ({"messages": [{"role": "user", "content": [PICTURE]}]}, 400, *IMAGES_REFUSED),
    ],
)
async def test_what_cannot_be_counted_is_refused_in_anthropic_s_form(
    served: HttpSuite, more: dict[str, Any], status: int, kind: str, words: str
) -> None:
    answer = await served.post(COUNT, {**chat_body(), **more})
    assert answer.status_code == status, answer.text
    body = answer.json()
    assert (body["type"], body["error"]["type"]) == ("error", kind)
    assert body["error"]["message"].startswith(words)


def request_of(**more: Any) -> GenerationRequest:
    body = MessagesRequest.model_validate(asked(**more))
    (request,) = chat_requests(chat_of_messages(body), RequestLimits())
    return request


async def test_blocks_are_turns() -> None:
    use = {"type": "tool_use", "id": "t1", "name": "weather", "input": {"city": "Rome"}}
    parts = [{"type": "text", "text": "rain, "}, {"type": "text", "text": "later sun"}]
    picture = {"type": "base64", "media_type": "image/png", "data": "aGVyb24="}
    request = request_of(
        system=[
            {"type": "text", "text": "Be ", "cache_control": {"type": "ephemeral"}},
            {"type": "text", "text": "brief."},
        ],
        messages=[
            {"role": "user", "content": [{"type": "text", "text": "Where does it rain?"}]},
            {"role": "assistant", "content": [{"type": "text", "text": "I look."}, use]},
            {
                "role": "user",
                "content": [
                    {"type": "tool_result", "tool_use_id": "t1", "content": parts},
                    {"type": "text", "text": "And here?"},
                    {"type": "image", "source": picture},
                ],
            },
        ],
    )
    turns = request.prompt
    assert isinstance(turns, tuple)
    calling = turns[2]
    assert isinstance(calling, Turn)
    function = {"name": "weather", "arguments": '{"city": "Rome"}'}
    assert json.loads(calling.tool_calls) == [
        {"id": "t1", "type": "function", "function": function}
    ]
    assert turns == (
        Turn("system", "Be brief."),
        Turn("user", "Where does it rain?"),
        Turn("assistant", "I look.", calling.tool_calls),
        Turn("tool", "rain, later sun", tool_call_id="t1"),
        Turn("user", "And here?"),
    )
    assert request.params.images == (b"heron",)


async def test_what_is_said_of_documents_and_results_is_in_the_prompt() -> None:
    use = {"type": "tool_use", "id": "t1", "name": "weather", "input": {}}
    document = {**CITED, "citations": {"enabled": False}, "title": "Rome", "context": "May."}
    failed = {"type": "tool_result", "tool_use_id": "t1", "content": "no city", "is_error": True}
    request = request_of(
        messages=[
            {"role": "user", "content": [document, {"type": "text", "text": " And here?"}]},
            {"role": "assistant", "content": [use]},
            {"role": "user", "content": [failed]},
        ],
        tools=[
            {**TOOL, "type": "custom", "input_examples": [{"city": "Oslo"}]},
            {**TOOL, "name": "inner", "allowed_callers": ["code_execution_20260120"]},
        ],
    )
    turns = request.prompt
    assert isinstance(turns, tuple)
    assert turns[0] == Turn("user", "Rome\nMay.\nIt rains. And here?")
    assert turns[2] == Turn("tool", "Error: no city", tool_call_id="t1")
    (tool,) = json.loads(request.tools)
    assert tool["function"]["parameters"] == {**SCHEMA, "examples": [{"city": "Oslo"}]}


@pytest.mark.parametrize(
    ("choice", "same"),
    [
        ({"type": "auto"}, {}),
        ({"type": "any"}, {"tool_choice": "required"}),
        ({"type": "none"}, {"tool_choice": "none"}),
        (
            {"type": "tool", "name": "weather"},
            {"tool_choice": {"type": "function", "function": {"name": "weather"}}},
        ),
        (
            {"type": "auto", "disable_parallel_tool_use": True},
            {"parallel_tool_calls": False},
        ),
    ],
)
async def test_tool_choices_are_a_chat_s(choice: dict[str, Any], same: dict[str, Any]) -> None:
    suite = Saying("x")
    function = {"name": "weather", "description": "The weather.", "parameters": SCHEMA}
    async with http_to(suite) as http:
        await http.post(MESSAGES, json=asked(tools=[TOOL], tool_choice=choice))
        chat = {**chat_body(**same), "tools": [{"type": "function", "function": function}]}
        await http.post("/v1/chat/completions", json=chat)
    ours, openai_s = suite.asked
    assert ours.params.processors == openai_s.params.processors
    assert ours.tools == openai_s.tools


@pytest.mark.parametrize(
    ("more", "status", "kind", "words"),
    [
        ({"max_tokens": 65}, 400, "invalid_request_error", "max_tokens: must be at most 64"),
        ({"max_tokens": None}, 400, "invalid_request_error", "max_tokens: "),
        ({"temperature": 3}, 400, "invalid_request_error", "temperature: "),
        ({"stop_sequences": [""]}, 400, "invalid_request_error", "stop_sequences: "),
        (
            {"messages": [{"role": "user", "content": "a" * 600}]},
            *(400, "invalid_request_error", "messages: 600 tokens; "),
        ),
        (
            {"messages": [*chat_body()["messages"], {"role": "assistant", "content": "I"}]},
            *(400, "invalid_request_error", "'messages' is not supported here: the last message"),
        ),
        ({"thinking": {"type": "much"}}, 400, "invalid_request_error", "thinking."),
        ({"model": "other"}, 404, "not_found_error", "The model 'other' does not exist here"),
        (
            {"mcp_servers": [{"type": "url", "url": "https://example.org", "name": "a"}]},
            *(400, "invalid_request_error", "mcp_servers: is not supported; send"),
        ),
        ({"stop_sequence": ["a"]}, 400, "invalid_request_error", "Unknown parameter: stop_"),
        (
            {"output_config": {"task_budget": {"type": "tokens", "total": 9000}}},
            *(400, "invalid_request_error", "output_config.task_budget: is not supported; send"),
        ),
        (
            {"thread": {"type": "create"}},
            *(400, "invalid_request_error", "thread: is not supported; "),
        ),
        (
            {"messages": [{"role": "user", "content": [CITED]}]},
            *(
                400,
                "invalid_request_error",
                "messages.0.content.0.document.citations.enabled: is not",
            ),
        ),
    ],
)
async def test_what_is_refused_is_named_as_the_caller_named_it(
    served: HttpSuite, more: dict[str, Any], status: int, kind: str, words: str
) -> None:
    answer = await served.post(MESSAGES, asked(**more))
    assert answer.status_code == status
    body = answer.json()
    assert (body["type"], body["error"]["type"]) == ("error", kind)
    assert body["error"]["message"].startswith(words)


@pytest.mark.parametrize("path", [MESSAGES, COUNT])
async def test_a_refused_thread_says_so_as_anthropic_s_clients_read_it(
    served: HttpSuite, path: str
) -> None:
    """They send the whole conversation then, without a thread."""
    body = {**asked(), "thread": {"type": "create"}}
    refused = (await served.post(path, body)).json()
    unsupported = {"error_code": "thread_unsupported_request", "unsupported": ["thread"]}
    assert refused["error"]["details"] == unsupported
    other = (await served.post(path, {**body, "thread": None, "model": "other"})).json()
    assert other["error"].keys() == {"type", "message"}


async def test_the_key_may_come_in_anthropic_s_header(keys: Path) -> None:
    async with (
        http_suite(http_keys_file=keys) as served,
        httpx2.AsyncClient(base_url=served.url, timeout=60) as http,
    ):
        own = {"x-api-key": KEY}
        assert (await http.post(MESSAGES, json=asked(), headers=own)).status_code == 200
        wrong = await http.post(MESSAGES, json=asked(), headers={"x-api-key": KEY[:-1]})
        assert (wrong.status_code, wrong.json()["error"]["type"]) == (401, "authentication_error")
        bearer = {"Authorization": f"Bearer {KEY}"}
        assert (await http.post(MESSAGES, json=asked(), headers=bearer)).status_code == 200
        counted = await http.post(COUNT, json=chat_body(), headers=own)
        assert counted.json() == {"input_tokens": len("hello")}
        elsewhere = await http.post("/v1/chat/completions", json=chat_body(), headers=own)
        assert elsewhere.status_code == 200, "its clients ask other addresses, too"


async def test_failures_of_the_suite_are_anthropic_s_errors() -> None:
    async with http_to(Saying("", error=ResourceExhausted("queue: full"))) as http:
        full = await http.post(MESSAGES, json=asked())
    error = {"type": "rate_limit_error", "message": "queue: full"}
    assert (full.status_code, full.json()) == (429, {"type": "error", "error": error})
    lost = Rejected(grpc.StatusCode.UNAVAILABLE, "the cloud is lost")
    async with http_to(Saying("so far", error=lost)) as http:
        events = events_of(await http.post(MESSAGES, json=asked(stream=True)))
    said = [event["delta"]["text"] for event in events if event["type"] == "content_block_delta"]
    assert "".join(said) == "so far"
    error = {"type": "overloaded_error", "message": "the cloud is lost"}
    assert events[-1] == {"type": "error", "error": error}
