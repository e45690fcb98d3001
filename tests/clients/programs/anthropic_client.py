"""Anthropic's own client against /v1/messages."""

from __future__ import annotations

import anthropic
from asked import ADD, KEY, MAX_TOKENS, MODEL, QUESTION, SYSTEM, URL, Add, tell

client = anthropic.Anthropic(base_url=URL, api_key=KEY)
asked = {
    "model": MODEL,
    "messages": [{"role": "user", "content": QUESTION}],
    "max_tokens": MAX_TOKENS,
    "extra_body": {"temperature": 0},  # the client has no argument for it any more
}
whole = client.messages.create(**asked, system=SYSTEM)
with client.messages.stream(**asked) as stream:
    parts = list(stream.text_stream)
    final = stream.get_final_message()
tools = {
    "tools": [{"name": "add", "input_schema": ADD}],
    "tool_choice": {"type": "tool", "name": "add", "disable_parallel_tool_use": True},
}
called = client.messages.create(**{**asked, "max_tokens": 200}, **tools)
with client.messages.stream(**{**asked, "max_tokens": 200}, **tools) as calling:
    streamed_call = calling.get_final_message()
try:
    client.messages.create(**{**asked, "model": "other"})
    refused = ""
except anthropic.NotFoundError as error:
    refused = error.body["error"]["type"]
counted = [
    client.messages.count_tokens(model=MODEL, messages=asked["messages"], **more).input_tokens
    for more in ({"system": SYSTEM}, tools)
]
tell(
    counted=counted,
    prompts=[
        answer.usage.input_tokens + answer.usage.cache_read_input_tokens
        for answer in (whole, called)
    ],
    text=whole.content[0].text,
    stop_reason=whole.stop_reason,
    streamed="".join(parts),
    tokens=final.usage.output_tokens,
    called=[called.content[0].name, Add.model_validate(called.content[0].input).model_dump()],
    called_streamed=[streamed_call.content[0].name, streamed_call.content[0].input],
    call_reasons=[called.stop_reason, streamed_call.stop_reason],
    refused=refused,
)
