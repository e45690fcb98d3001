"""Ollama's own client against the translated routes."""

from __future__ import annotations

import ollama
from asked import ADD, EMBEDDING, MAX_TOKENS, MODEL, QUESTION, SYSTEM, TEXTS, URL, Add, tell

client = ollama.Client(host=URL)
messages = [{"role": "user", "content": QUESTION}]
brief = {"temperature": 0, "num_predict": MAX_TOKENS}
longer = {"temperature": 0, "num_predict": 200}
whole = client.chat(model=MODEL, messages=messages, options=brief)
parts = client.chat(model=MODEL, messages=messages, options=brief, stream=True)
prompted = client.generate(model=MODEL, prompt=QUESTION, system=SYSTEM, options=brief)
prompted_parts = client.generate(
    model=MODEL, prompt=QUESTION, system=SYSTEM, options=brief, stream=True
)
parsed = client.chat(model=MODEL, messages=messages, options=longer, format=ADD)
shown = client.show(MODEL)
try:
    client.chat(model="other", messages=messages)
    refused = 0
except ollama.ResponseError as error:
    refused = error.status_code
tell(
    text=whole.message.content,
    tokens=whole.eval_count,
    streamed="".join(part.message.content for part in parts),
    prompted=prompted.response,
    prompted_streamed="".join(part.response for part in prompted_parts),
    parsed=Add.model_validate_json(parsed.message.content).model_dump(),
    vectors=[[*row] for row in client.embed(model=EMBEDDING, input=TEXTS).embeddings],
    models=[each.model for each in client.list().models],
    capabilities=shown.capabilities,
    refused=refused,
)
