"""OpenAI's own client against the composed suite: what a program written for OpenAI sees."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import openai
import pytest
from openai import AsyncOpenAI

from tests.deploy.composed import Composed

MODEL = "demo-target"
STREAMS = 32
MESSAGES = [{"role": "user", "content": "Tom has 3 apples."}]
PROMPT = "A list is"
pytestmark = pytest.mark.timeout(1800)  # the first test waits for images and suite


@pytest.fixture
async def client(suite: Composed) -> AsyncIterator[AsyncOpenAI]:
    base_url = f"http://{suite.address('edge-aggregator', 8000)}/v1"
    async with AsyncOpenAI(base_url=base_url, api_key="none", max_retries=0) as client:
        yield client


async def streamed(client: AsyncOpenAI, seed: int) -> tuple[str, int]:
    """Text and completion tokens of a streamed completion."""
    text, tokens = "", 0
    stream = await client.completions.create(
        model=MODEL,
        prompt=PROMPT,
        max_tokens=24,
        seed=seed,
        stream=True,
        stream_options={"include_usage": True},
    )
    async for chunk in stream:
        text += "".join(choice.text for choice in chunk.choices)
        tokens += chunk.usage.completion_tokens if chunk.usage is not None else 0
    return text, tokens


async def test_chat_whole_and_streamed_are_one_text(client: AsyncOpenAI) -> None:
    asked = {"model": MODEL, "messages": MESSAGES, "max_tokens": 32, "seed": 7}
    whole = await client.chat.completions.create(**asked)  # type: ignore[call-overload]
    text = ""
    async for chunk in await client.chat.completions.create(  # type: ignore[call-overload]
        **asked, stream=True
    ):
        text += "".join(choice.delta.content or "" for choice in chunk.choices)
    assert text == whole.choices[0].message.content != ""
    assert 0 < whole.usage.completion_tokens <= 32


async def test_a_stop_string_ends_the_text_before_it(client: AsyncOpenAI) -> None:
    asked = {"model": MODEL, "prompt": PROMPT, "max_tokens": 40, "seed": 3}
    whole = await client.completions.create(**asked)  # type: ignore[call-overload]
    text = whole.choices[0].text
    stop = text[len(text) // 2 :][:3]
    cut = await client.completions.create(**asked, stop=stop)  # type: ignore[call-overload]
    assert cut.choices[0].text == text[: text.index(stop)]
    assert cut.choices[0].finish_reason == "stop"


async def test_many_streams_at_once_are_what_they_are_alone(client: AsyncOpenAI) -> None:
    alone = [await streamed(client, seed) for seed in range(4)]
    together = await asyncio.gather(*(streamed(client, n % 4) for n in range(STREAMS)))
    assert together == [alone[n % 4] for n in range(STREAMS)]
    assert all(0 < tokens <= 24 for _, tokens in alone)


async def test_errors_are_openais(client: AsyncOpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as unknown:
        await client.completions.create(model="nobody", prompt=PROMPT)
    assert unknown.value.body["code"] == "model_not_found"  # type: ignore[index]
    with pytest.raises(openai.BadRequestError) as wrong:
        await client.completions.create(model=MODEL, prompt=PROMPT, temperature=-1)
    assert wrong.value.body["param"] == "temperature"  # type: ignore[index]


async def test_who_leaves_a_stream_holds_no_slot(client: AsyncOpenAI) -> None:
    for seed in range(STREAMS):
        stream = await client.completions.create(
            model=MODEL, prompt=PROMPT, max_tokens=200, seed=seed, stream=True
        )
        async for _ in stream:
            break
        await stream.close()
    text, tokens = await streamed(client, 0)
    assert text
    assert tokens
