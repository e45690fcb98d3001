"""Instructor in each of its modes for OpenAI's API."""

from __future__ import annotations

from collections.abc import Iterable

import instructor
from asked import ADD, KEY, MODEL, QUESTION, V1, Add, tell
from openai import OpenAI

messages = [{"role": "user", "content": QUESTION}]
asked = {"model": MODEL, "messages": messages, "temperature": 0, "max_retries": 1}


def heard(mode: instructor.Mode, **more: object) -> list[dict[str, int]]:
    client = instructor.from_openai(OpenAI(base_url=V1, api_key=KEY), mode=mode)
    several = mode is instructor.Mode.PARALLEL_TOOLS
    kind = Iterable[Add] if several else Add
    found = client.create(**asked, **more, response_model=kind)
    return [each.model_dump() for each in (found if several else [found])]


# Some modes leave it to the model whether it calls, or what its JSON says. The small one here
# follows no prompt, so it is held to an answer that a better one would choose.
schema = {"type": "json_schema", "json_schema": {"name": "Add", "schema": ADD}}
must_call = {"extra_body": {"tool_choice": "required"}}
must_fit = {"extra_body": {"response_format": schema}}
tell(
    tools=heard(instructor.Mode.TOOLS, max_tokens=200),
    parallel=heard(instructor.Mode.PARALLEL_TOOLS, max_tokens=400, **must_call),
    json=heard(instructor.Mode.JSON, max_tokens=200, **must_fit),
    json_schema=heard(instructor.Mode.JSON_SCHEMA, max_tokens=200),
    md_json=heard(instructor.Mode.MD_JSON, max_tokens=200, **must_fit),
    responses_tools=heard(instructor.Mode.RESPONSES_TOOLS),
)
