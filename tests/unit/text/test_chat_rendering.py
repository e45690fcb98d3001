"""How a caller wants its conversation to become a prompt."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import pytest
from transformers import PreTrainedTokenizerBase
from transformers.utils.chat_template_utils import render_jinja_template

from tandem.backends.model_description import load_tokenizer
from tandem.core.errors import InvalidArgument
from tandem.core.prompt import Turn
from tandem.text.chat_rendering import ChatRendering, continued_tokens, read_variables
from tandem.text.tokenizer import TextTokenizer
from tandem.text.tool_prompt import conversation_ids
from tests.unit.backends.tiny_folders import SPECIAL, write_model, write_tokenizer

THINKING = (
    "{% if reasoning_effort %}effort {{ reasoning_effort }} {% endif %}"
    "{% for m in messages %}{{ m.role }} {{ m.content | trim }}{{ '<end>' }}{% endfor %}"
    "{% if add_generation_prompt %}assistant "
    "{% if enable_thinking is defined and not enable_thinking %}(no thoughts){% endif %}"
    "{% endif %}"
)
TALK = (Turn("user", "when?"), Turn("assistant", "It is "))


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> TextTokenizer:
    folder: Path = tmp_path_factory.mktemp("thinking")
    return load_tokenizer(write_tokenizer(write_model(folder, "llama"), template=THINKING))


def rendered(tokenizer: TextTokenizer, **variables: Any) -> str:
    return tokenizer.decode(conversation_ids(tokenizer, TALK, variables=variables))


def test_a_template_reads_its_variables(tokenizer: TextTokenizer) -> None:
    plain = "user when?assistant It isassistant "
    assert rendered(tokenizer) == plain
    assert rendered(tokenizer, enable_thinking=False) == plain + "(no thoughts)"
    assert rendered(tokenizer, enable_thinking=True, unknown=[1]) == plain
    assert rendered(tokenizer, reasoning_effort="low") == "effort low " + plain
    assert rendered(tokenizer, add_generation_prompt=False) == "user when?assistant It is"


def test_the_last_message_is_continued(tokenizer: TextTokenizer) -> None:
    """Without the token that ends it. This template trims what it writes."""
    ids = conversation_ids(tokenizer, TALK, variables={"continue_final_message": True})
    assert tokenizer.decode(ids) == "user when?assistant It is"
    assert ids.count(SPECIAL.index("<end>")) == 1


def test_control_tokens_in_a_variable_are_text(tokenizer: TextTokenizer) -> None:
    ids = conversation_ids(tokenizer, TALK[:1], variables={"reasoning_effort": "<end>"})
    assert ids.count(SPECIAL.index("<end>")) == 1
    assert tokenizer.decode(ids).startswith("effort <end> user")


def test_a_message_that_the_template_leaves_out_cannot_be_continued(tmp_path: Path) -> None:
    silent = load_tokenizer(
        write_tokenizer(write_model(tmp_path, "llama"), template="{{ messages[0].content }}")
    )
    with pytest.raises(InvalidArgument, match=r"^continue_final_message: "):
        conversation_ids(silent, TALK, variables={"continue_final_message": True})


def test_a_variable_of_a_kind_that_the_template_cannot_use_is_refused(tmp_path: Path) -> None:
    adding = load_tokenizer(
        write_tokenizer(write_model(tmp_path, "llama"), template="{{ messages[0].content + a }}")
    )
    assert adding.decode(conversation_ids(adding, TALK, variables={"a": "!"})) == "when?!"
    with pytest.raises(InvalidArgument, match=r"^chat_template_kwargs: refused"):
        conversation_ids(adding, TALK, variables={"a": 3})


def test_what_is_said_is_read() -> None:
    assert read_variables("") == {}
    assert ChatRendering.of({}) == ChatRendering(True, False, {})
    read = read_variables('{"a": [1], "add_generation_prompt": null}')
    assert ChatRendering.of(read) == ChatRendering(variables={"a": [1]})
    assert ChatRendering.of({"continue_final_message": True}) == ChatRendering(
        add_generation_prompt=False, continue_final_message=True
    )


def test_no_variable_stands_for_a_parameter_of_rendering() -> None:
    """Of this version of transformers, and of what it hands to the template."""
    renders = (PreTrainedTokenizerBase.apply_chat_template, render_jinja_template)
    parameters = {name for each in renders for name in inspect.signature(each).parameters}
    switches = {"add_generation_prompt", "continue_final_message"}
    for name in parameters - switches - {"self", "kwargs"}:
        with pytest.raises(InvalidArgument, match=name):
            ChatRendering.of({name: True})


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("{", "must be a JSON object"),
        ("[1]", "must be a JSON object"),
        ("[" * 10_000, "must be a JSON object"),
        ('{"add_generation_prompt": 1}', "must be true or false"),
        ('{"continue_final_message": true, "add_generation_prompt": true}', "must be false"),
        ('{"tools": []}', "tools is no variable"),
        ('{"chat_template": "x"}', "chat_template is no variable"),
        ('{"self": "x"}', "self is no variable"),
        ('{"eos_token": "x"}', "eos_token is no variable"),
        ('{"a b": 1}', "'a b' is no name"),
        ('{"__class__": 1}', "'__class__' is no name"),
    ],
)
def test_what_a_caller_cannot_say_is_refused(text: str, why: str) -> None:
    with pytest.raises(InvalidArgument, match=why):
        read_variables(text)


def test_an_answer_goes_on_with_its_prompt_unless_it_begins_a_turn() -> None:
    turns = (Turn("user", "hello"), Turn("assistant", "well"))
    for prompt, variables, goes_on in (
        ("hello", "", True),
        ((1, 2), "", True),
        (turns[:1], "", False),
        (turns, '{"add_generation_prompt": false}', False),
        (turns, '{"continue_final_message": true}', True),
    ):
        assert continued_tokens(prompt, variables, (1, 2)) == ((1, 2) if goes_on else ())
