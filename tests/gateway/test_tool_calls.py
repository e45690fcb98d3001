"""Calls of tools in an answer's text, and tools in bodies."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from tandem.core.processors import GrammarKind
from tandem.core.prompt import Turn
from tandem.gateway.choice_reader import CallPiece, Parts, ToolCallReader
from tandem.gateway.errors import ApiError
from tandem.gateway.request_reading import RequestLimits, chat_requests
from tandem.gateway.schema import ChatCompletionRequest
from tandem.text.families import FAMILIES, HERMES, CallFormat, ModelFamily
from tests.gateway.http_suite import chat_body

CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
TOOLS: list[dict[str, Any]] = [
    {"type": "function", "function": {"name": "weather", "parameters": CITY}},
    {"type": "function", "function": {"name": "now", "description": "The time."}},
]
ODD = json.dumps({"city": 'a "}{" \\ b', "nested": [{"x": {}}]})
CALLS = (
    f'<tool_call>\n{{"name": "weather", "arguments": {ODD}}}\n</tool_call>\n'
    '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>'
)


def asking(**more: Any) -> ChatCompletionRequest:
    return ChatCompletionRequest.model_validate(chat_body(tools=TOOLS, **more))


def read(text: str, step: int = 2**20, calls: CallFormat = HERMES) -> Parts:
    """The parts of `text`, which comes in pieces of `step` letters."""
    reader, parts = ToolCallReader(calls), Parts()
    for place in range(0, len(text), step):
        for piece in reader.push(text[place : place + step]):
            assert isinstance(piece, str | CallPiece)
            if isinstance(piece, CallPiece) and piece.name is not None:
                assert piece.index == len(parts.calls)
            parts.add(piece)
    for piece in reader.finish():
        parts.add(piece)
    return parts


@pytest.mark.parametrize("step", [1, 2, 3, 7, 1000])
@pytest.mark.parametrize(
    "text",
    [
        *("", "plain", "a < b <tool", "so: " + CALLS, CALLS, CALLS[:40], CALLS[:90], CALLS[:-5]),
        *(CALLS + "One.\n\nTwo words. \n", CALLS + "\n\nOne\n" + CALLS + " \n", CALLS + "\n \n"),
        CALLS + "\n<tool_call> none</tool_call>\n" + CALLS,
    ],
)
def test_deltas_joined_are_the_message_however_the_text_is_cut(text: str, step: int) -> None:
    assert read(text, step) == read(text)


def test_calls_are_read_as_they_were_written() -> None:
    parts = read("so: " + CALLS)
    assert parts.text == "so: "
    assert parts.calls == [("weather", ODD), ("now", "{}")]
    assert read(CALLS).text == ""


@pytest.mark.parametrize("step", [1, 2, 1000])
@pytest.mark.parametrize("family", FAMILIES, ids=[family.name for family in FAMILIES])
def test_space_within_the_text_after_a_call_is_text(family: ModelFamily, step: int) -> None:
    calls, after = family.calls.written([("now", "{}")]), "One.\n\nTwo words."
    reader = ToolCallReader(family.calls)
    pieces = [calls, *re.findall(f"(?s).{{1,{step}}}", after)]
    said = [piece for text in pieces for piece in reader.push(text) if isinstance(piece, str)]
    assert "".join(said) == after
    assert read(calls + after, calls=family.calls).text == after


@pytest.mark.parametrize("step", [1, 2, 3, 7, 1000])
@pytest.mark.parametrize("family", FAMILIES, ids=[family.name for family in FAMILIES])
def test_every_family_s_calls_are_read_as_it_writes_them(family: ModelFamily, step: int) -> None:
    calls = [("weather", ODD), ("now", "{}")][: 2 if family.calls.constrained else 1]
    text = "so: " + family.calls.written(calls)
    parts = read(text, step, family.calls)
    assert parts.text == "so: "
    assert parts.calls == calls


@pytest.mark.parametrize("step", [1, 5, 1000])
def test_what_only_looks_like_a_call_is_text(step: int) -> None:
    text = "<tool_call>\nI will not.</tool_call> yes"
    assert read(text, step) == Parts(text)


@pytest.mark.parametrize(
    ("more", "holds", "lacks"),
    [
        ({}, ["start: TEXT | calls", "f0", "f1", "call){0,7}", "%json"], ["start: calls"]),
        ({"tool_choice": "required"}, ["start: calls", "f1", "calls: call\n"], ["TEXT", "{0,"]),
        (
            {"tool_choice": "required", "parallel_tool_calls": True},
            ["start: calls", "call){0,7}"],
            ["TEXT"],
        ),
        ({"parallel_tool_calls": False}, ["calls: call\n"], ["{0,"]),
        (
            {"tool_choice": {"type": "function", "function": {"name": "now"}}},
            ["start: calls", "now", "calls: call\n"],
            ["weather", "f1", "{0,"],
        ),
        (
            {
                "tool_choice": {"type": "function", "function": {"name": "now"}},
                "parallel_tool_calls": True,
            },
            ["calls: call\n"],
            ["{0,"],
        ),
        ({"response_format": {"type": "json_object"}}, ["start: json | calls"], ["TEXT"]),
    ],
)
def test_the_grammar_says_what_may_be_called(
    more: dict[str, Any], holds: list[str], lacks: list[str]
) -> None:
    named = asking(**more).named_grammar()
    assert named is not None
    name, grammar = named
    assert (name, grammar.kind) == ("tools", GrammarKind.LARK)
    assert all(part in grammar.source for part in holds), grammar.source
    assert not any(part in grammar.source for part in lacks), grammar.source


def test_no_tools_no_grammar() -> None:
    assert asking(tool_choice="none").named_grammar() is None
    (request,) = chat_requests(asking(tool_choice="none"), RequestLimits())
    assert request.tools == ""


@pytest.mark.parametrize(
    ("more", "param"),
    [
        ({"tools": TOOLS[:1] * 2}, "tools"),
        ({"tools": [], "tool_choice": "required"}, "tool_choice"),
        ({"tool_choice": {"type": "function", "function": {"name": "x"}}}, "tool_choice"),
        ({"guided_regex": "a"}, "tools"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages.0.tool_call_id"),
        ({"messages": [{"role": "user"}]}, "messages.0.content"),
        ({"messages": [{"role": "user", "tool_calls": []}]}, "messages.0.tool_calls"),
    ],
)
def test_what_cannot_be_is_named(more: dict[str, Any], param: str) -> None:
    read = ChatCompletionRequest.model_validate(chat_body(**{"tools": TOOLS, **more}))
    with pytest.raises(ApiError) as refused:
        chat_requests(read, RequestLimits())
    assert refused.value.param == param


def test_messages_become_turns_that_call_and_answer() -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "now", "arguments": "{}"}}
    messages = [
        {"role": "user", "content": "when?", "name": "ann"},
        {"role": "assistant", "content": None, "refusal": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": [{"type": "text", "text": "noon"}]},
    ]
    (request,) = chat_requests(asking(messages=messages), RequestLimits())
    assert request.prompt == (
        Turn("user", "when?"),
        Turn("assistant", "", json.dumps([call])),
        Turn("tool", "noon", tool_call_id="c1"),
    )
    assert [tool["function"]["name"] for tool in json.loads(request.tools)] == ["weather", "now"]


def test_arguments_that_no_reader_follows_are_left_out() -> None:
    """A model writes what it likes."""
    written = ('{"city": "Oslo"}', '{"city": ' + "[" * 100_000, "[1]", "")
    parts = Parts(calls=[("weather", each) for each in written])
    assert list(parts.whole_calls()) == [(0, "weather", {"city": "Oslo"})]
