"""Thinking apart from the answer over HTTP: whole and streamed, in chats and responses, with tool
calls in the format of the model's family."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tandem.core.prompt import Turn
from tandem.gateway.anthropic_messages import MessagesRequest, chat_of_messages
from tandem.gateway.ollama import OllamaChatRequest, OllamaMessage, chat_of
from tandem.gateway.openai_answer import ChatCompletion, ChatCompletionChunk
from tandem.gateway.request_reading import conversation
from tandem.gateway.responses import ResponseEvent, ResponseObject
from tandem.text.tokenizer import TextTokenizer
from tandem.text.tool_prompt import conversation_ids
from tests.gateway.http_suite import MODEL, HttpSuite, chat_body, http_suite, one_loop
from tests.long_runs import LONG
from tests.services.scripted_engines import speaking
from tests.unit.text.family_tokenizers import (
    QWEN3_KEEPING,
    QWEN3_MARKS,
    deepseek_r1,
    family_tokenizer,
    gemma_channel,
    harmony,
    qwen3,
)

THOUGHT = "<think>\nIs it ünique? </thin\n</think>\n\nIt is, é.\n"
CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
TOOLS = [
    {"type": "function", "function": {"name": "weather", "parameters": CITY}},
    {"type": "function", "function": {"name": "now"}},
]


@asynccontextmanager
async def speaker(
    make: Callable[[], TextTokenizer], text: str, tools: str = ""
) -> AsyncIterator[HttpSuite]:
    """A suite whose models answer "hello" with the text."""
    tokenizer = make()
    prompt = conversation_ids(tokenizer, (Turn("user", "hello"),), tools)
    draft, target = speaking(tokenizer, len(prompt), text)
    async with http_suite(draft=draft, target=target, tokenizer=tokenizer) as suite:
        yield suite


def reasoning_tokens(answer: dict[str, Any]) -> int:
    tokens: int = answer["usage"]["completion_tokens_details"]["reasoning_tokens"]
    return tokens


def chat(**more: Any) -> dict[str, Any]:
    return chat_body("hello", **{"temperature": 0, "max_tokens": 400, **more})


def offered() -> str:
    """The tools as the prompt has them."""
    return json.dumps(TOOLS)


async def whole(suite: HttpSuite, **more: Any) -> dict[str, Any]:
    answer = await suite.post("/v1/chat/completions", chat(**more))
    assert answer.status_code == 200, answer.text
    ChatCompletion.model_validate(answer.json())
    found: dict[str, Any] = answer.json()
    return found


async def streamed(suite: HttpSuite, path: str, body: dict[str, Any]) -> list[dict[str, Any]]:
    answer = await suite.post(path, {**body, "stream": True})
    assert answer.status_code == 200, answer.text
    lines = [line.removeprefix("data: ") for line in answer.text.splitlines() if "data: " in line]
    return [json.loads(line) for line in lines if line != "[DONE]"]


async def joined(suite: HttpSuite, **more: Any) -> dict[str, Any]:
    """The message that the deltas of a stream make up."""
    message: dict[str, Any] = {"content": ""}
    calls: list[list[str]] = []
    for chunk in await streamed(suite, "/v1/chat/completions", chat(**more)):
        ChatCompletionChunk.model_validate(chunk)
        (choice,) = chunk["choices"]
        delta = choice["delta"]
        for name in ("content", "reasoning_content"):
            if delta.get(name):
                message[name] = message.get(name, "") + delta[name]
        for call in delta.get("tool_calls", ()):
            if "id" in call:
                calls.append([call["function"]["name"], ""])
            calls[call["index"]][1] += call["function"]["arguments"]
    return {**message, "calls": calls, "finish_reason": choice["finish_reason"]}


@pytest.mark.parametrize(
    ("make", "text", "thinking", "content", "tokens"),
    [
        (qwen3, THOUGHT, "Is it ünique? </thin", "It is, é.\n", 25),
        (deepseek_r1, "so\n</think>\n\nyes", "so", "yes", 4),
        (
            harmony,
            "<|channel|>analysis<|message|>so<|end|><|start|>assistant<|channel|>final<|message|>yes",
            "so",
            "yes",
            13,
        ),
        (gemma_channel, "<|channel>thought\nso\n<channel|>yes", "so", "yes", 13),
    ],
)
async def test_thinking_is_apart_from_the_content(
    make: Callable[[], TextTokenizer], text: str, thinking: str, content: str, tokens: int
) -> None:
    async with speaker(make, text) as suite:
        answer = await whole(suite)
        message = answer["choices"][0]["message"]
        assert message["reasoning_content"] == thinking
        assert message["content"] == content
        assert reasoning_tokens(answer) == tokens
        told = await joined(suite)
        assert (told["reasoning_content"], told["content"]) == (thinking, content)


@pytest.mark.parametrize("stream", [False, True])
async def test_special_tokens_are_text_if_that_is_asked_for(stream: bool) -> None:
    """All of them but the one that ends the answer, as in vLLM."""

    async def text_of(**more: Any) -> str:
        if stream:
            told: str = (await joined(suite, skip_special_tokens=False, **more))["content"]
            return told
        answer = await whole(suite, skip_special_tokens=False, **more)
        content: str = answer["choices"][0]["message"]["content"]
        return content

    text = "a<|im_start|>é<|im_end|>b"
    async with speaker(qwen3, text) as suite:
        plain = await whole(suite)
        assert plain["choices"][0]["message"]["content"] == "aéb"
        assert await text_of() == text
        assert await text_of(include_stop_str_in_output=True) == f"{text}<eos>"
        assert await text_of(stop="<|im_end|>") == "a<|im_start|>é"
        assert await text_of(ignore_eos=True, max_tokens=12) == text + 5 * "<eos>"
        (end,) = qwen3().mark_ids("<|im_end|>")
        assert await text_of(stop_token_ids=[end]) == "a<|im_start|>é"
        body = chat(skip_special_tokens=False, logprobs=True, tandem={"preset": "ar"})
        answer = (await suite.post("/v1/chat/completions", body)).json()
        spelt = [each["token"] for each in answer["choices"][0]["logprobs"]["content"]]
        assert "".join(spelt) == f"{text}<eos>"


async def test_a_text_completion_is_as_the_model_wrote_it() -> None:
    tokenizer = qwen3()
    draft, target = speaking(tokenizer, 1, THOUGHT)
    async with http_suite(draft=draft, target=target, tokenizer=tokenizer) as suite:
        body = {"model": MODEL, "prompt": "a", "temperature": 0, "max_tokens": 400}
        answer = (await suite.post("/v1/completions", body)).json()
    assert answer["choices"][0]["text"] == THOUGHT


async def test_a_template_that_knows_it_may_be_told_not_to_think() -> None:
    """The prompt closes the thinking, so that tags are text, and a grammar holds from the start."""
    tokenizer = qwen3()
    quiet = {"enable_thinking": False}
    prompt = tokenizer.chat([{"role": "user", "content": "hello"}], variables=quiet)
    draft, target = speaking(tokenizer, len(prompt), "a <think>b</think>")
    async with http_suite(draft=draft, target=target, tokenizer=tokenizer) as suite:
        told = await whole(suite, chat_template_kwargs=quiet, thinking_token_budget=0)
        asked = {"chat_template_kwargs": quiet, "guided_regex": "a|b"}
        held = await whole(suite, **asked)
    message = told["choices"][0]["message"]
    assert message["content"] == "a <think>b</think>"
    assert "reasoning_content" not in message
    assert reasoning_tokens(told) == 0
    assert held["choices"][0]["message"]["content"] == "a"


async def test_callers_may_leave_thinking_out_or_in_the_content() -> None:
    async with speaker(qwen3, THOUGHT) as suite:
        without = (await whole(suite, include_reasoning=False))["choices"][0]["message"]
        assert without["content"] == "It is, é.\n"
        assert "reasoning_content" not in without
        assert "reasoning_content" not in await joined(suite, include_reasoning=False)
        within = (await whole(suite, separate_reasoning=False))["choices"][0]["message"]
        assert within["content"] == THOUGHT
        assert "reasoning_content" not in within
        both = chat(include_reasoning=False, separate_reasoning=False)
        refused = await suite.post("/v1/chat/completions", both)
        assert refused.json()["error"]["param"] == "include_reasoning"


@pytest.mark.parametrize("stop", ["ünique", "is, é", "</thin"])
async def test_a_stop_string_ends_either_part(stop: str) -> None:
    async with speaker(qwen3, THOUGHT) as suite:
        answer = await whole(suite, stop=stop)
        message = answer["choices"][0]["message"]
        told = await joined(suite, stop=stop)
    before = THOUGHT.partition(stop)[0]
    thinking, _, content = before.removeprefix("<think>\n").partition("\n</think>\n\n")
    assert message.get("reasoning_content", "") == thinking
    assert message["content"] == content
    assert (told.get("reasoning_content", ""), told["content"]) == (thinking, content)
    assert answer["choices"][0]["finish_reason"] == "stop"


@pytest.mark.parametrize("name", ["thinking_token_budget", "thinking_budget"])
async def test_a_budget_ends_the_thinking(name: str) -> None:
    async with speaker(deepseek_r1, "so it is</think>yes") as suite:
        answer = await whole(suite, **{name: 2})
        message = answer["choices"][0]["message"]
        assert message["reasoning_content"] == "so"
        assert message["content"] == "it is</think>yes"
        assert reasoning_tokens(answer) == 3
        both = chat(thinking_token_budget=1, thinking_budget=2)
        refused = await suite.post("/v1/chat/completions", both)
        assert refused.json()["error"]["param"] == "thinking_budget"


@one_loop
async def test_a_budget_for_a_model_that_does_not_think_is_refused_by_name(
    served: HttpSuite,
) -> None:
    refused = await served.post("/v1/chat/completions", chat(thinking_token_budget=1))
    assert refused.status_code == 400
    assert refused.json()["error"]["param"] == "thinking_token_budget"


async def test_an_answer_cut_in_its_thinking_has_no_content() -> None:
    async with speaker(deepseek_r1, "so it goes on and on") as suite:
        answer = await whole(suite, max_tokens=5)
    assert answer["choices"][0]["message"]["reasoning_content"] == "so it"
    assert answer["choices"][0]["message"]["content"] == ""
    assert answer["choices"][0]["finish_reason"] == "length"


HERMES_CALLS = (
    '<tool_call>\n{"name": "weather", "arguments": {"city":"Ulm"}}\n</tool_call>\n'
    '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>'
)
R1_CALLS = (
    "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>weather\n```json\n"  # noqa: RUF001
    '{"city":"Ulm"}\n```<｜tool▁call▁end｜>\n'  # noqa: RUF001
    "<｜tool▁call▁begin｜>function<｜tool▁sep｜>now\n```json\n{}\n```<｜tool▁call▁end｜>"  # noqa: RUF001
    "<｜tool▁calls▁end｜>"  # noqa: RUF001
)
HARMONY_CALL = (
    "<|start|>assistant<|channel|>commentary to=functions.weather <|constrain|>json<|message|>"
    '{"city":"Ulm"}'
)
WEATHER = ["weather", '{"city":"Ulm"}']
NOW = ["now", "{}"]


THINKING_CALLS = f"<think>\nso\n</think>\n\n{HERMES_CALLS}"
R1_THINKING_CALLS = f"so\n</think>\n\n{R1_CALLS}"


@pytest.mark.parametrize(
    ("make", "text", "calls", "choice"),
    [
        (qwen3, THINKING_CALLS, [WEATHER, NOW], "required"),
        (qwen3, HERMES_CALLS, [WEATHER, NOW], "auto"),
        (deepseek_r1, R1_THINKING_CALLS, [WEATHER, NOW], "required"),
        pytest.param(qwen3, THINKING_CALLS, [WEATHER, NOW], "auto", marks=LONG),
        pytest.param(qwen3, HERMES_CALLS, [WEATHER, NOW], "required", marks=LONG),
        pytest.param(deepseek_r1, R1_THINKING_CALLS, [WEATHER, NOW], "auto", marks=LONG),
    ],
)
async def test_calls_are_read_and_held_to_the_familys_format(
    make: Callable[[], TextTokenizer], text: str, calls: list[list[str]], choice: str
) -> None:
    more = {"tools": TOOLS, "tool_choice": choice, "parallel_tool_calls": True}
    async with speaker(make, text, offered()) as suite:
        answer = await whole(suite, **more)
        told = await joined(suite, **more)
    message = answer["choices"][0]["message"]
    found = [
        [call["function"]["name"], call["function"]["arguments"]] for call in message["tool_calls"]
    ]
    assert found == told["calls"] == calls
    assert message["content"] is None
    assert message.get("reasoning_content", "") == ("so" if "so" in text else "")
    assert answer["choices"][0]["finish_reason"] == told["finish_reason"] == "tool_calls"


@pytest.mark.parametrize("make", [qwen3, deepseek_r1])
async def test_a_model_that_would_not_call_is_made_to(make: Callable[[], TextTokenizer]) -> None:
    """Its thinking is its own; what follows is a call of the named tool."""
    one: dict[str, Any] = {"type": "object", "properties": {"city": {"enum": ["Ulm"]}}}
    one |= {"required": ["city"], "additionalProperties": False}
    tool = {"type": "function", "function": {"name": "visit", "parameters": one}}
    named = {"type": "function", "function": {"name": "visit"}}
    text = f"{'<think>' if make is qwen3 else ''}so</think>I will not."
    async with speaker(make, text, json.dumps([tool])) as suite:
        answer = await whole(
            suite, tools=[tool, *TOOLS], tool_choice=named, parallel_tool_calls=False
        )
    message = answer["choices"][0]["message"]
    assert message["reasoning_content"] == "so"
    (call,) = message["tool_calls"]
    found = (call["function"]["name"], call["function"]["arguments"])
    assert found == ("visit", '{"city":"Ulm"}')


async def test_calls_of_harmony_are_read_and_cannot_be_forced() -> None:
    text = f"<|channel|>analysis<|message|>so<|end|>{HARMONY_CALL}"
    async with speaker(harmony, text, offered()) as suite:
        answer = await whole(suite, tools=TOOLS)
        told = await joined(suite, tools=TOOLS)
        refused = await suite.post(
            "/v1/chat/completions", chat(tools=TOOLS, tool_choice="required")
        )
    message = answer["choices"][0]["message"]
    assert message["reasoning_content"] == told["reasoning_content"] == "so"
    (call,) = message["tool_calls"]
    found = [call["function"]["name"], call["function"]["arguments"]]
    assert [found] == told["calls"] == [WEATHER]
    assert message["content"] is None
    assert refused.status_code == 400
    assert refused.json()["error"]["param"] == "tool_choice"


async def test_a_response_has_an_item_for_the_thinking() -> None:
    body = {"model": MODEL, "input": "hello", "temperature": 0, "max_output_tokens": 400}
    async with speaker(qwen3, THOUGHT) as suite:
        answer = (await suite.post("/v1/responses", body)).json()
        events = await streamed(suite, "/v1/responses", body)
        again = [{"type": "message", "role": "user", "content": "a"}, *answer["output"]]
        echoed = await suite.post("/v1/responses", {**body, "input": again})
    ResponseObject.model_validate(answer)
    for event in events:
        ResponseEvent.model_validate(event)
    reasoning, message = answer["output"]
    assert reasoning["type"] == "reasoning"
    assert reasoning["content"] == [{"type": "reasoning_text", "text": "Is it ünique? </thin"}]
    assert message["content"][0]["text"] == "It is, é.\n"
    assert answer["usage"]["output_tokens_details"] == {"reasoning_tokens": 25}
    deltas = [each["delta"] for each in events if each["type"] == "response.reasoning_text.delta"]
    assert "".join(deltas) == "Is it ünique? </thin"
    told = [each["item"] for each in events if each["type"] == "response.output_item.done"]
    plain = [{**item, "id": ""} for item in answer["output"]]
    assert [{**item, "id": ""} for item in told] == plain
    assert echoed.status_code == 200, echoed.text


async def test_ollama_s_callers_get_it_in_thinking() -> None:
    async with speaker(qwen3, THOUGHT) as suite:
        body = {"model": MODEL, "options": {"temperature": 0, "num_predict": 400}}
        message = {"messages": [{"role": "user", "content": "hello"}]}
        chat = {**body, **message}
        answer = (await suite.post("/api/chat", {**chat, "stream": False})).json()
        assert answer["message"]["thinking"] == "Is it ünique? </thin"
        assert answer["message"]["content"] == "It is, é.\n"
        lines = (await suite.post("/api/chat", {**chat, "think": True})).text.splitlines()
        parts = [json.loads(line)["message"] for line in lines]
        assert "".join(part.get("thinking", "") for part in parts) == "Is it ünique? </thin"
        assert "".join(part["content"] for part in parts) == "It is, é.\n"
        prompt = {**body, "prompt": "hello", "stream": False}
        generated = (await suite.post("/api/generate", prompt)).json()
        assert generated["thinking"] == "Is it ünique? </thin"
        assert generated["response"] == "It is, é.\n"
        refused = await suite.post("/api/generate", {**prompt, "raw": True, "think": True})
        assert refused.json() == {"error": "think: cannot be combined with raw or suffix"}


async def test_anthropic_s_callers_get_blocks_of_it_if_they_ask_for_them() -> None:
    async with speaker(qwen3, THOUGHT) as suite:
        message = {"role": "user", "content": "hello"}
        body = {"model": MODEL, "max_tokens": 400, "temperature": 0, "messages": [message]}
        text = {"type": "text", "text": "It is, é.\n", "citations": None}
        plain = (await suite.post("/v1/messages", body)).json()
        assert plain["content"] == [text]
        thinking = {"thinking": {"type": "enabled", "budget_tokens": 200}}
        answer = (await suite.post("/v1/messages", {**body, **thinking})).json()
        block = {"type": "thinking", "thinking": "Is it ünique? </thin", "signature": ""}
        assert answer["content"] == [block, text]
        events = await streamed(suite, "/v1/messages", {**body, **thinking})
        begun = [event["content_block"]["type"] for event in events if "content_block" in event]
        assert begun == ["thinking", "text"]
        deltas = [event["delta"] for event in events if event["type"] == "content_block_delta"]
        assert "".join(delta.get("thinking", "") for delta in deltas) == "Is it ünique? </thin"
        short = {"thinking": {"type": "enabled", "budget_tokens": 3}}
        cut = (await suite.post("/v1/messages", {**body, **short})).json()
        assert len(cut["content"][0]["thinking"]) < len("Is it ünique? </thin")


def test_thinking_that_is_sent_back_to_other_apis_is_a_chat_s() -> None:
    thinking = {"type": "thinking", "thinking": "so", "signature": "x"}
    turns = [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": [thinking, {"type": "text", "text": "b"}]},
        {"role": "user", "content": "c"},
    ]
    asked = MessagesRequest.model_validate({"model": "m", "max_tokens": 9, "messages": turns})
    messages = chat_of_messages(asked).messages
    read, _ = conversation(messages)
    assert [turn.content for turn in read] == ["a", "b", "c"]
    assert [message.thoughts for message in messages] == ["", "so", ""]
    ollama_s = OllamaChatRequest(
        model="m", messages=[OllamaMessage(role="assistant", content="b", thinking="so")]
    )
    assert [message.thoughts for message in chat_of(ollama_s, "m").messages] == ["so"]


async def test_tokens_of_a_message_are_counted_by_the_template_of_the_message() -> None:
    """With its variables, tools and thinking that is sent back."""
    tokenizer = family_tokenizer(QWEN3_KEEPING, QWEN3_MARKS)
    draft, target = speaking(tokenizer, 0, "yes")
    tool = {"name": "now", "input_schema": {"type": "object", "properties": {}}}
    block = {"type": "thinking", "thinking": "I look.", "signature": ""}
    call = {"type": "tool_use", "id": "t1", "name": "now", "input": {}}
    result = {"type": "tool_result", "tool_use_id": "t1", "content": "noon"}
    asked: dict[str, Any] = {"messages": [{"role": "user", "content": "when?"}]}
    more: dict[str, Any]
    talk = [
        *asked["messages"],
        {"role": "assistant", "content": [block, call]},
        {"role": "user", "content": [result]},
    ]
    async with http_suite(draft=draft, target=target, tokenizer=tokenizer) as suite:
        counts = list[int]()
        for more in ({}, {"tools": [tool]}, {"tools": [tool], "messages": talk}):
            body = {"model": MODEL, **asked, **more}
            counted = (await suite.post("/v1/messages/count_tokens", body)).json()
            answer = await suite.post("/v1/messages", {**body, "max_tokens": 1})
            assert answer.status_code == 200, answer.text
            assert counted == {"input_tokens": answer.json()["usage"]["input_tokens"]}
            counts.append(counted["input_tokens"])
    assert counts[1] == counts[0] + len("[now]")
    assert counts[2] > counts[1] + len("I look.noon")
    body = {"model": MODEL, **asked}
    async with speaker(qwen3, "x") as suite:
        counts = []
        quiet: dict[str, Any] = {"thinking": {"type": "disabled"}}
        for more in ({}, quiet):
            counted = (await suite.post("/v1/messages/count_tokens", {**body, **more})).json()
            counts.append(counted["input_tokens"])
    assert counts[1] == counts[0] + len(qwen3().mark_ids("<think>\n\n</think>\n\n"))


def test_thinking_may_be_turned_off_in_other_apis() -> None:
    off = {"enable_thinking": False}
    ollama = OllamaChatRequest(model="m", messages=[], think=False)
    with_message = ollama.model_copy(update={"messages": [OllamaMessage(role="user", content="a")]})
    assert chat_of(with_message, "m").chat_template_kwargs == off
    low = with_message.model_copy(update={"think": "low"})
    assert chat_of(low, "m").reasoning_effort == "low"
    body = {"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "a"}]}
    disabled = MessagesRequest.model_validate({**body, "thinking": {"type": "disabled"}})
    assert chat_of_messages(disabled).chat_template_kwargs == off
    assert chat_of_messages(disabled).include_reasoning is False
