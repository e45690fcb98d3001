"""Fields inside of a body's objects: what cannot change the answer is ignored, and what would
change it, if it were read, is refused by name."""

from __future__ import annotations

from typing import Any

import pytest

from tests.gateway.http_suite import MODEL, http_to
from tests.gateway.said_answer import Saying

CHAT, RESPONSES, MESSAGES = "/v1/chat/completions", "/v1/responses", "/v1/messages"
PICTURE = "iVBORw0KGgo="
URL = f"data:image/png;base64,{PICTURE}"
SCHEMA = {"type": "object", "description": "One pet.", "properties": {"a": {"description": "It."}}}


def seen(**more: Any) -> dict[str, Any]:
    """A chat with an image."""
    part = {"type": "image_url", "image_url": {"url": URL, **more}}
    return {"messages": [{"role": "user", "content": [part]}]}


def shown(**more: Any) -> dict[str, Any]:
    """The same to the Responses API."""
    part = {"type": "input_image", "image_url": URL, **more}
    return {"input": [{"role": "user", "content": [part]}]}


def told(**more: Any) -> dict[str, Any]:
    """The same to Anthropic's."""
    source = {"type": "base64", "media_type": "image/png", "data": PICTURE}
    block = {"type": "image", "source": source, **more}
    return {"max_tokens": 8, "messages": [{"role": "user", "content": [block]}]}


def said(**more: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": "So?", **more}]}


@pytest.mark.parametrize(
    ("path", "plain", "more"),
    [
        (CHAT, said(), said(name="ann")),
        *((CHAT, seen(), seen(detail=detail)) for detail in ("auto", "high", "original", None)),
        (RESPONSES, shown(), shown(detail="auto")),
        (RESPONSES, {"input": "So?"}, {"input": "So?", "reasoning": {"context": "auto"}}),
        (RESPONSES, {"input": "So?"}, {"input": "So?", "context_management": []}),
        (MESSAGES, told(), told(transformations=None)),
    ],
)
async def test_what_cannot_change_the_answer_is_ignored(
    path: str, plain: dict[str, Any], more: dict[str, Any]
) -> None:
    suite = Saying("Four.")
    async with http_to(suite) as http:
        for body in (plain, more):
            answer = await http.post(path, json={"model": MODEL, "seed": 1, **body})
            assert answer.status_code == 200, answer.text
    assert suite.asked[0] == suite.asked[1]


async def test_descriptions_of_a_schema_change_no_grammar() -> None:
    suite = Saying("{}")
    named = {"name": "pet", "schema": SCHEMA}
    async with http_to(suite) as http:
        for wanted in (named, {**named, "description": "What a pet is."}):
            form = {"type": "json_schema", "json_schema": wanted}
            body = {"model": MODEL, "seed": 1, **said(), "response_format": form}
            assert (await http.post(CHAT, json=body)).status_code == 200
    assert suite.asked[0] == suite.asked[1]


@pytest.mark.parametrize(
    ("path", "body", "named"),
    [
        (CHAT, seen(detail="low"), "detail"),
        (RESPONSES, shown(detail="low"), "detail"),
        (RESPONSES, {"input": "So?", "reasoning": {"context": "all_turns"}}, "reasoning.context"),
        (
            RESPONSES,
            {"input": "So?", "context_management": [{"type": "compaction"}]},
            "context_management",
        ),
        (MESSAGES, told(transformations=[{"type": "crop"}]), "transformations"),
    ],
)
async def test_what_would_change_the_answer_is_refused_by_name(
    path: str, body: dict[str, Any], named: str
) -> None:
    suite = Saying("Four.")
    async with http_to(suite) as http:
        answer = await http.post(path, json={"model": MODEL, **body})
    assert answer.status_code == 400
    assert named in answer.json()["error"]["message"]
    assert "is not supported" in answer.json()["error"]["message"]
    assert not suite.asked
