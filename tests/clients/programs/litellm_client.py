"""LiteLLM's SDK."""

from __future__ import annotations

import litellm
from asked import ADD, EMBEDDING, KEY, MAX_TOKENS, MODEL, QUESTION, TEXTS, V1, Add, tell

asked = {
    "model": f"openai/{MODEL}",
    "api_base": V1,
    "api_key": KEY,
    "messages": [{"role": "user", "content": QUESTION}],
    "temperature": 0,
}
text = litellm.completion(**asked, max_tokens=MAX_TOKENS).choices[0].message.content
parts = [
    chunk.choices[0].delta.content or ""
    for chunk in litellm.completion(**asked, max_tokens=MAX_TOKENS, stream=True)
    if chunk.choices
]
tool = {"type": "function", "function": {"name": "add", "parameters": ADD}}
called = litellm.completion(**asked, tools=[tool], tool_choice="required", max_tokens=200)
call = called.choices[0].message.tool_calls[0]
vectors = litellm.embedding(
    model=f"openai/{EMBEDDING}", api_base=V1, api_key=KEY, input=TEXTS, encoding_format="float"
)
tell(
    text=text,
    streamed="".join(parts),
    called=[call.function.name, Add.model_validate_json(call.function.arguments).model_dump()],
    vectors=[each["embedding"] for each in vectors.data],
)
