"""Conversations as clients send them back: messages with all that an answer had, and with what a
framework added for itself."""

from __future__ import annotations

import json
from typing import Any

import openai
import pytest
from openai.types.chat import ChatCompletionMessage

from tandem.core.prompt import Turn
from tandem.gateway.errors import ApiError
from tandem.gateway.request_reading import RequestLimits, chat_requests, conversation
from tandem.gateway.responses import ResponsesRequest, as_chat
from tandem.gateway.schema import ChatCompletionRequest
from tests.gateway.http_suite import HttpSuite, asking, chat_body, one_loop
from tests.gateway.parsed_body import parse_body

CALL = {"id": "c1", "type": "function", "function": {"name": "now", "arguments": '{"n": 7}'}}
USER = {"role": "user", "content": "when?"}
THOUGHT = {"type": "reasoning_text", "text": "so"}


def turns_of(*messages: Any) -> tuple[Turn, ...]:
    """What the suite is asked for a body with these messages."""
    raw = json.dumps(chat_body(messages=[*messages])).encode()
    (request,) = chat_requests(parse_body(raw, ChatCompletionRequest, 512), RequestLimits())
    assert isinstance(request.prompt, tuple)
    return tuple(turn for turn in request.prompt if isinstance(turn, Turn))


def refused(*messages: Any) -> tuple[str, str]:
    """The parameter and the message of the refusal."""
    with pytest.raises(ApiError) as error:
        turns_of(*messages)
    assert error.value.status == 400
    return str(error.value.param), str(error.value.message)


def test_an_answer_of_openais_client_is_taken_back_as_it_is_dumped() -> None:
    message = ChatCompletionMessage.model_validate(
        {"role": "assistant", "content": "noon", "reasoning_content": "It is day.", "id": "m1"}
    )
    dumped = message.model_dump()
    assert {"refusal", "annotations", "audio", "function_call", "tool_calls"} <= dumped.keys()
    thought = Turn("assistant", "noon", reasoning_content="It is day.")
    assert turns_of(USER, dumped, USER)[1] == thought
    calling = ChatCompletionMessage.model_validate(
        {"role": "assistant", "content": None, "tool_calls": [CALL]}
    )
    (turn,) = turns_of(calling.model_dump())
    assert (turn.content, json.loads(turn.tool_calls)) == ("", [CALL])


@pytest.mark.parametrize(
    "more",
    [
        {"annotations": [{"type": "url_citation"}]},
        {"reasoning_content": None, "reasoning": {"effort": 1}, "reasoning_details": [{}]},
        {"provider_specific_fields": {"a": 1}, "response_metadata": {}, "id": "run-1"},
        {"tandem": {"seed": 3}, "status": "completed", "cache_control": {"type": "ephemeral"}},
        {"function_call": None, "audio": None, "refusal": None, "prefix": False, "name": None},
    ],
)
def test_fields_that_are_somebody_elses_change_nothing(more: dict[str, Any]) -> None:
    assert turns_of({"role": "assistant", "content": "noon", **more}) == (
        Turn("assistant", "noon"),
    )


def test_parts_of_other_dialects_are_read() -> None:
    parts = [
        {"type": "text", "text": "a", "cache_control": {"type": "ephemeral"}, "annotations": []},
        {"type": "input_text", "text": "b", "prompt_cache": None},
        {"type": "output_text", "text": "c", "logprobs": []},
        {"type": "refusal", "refusal": "d"},
    ]
    assert turns_of({"role": "user", "content": parts}) == (Turn("user", "abcd"),)
    thinking = {"type": "thinking", "thinking": "so", "signature": "x"}
    assert turns_of({"role": "assistant", "content": [thinking, parts[0]]}) == (
        Turn("assistant", "a", reasoning_content="so"),
    )


@pytest.mark.parametrize(
    ("message", "thought"),
    [
        ({"content": "a", "reasoning_content": "so"}, "so"),
        ({"content": "a", "reasoning": "so"}, "so"),
        ({"content": "a", "reasoning_content": "so", "reasoning": "other"}, "so"),
        ({"content": [{"type": "reasoning", "reasoning": "so"}]}, "so"),
        (
            {"content": [{"type": "reasoning", "text": "s"}, {"type": "thinking", "text": "o"}]},
            "so",
        ),
        ({"content": [{"type": "redacted_thinking", "data": "x"}]}, ""),
        ({"content": "a", "reasoning_content": ["so"]}, ""),
    ],
)
def test_what_an_assistant_thought_is_passed_on(message: dict[str, Any], thought: str) -> None:
    (turn,) = turns_of({"role": "assistant", **message})
    assert turn.reasoning_content == thought
    (user,) = turns_of({"role": "user", "content": "a", "reasoning_content": "so"})
    assert user == Turn("user", "a")


def test_an_assistant_may_have_said_nothing() -> None:
    silent: list[dict[str, Any]] = [
        {"role": "assistant", "content": None},
        {"role": "assistant"},
        {"role": "assistant", "content": None, "tool_calls": []},
    ]
    for message in silent:
        assert turns_of(USER, message) == (Turn("user", "when?"), Turn("assistant", ""))


@pytest.mark.parametrize(
    ("arguments", "sent"),
    [({"n": 7}, '{"n": 7}'), ('{"n": 7}', '{"n": 7}'), ("", "{}"), (None, "{}")],
)
def test_arguments_are_json_however_they_come(arguments: Any, sent: str) -> None:
    call = {
        "id": "c1",
        "index": 0,
        "function": {"name": "now", "arguments": arguments, "parsed_arguments": None},
    }
    (turn,) = turns_of({"role": "assistant", "content": [], "tool_calls": [call]})
    function = {"name": "now", "arguments": sent}
    assert json.loads(turn.tool_calls) == [{"id": "c1", "type": "function", "function": function}]


def test_text_beside_calls_may_come_in_parts() -> None:
    content = [{"type": "text", "text": "I look."}]
    (turn,) = turns_of({"role": "assistant", "content": content, "tool_calls": [CALL]})
    assert turn.content == "I look."


@pytest.mark.parametrize(
    ("message", "param", "instead"),
    [
        ({"function_call": {"name": "now", "arguments": "{}"}}, "function_call", "tool_calls"),
        ({"audio": {"id": "a1"}}, "audio", "content"),
        ({"refusal": "I will not."}, "refusal", "content"),
        ({"prefix": True}, "prefix", "continue_final_message"),
        ({"images": ["aGk="]}, "images", "image_url"),
        ({"role": "function", "name": "now"}, "role", "tool_call_id"),
        ({"content": [{"type": "tool_use", "name": "now"}]}, "content", "tool_calls"),
        ({"role": "user", "content": [{"type": "input_audio"}]}, "content", "transcript"),
        ({"role": "user", "content": [{"type": "image", "source": {}}]}, "content", "image_url"),
        ({"role": "user", "content": [{"type": "file", "file": {}}]}, "content", "`text`"),
        ({"role": "user", "content": None}, "content", "must be a string or a list of parts"),
    ],
)
def test_what_would_change_the_answer_is_refused_with_what_to_send_instead(
    message: dict[str, Any], param: str, instead: str
) -> None:
    named, words = refused(USER, {"role": "assistant", "content": "noon", **message})
    assert named == f"messages.1.{param}"
    assert instead in words


def test_the_message_of_a_refusal_names_the_part_at_fault() -> None:
    named, words = refused({"role": "user", "content": [{"type": "text", "text": 3}]})
    assert named == "messages.0.content"
    assert words == "messages.0.content.0.text: must be a valid string"
    _, words = refused({"role": "user", "content": [{"type": "smell", "text": "x"}]})
    assert "'smell'" in words
    assert "'text'" in words


@one_loop
async def test_a_conversation_goes_on_with_the_message_that_came(served: HttpSuite) -> None:
    """As every example of OpenAI's documentation does it."""
    arguments = asking(max_tokens=6, seed=3)
    first = await served.openai.chat.completions.create(**arguments)
    for message in (first.choices[0].message, first.choices[0].message.model_dump()):
        messages = [*arguments["messages"], message, USER]
        again = await served.openai.chat.completions.create(**arguments | {"messages": messages})
        assert again.usage is not None
        assert first.usage is not None
        assert again.usage.prompt_tokens > first.usage.prompt_tokens


@one_loop
async def test_a_refusal_is_the_clients_own_error(served: HttpSuite) -> None:
    message: Any = {"role": "assistant", "content": "x", "audio": {"id": "a1"}}
    with pytest.raises(openai.BadRequestError, match="transcript") as error:
        await served.openai.chat.completions.create(**asking() | {"messages": [message]})
    assert error.value.param == "messages.0.audio"


def test_items_of_a_response_are_taken_back_too() -> None:
    text: Any = {"type": "output_text", "text": "noon", "annotations": [], "cache_control": None}
    call = {"type": "function_call", "call_id": "c1", "name": "now", "arguments": "{}"}
    thought = {"type": "reasoning", "id": "r1", "summary": [], "content": [THOUGHT]}
    items: list[dict[str, Any]] = [
        thought,
        {"type": "message", "role": "assistant", "id": "m1", "content": [text], "extra": 1},
        call,
        {
            "type": "function_call_output",
            "call_id": "c1",
            "output": [{"type": "input_text", "text": "12"}],
            "created_by": "tool",
        },
    ]
    asked = ResponsesRequest.model_validate({"model": "m", "input": items})
    messages = as_chat(asked).messages
    turns, _ = conversation(messages)
    assert [turn.content for turn in turns] == ["noon", "", "12"]
    assert [message.thoughts for message in messages] == ["so", "", ""]
    before_a_call = ResponsesRequest.model_validate({"model": "m", "input": [thought, call]})
    assert [message.thoughts for message in as_chat(before_a_call).messages] == ["so"]
