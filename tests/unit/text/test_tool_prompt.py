"""Tools in prompts: by templates that know them, and as text for those that do not."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tandem.backends.model_description import load_tokenizer
from tandem.core.errors import InvalidArgument
from tandem.core.prompt import Turn
from tandem.text.tokenizer import TextTokenizer
from tandem.text.tool_prompt import conversation_ids
from tests.unit.backends.tiny_folders import write_model, write_tokenizer

KNOWING = (
    "{% for tool in tools or [] %}[{{ tool.function.name }}]{% endfor %}"
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}"
    "{% for call in m.tool_calls or [] %}({{ call.function.name }} {{ call.function.arguments.n }})"
    "{% endfor %}{% if m.role == 'tool' %}={{ m.name }}{% endif %}{% endfor %}"
)
PLAIN = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}"
TOOLS = json.dumps([{"type": "function", "function": {"name": "now"}}])
CALL = {"id": "c", "type": "function", "function": {"name": "now", "arguments": '{"n": 7}'}}
TURNS = (
    Turn("user", "when?"),
    Turn("assistant", "", json.dumps([CALL])),
    Turn("tool", "noon", tool_call_id="c"),
    Turn("tool", "one", tool_call_id="c"),
)


def tokenizer(folder: Path, template: str) -> TextTokenizer:
    return load_tokenizer(write_tokenizer(write_model(folder, "llama"), template=template))


def test_a_template_that_knows_tools_gets_them_as_they_are(tmp_path: Path) -> None:
    reader = tokenizer(tmp_path, KNOWING)
    text = reader.decode(conversation_ids(reader, TURNS, TOOLS))
    assert text == "[now]<user>when?<assistant>(now 7)<tool>noon=now<tool>one=now".replace(
        "<user>", ""
    ).replace("<assistant>", "")
    assert reader.decode(conversation_ids(reader, TURNS[:1])) == "when?"


def test_others_read_of_them(tmp_path: Path) -> None:
    reader = tokenizer(tmp_path, PLAIN)
    text = reader.decode(conversation_ids(reader, TURNS, TOOLS))
    assert text.startswith("You may call these functions:")
    assert text.endswith(
        'when?<tool_call>\n{"name": "now", "arguments": {"n": 7}}\n</tool_call>'
        "<tool_response>\nnoon\n</tool_response>\n<tool_response>\none\n</tool_response>"
    )
    system = (Turn("system", "Be brief."), *TURNS)
    text = reader.decode(conversation_ids(reader, system, TOOLS))
    assert text.startswith("<system>Be brief.\n\nYou may call")


@pytest.mark.parametrize("tools", ["{", "{}", "[1]", "[" * 100_000])
def test_tools_that_are_no_list_of_objects_are_refused(tmp_path: Path, tools: str) -> None:
    reader = tokenizer(tmp_path, PLAIN)
    with pytest.raises(InvalidArgument, match="tools: is not a JSON list"):
        conversation_ids(reader, TURNS[:1], tools)
    with pytest.raises(InvalidArgument, match="messages: a tool call needs"):
        conversation_ids(reader, (Turn("assistant", "", "[{}]"),))
