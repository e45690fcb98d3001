"""The openai package's helpers for structured output and tools, unchanged, on real models."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any, Literal

import jsonschema_rs
import openai
import pytest
import pytest_asyncio
from openai import AsyncOpenAI
from pydantic import BaseModel, Field

from tandem.suite.embedded import EmbeddedSuite
from tandem.suite.models import ModelPair
from tests.long_runs import with_long_cases

pytestmark = pytest.mark.asyncio(loop_scope="module")
MODEL = "demo-target"
FUNCTIONS: dict[str, dict[str, Any]] = {
    "weather": {
        "type": "object",
        "properties": {"city": {"enum": ["Paris", "Rome"]}, "days": {"enum": [1, 2, 3]}},
        "required": ["city", "days"],
        "additionalProperties": False,
    },
    "add": {
        "type": "object",
        "properties": {name: {"type": "integer", "minimum": 0, "maximum": 99} for name in "ab"},
        "required": ["a", "b"],
        "additionalProperties": False,
    },
}
TOOLS: Any = [
    {"type": "function", "function": {"name": name, "parameters": schema}}
    for name, schema in FUNCTIONS.items()
]


class Step(BaseModel):
    action: Literal["add", "take"]
    number: int = Field(ge=0, le=99)


class Plan(BaseModel):
    done: bool
    steps: list[Step] = Field(max_length=2)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def client(pair: ModelPair) -> AsyncIterator[AsyncOpenAI]:
    async with (
        EmbeddedSuite(pair, http=True) as suite,
        AsyncOpenAI(base_url=f"{suite.http_url}/v1", api_key="none", max_retries=0) as found,
    ):
        yield found


def asking(words: str = "Tom has 3 apples.", **more: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": words}]
    return {"model": MODEL, "messages": messages, "max_tokens": 120, "seed": 3, **more}


async def test_an_answer_is_parsed_as_the_class_it_was_asked_to_be(client: AsyncOpenAI) -> None:
    answer = await client.chat.completions.parse(**asking(), response_format=Plan)
    parsed = answer.choices[0].message.parsed
    assert isinstance(parsed, Plan)
    assert answer.choices[0].finish_reason == "stop"
    assert answer.choices[0].message.content is not None
    assert Plan.model_validate_json(answer.choices[0].message.content) == parsed


async def test_an_answer_that_is_cut_is_told_to_be(client: AsyncOpenAI) -> None:
    with pytest.raises(openai.LengthFinishReasonError):
        await client.chat.completions.parse(**asking(max_tokens=3), response_format=Plan)


@pytest.mark.parametrize("preset", with_long_cases(["coupled", "dssd", "mc-dsd"], ("coupled",)))
async def test_a_loop_with_two_tools(client: AsyncOpenAI, preset: str) -> None:
    """Asked to call, told what came of it, asked on: every call's arguments fit."""
    body = asking(tools=TOOLS, extra_body={"tandem": {"preset": preset}})
    results = {"weather": "sunny", "add": "5"}
    called = []
    choices: list[Any] = [{"type": "function", "function": {"name": "add"}}, "required"]
    for choice, reason in zip(choices, ("stop", "tool_calls"), strict=True):
        answer = await client.chat.completions.create(
            **body, tool_choice=choice, parallel_tool_calls=False
        )
        message = answer.choices[0].message
        assert answer.choices[0].finish_reason == reason
        assert message.content is None
        assert message.tool_calls
        body["messages"].append(message)
        for call in message.tool_calls:
            assert call.type == "function"
            name = call.function.name
            jsonschema_rs.validate(FUNCTIONS[name], json.loads(call.function.arguments))
            called.append(name)
            result = {"role": "tool", "tool_call_id": call.id, "content": results[name]}
            body["messages"].append(result)
    assert called[0] == "add"
    assert len(called) == 2
    last = await client.chat.completions.create(**body | {"max_tokens": 24}, tool_choice="none")
    assert last.choices[0].message.content
    assert last.choices[0].message.tool_calls is None


async def test_a_named_tool_is_parsed_as_its_class(client: AsyncOpenAI) -> None:
    """What Instructor asks for in its mode TOOLS, and `parse` reads."""
    answer = await client.chat.completions.parse(
        **asking(),
        tools=[openai.pydantic_function_tool(Step)],
        tool_choice={"type": "function", "function": {"name": "Step"}},
    )
    (call,) = answer.choices[0].message.tool_calls or []
    assert isinstance(call.function.parsed_arguments, Step)


async def test_an_answer_is_continued_where_it_was_cut(client: AsyncOpenAI) -> None:
    """By chat and by text alike: the prompt ends with the last message, and nothing ends it."""
    body = asking(max_tokens=24, temperature=0)
    whole = (await client.chat.completions.create(**body)).choices[0].message.content or ""
    begin = " ".join(whole.split(" ")[:4])
    assert len(begin) < len(whole)
    body["messages"].append({"role": "assistant", "content": begin})
    for extra in (
        {"continue_final_message": True},
        {"continue_final_message": True, "add_generation_prompt": False},
        {"chat_template_kwargs": {"continue_final_message": True}},
    ):
        answer = await client.chat.completions.create(**body, extra_body=extra)
        rest = answer.choices[0].message.content or ""
        assert (begin + rest).startswith(whole[: len(begin) + 10])


async def test_calls_are_streamed_in_parts(client: AsyncOpenAI) -> None:
    body = asking(tools=TOOLS, tool_choice="required", parallel_tool_calls=False)
    whole = (await client.chat.completions.create(**body)).choices[0].message.tool_calls or []
    async with client.chat.completions.stream(**body) as stream:
        events = [event async for event in stream]
        final = (await stream.get_final_completion()).choices[0]
    parts = [event for event in events if event.type == "tool_calls.function.arguments.delta"]
    assert len(parts) > 1
    assert final.finish_reason == "tool_calls"
    (call,) = final.message.tool_calls or []
    assert [call.function.name, call.function.arguments] == [
        *(whole[0].function.name, whole[0].function.arguments)
    ]
    assert "".join(part.arguments_delta for part in parts) == call.function.arguments
