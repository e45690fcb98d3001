"""pydantic-ai: texts, streams, and outputs by a tool and by a schema."""

from __future__ import annotations

import asyncio

from asked import KEY, MAX_TOKENS, MODEL, QUESTION, V1, Add, tell
from pydantic_ai import Agent, NativeOutput, ToolOutput
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

model = OpenAIChatModel(MODEL, provider=OpenAIProvider(base_url=V1, api_key=KEY))
brief = {"temperature": 0, "max_tokens": MAX_TOKENS}
longer = {"temperature": 0, "max_tokens": 200}


async def streamed() -> str:
    async with Agent(model, model_settings=brief).run_stream(QUESTION) as answer:
        return "".join([part async for part in answer.stream_text(delta=True)])


async def main() -> None:
    text = await Agent(model, model_settings=brief).run(QUESTION)
    by_tool = Agent(model, output_type=ToolOutput(Add), model_settings=longer)
    by_schema = Agent(model, output_type=NativeOutput(Add), model_settings=longer)
    tell(
        text=text.output,
        streamed=await streamed(),
        called=(await by_tool.run(QUESTION)).output.model_dump(),
        parsed=(await by_schema.run(QUESTION)).output.model_dump(),
    )


asyncio.run(main())
