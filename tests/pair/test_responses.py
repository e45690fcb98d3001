"""POST /v1/responses by the openai package: whole, streamed, with formats and with calls."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any, Literal

import openai
import pytest
import pytest_asyncio
from openai import AsyncOpenAI
from pydantic import BaseModel

from tandem.gateway.responses import ResponseObject
from tandem.suite.embedded import EmbeddedSuite
from tandem.suite.models import ModelPair

pytestmark = pytest.mark.asyncio(loop_scope="module")
MODEL = "demo-target"
ADD: Any = {
    "type": "function",
    "name": "add",
    "strict": True,
    "parameters": {
        "type": "object",
        "properties": {"a": {"enum": [1, 2]}, "b": {"enum": [3, 4]}},
        "required": ["a", "b"],
        "additionalProperties": False,
    },
}


class Verdict(BaseModel):
    word: Literal["yes", "no"]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def client(pair: ModelPair) -> AsyncIterator[AsyncOpenAI]:
    async with (
        EmbeddedSuite(pair, http=True) as suite,
        AsyncOpenAI(base_url=f"{suite.http_url}/v1", api_key="none", max_retries=0) as found,
    ):
        yield found


def asking(**more: Any) -> dict[str, Any]:
    own = {"model": MODEL, "input": "Tom has 3 apples.", "max_output_tokens": 24}
    return {**own, "extra_body": {"seed": 3}, **more}


async def test_a_text_is_a_chat_s(client: AsyncOpenAI) -> None:
    answer = await client.responses.create(**asking(instructions="Be brief."))
    messages: Any = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Tom has 3 apples."},
    ]
    chat = await client.chat.completions.create(
        model=MODEL, messages=messages, max_tokens=24, seed=3
    )
    assert answer.output_text == chat.choices[0].message.content
    assert answer.usage is not None
    assert chat.usage is not None
    assert answer.usage.total_tokens == chat.usage.total_tokens
    cut = chat.choices[0].finish_reason == "length"
    assert answer.status == ("incomplete" if cut else "completed")
    told = answer.to_dict() | {"created_at": int(answer.created_at)}
    read = ResponseObject.model_validate(told)
    assert read.model_dump(mode="json", by_alias=True, exclude_unset=True) == told


async def test_a_stream_makes_up_the_same_answer(client: AsyncOpenAI) -> None:
    whole = await client.responses.create(**asking())
    stream = await client.responses.create(**asking(), stream=True)
    events = [event async for event in stream]
    assert [event.sequence_number for event in events] == list(range(len(events)))
    deltas = [event.delta for event in events if event.type == "response.output_text.delta"]
    assert "".join(deltas) == whole.output_text
    last: Any = events[-1]
    assert last.type == f"response.{whole.status}"
    assert last.response.output_text == whole.output_text
    async with client.responses.stream(**asking()) as helped:
        async for _ in helped:
            pass
        if whole.status == "completed":
            assert (await helped.get_final_response()).output_text == whole.output_text


async def test_an_answer_is_parsed_as_the_class_it_was_asked_to_be(client: AsyncOpenAI) -> None:
    answer = await client.responses.parse(**asking(), text_format=Verdict)
    assert isinstance(answer.output_parsed, Verdict)


async def test_calls_are_items_and_so_are_their_outputs(client: AsyncOpenAI) -> None:
    body = asking(
        tools=[ADD], tool_choice="required", parallel_tool_calls=False, max_output_tokens=40
    )
    answer = await client.responses.create(**body)
    (call,) = answer.output
    assert call.type == "function_call"
    assert json.loads(call.arguments).keys() == {"a", "b"}
    stream = await client.responses.create(**body, stream=True)
    parts = [
        event.delta
        async for event in stream
        if event.type == "response.function_call_arguments.delta"
    ]
    assert "".join(parts) == call.arguments
    items: list[Any] = [
        {"role": "user", "content": [{"type": "input_text", "text": "Add."}]},
        call,
        {"type": "function_call_output", "call_id": call.call_id, "output": "5"},
    ]
    last = await client.responses.create(**{**body, "input": items, "tool_choice": "none"})
    assert last.output_text


@pytest.mark.parametrize(
    ("more", "param"),
    [
        ({"input": []}, "input"),
        ({"previous_response_id": "resp_1"}, "previous_response_id"),
        ({"max_output_tokens": 2**32}, "max_output_tokens"),
        ({"temperature": 3}, "temperature"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tools": [{**ADD, "parameters": {"type": "shape"}}]}, "tools"),
        ({"text": {"format": {"type": "json_schema", "name": "n", "schema": {"type": 3}}}}, "text"),
    ],
)
async def test_what_cannot_be_is_named(
    client: AsyncOpenAI, more: dict[str, Any], param: str
) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        await client.responses.create(**asking(**more))
    assert refused.value.param == param
