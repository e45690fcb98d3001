"""The openai package."""

from __future__ import annotations

from asked import ADD, EMBEDDING, KEY, MAX_TOKENS, MODEL, QUESTION, TEXTS, V1, Add, tell
from openai import OpenAI

client = OpenAI(base_url=V1, api_key=KEY)
asked = {
    "model": MODEL,
    "messages": [{"role": "user", "content": QUESTION}],
    "max_tokens": MAX_TOKENS,
    "temperature": 0,
}
text = client.chat.completions.create(**asked).choices[0].message.content
parts = [
    chunk.choices[0].delta.content or ""
    for chunk in client.chat.completions.create(**asked, stream=True)
    if chunk.choices
]
response = client.responses.create(
    model=MODEL, input=QUESTION, max_output_tokens=MAX_TOKENS, temperature=0
)
parsed = client.chat.completions.parse(**{**asked, "max_tokens": 200}, response_format=Add)
tool = {"type": "function", "function": {"name": "add", "parameters": ADD}}
called = client.chat.completions.create(
    **{**asked, "max_tokens": 200}, tools=[tool], tool_choice="required", parallel_tool_calls=False
)
(call,) = called.choices[0].message.tool_calls
vectors = client.embeddings.create(model=EMBEDDING, input=TEXTS)
tell(
    text=text,
    streamed="".join(parts),
    response=response.output_text,
    parsed=parsed.choices[0].message.parsed.model_dump(),
    called=[call.function.name, Add.model_validate_json(call.function.arguments).model_dump()],
    finish_reason=called.choices[0].finish_reason,
    vectors=[each.embedding for each in vectors.data],
    models=[model.id for model in client.models.list()],
)
