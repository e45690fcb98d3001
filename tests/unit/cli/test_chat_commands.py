"""The commands of a chat, without a terminal: what they change, and how they refuse."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tandem.commands.chat_client import ChatClient
from tandem.commands.chat_commands import ChatCommands, read_message
from tandem.commands.conversation import Conversation
from tandem.core.errors import InvalidArgument
from tandem.suite.background import BackgroundSuite
from tests.unit.cli.scripted_pair import scripted_pair

TIMEOUT_S = 60.0


@pytest.fixture(scope="module")
def client() -> Iterator[ChatClient]:
    with (
        BackgroundSuite(scripted_pair()) as suite,
        ChatClient(suite.url, None, TIMEOUT_S) as asking,
    ):
        yield asking


@pytest.fixture
def conversation(client: ChatClient) -> Conversation:
    return Conversation(client, client.card(), {"max_tokens": 6, "seed": 1}, system=None)


@pytest.fixture
def said() -> list[str]:
    return []


@pytest.fixture
def commands(conversation: Conversation, said: list[str]) -> ChatCommands:
    return ChatCommands(conversation, said.append)


def ask(conversation: Conversation, words: str) -> str:
    (*_, reply) = conversation.say(words)
    return reply.text


def test_a_system_message_is_set_shown_and_removed(
    conversation: Conversation, commands: ChatCommands, said: list[str]
) -> None:
    commands.obey("/system")
    commands.obey("/system be brief")
    commands.obey("/system")
    assert said == ["no system message", "be brief"]
    (*_, reply) = conversation.say("hello")
    assert reply.tandem["prompt_tokens"] == len("be briefhello")
    commands.obey("/new")
    assert conversation.messages == [{"role": "system", "content": "be brief"}]
    commands.obey("/set system none")
    assert conversation.messages == []


def test_settings_change_the_answers_that_follow(
    conversation: Conversation, commands: ChatCommands, said: list[str]
) -> None:
    first = ask(conversation, "hello")
    commands.obey("/new")
    commands.obey("/set max-tokens 3")
    assert ask(conversation, "hello") == first[: first.index(">", first.index(">", 5) + 1) + 1]
    commands.obey("/new")
    commands.obey("/set max_tokens 6")
    commands.obey("/set seed 2")
    assert ask(conversation, "hello") != first
    commands.obey("/set seed default")
    assert "seed" not in conversation.settings
    commands.obey("/set")
    assert "temperature 1.0" in said
    assert "max_tokens 6" in said


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("/set temperature", "needs NAME and VALUE"),
        ("/set temprature 1", "did you mean 'temperature'"),
        ("/set temperature hot", "must be a number"),
        ("/set temperature -1", "is not in"),
        ("/set max_tokens 1.5", "must be a whole number"),
        ("/set top_p 2", "is not in"),
        ("/set preset dsssd", "did you mean 'dssd'"),
        ("/save", "needs the name of a file"),
    ],
)
def test_a_bad_setting_is_refused_and_nothing_changes(
    conversation: Conversation, commands: ChatCommands, line: str, words: str
) -> None:
    before = dict(conversation.settings)
    with pytest.raises(InvalidArgument, match=words):
        commands.obey(line)
    assert conversation.settings == before


def test_a_retry_takes_the_place_of_the_last_answer(conversation: Conversation) -> None:
    with pytest.raises(InvalidArgument, match="no message"):
        list(conversation.retry())
    ask(conversation, "hello")
    first = ask(conversation, "again")
    (*_, second) = conversation.retry()
    assert second.text != first
    assert [each["role"] for each in conversation.messages] == 2 * ["user", "assistant"]
    assert conversation.messages[-1]["content"] == second.text
    assert conversation.messages[-2]["content"] == "again"


def test_a_conversation_is_saved_and_no_other_file_is_overwritten(
    conversation: Conversation, commands: ChatCommands, tmp_path: Path, said: list[str]
) -> None:
    commands.obey("/system be brief")
    answer = ask(conversation, "hello")
    as_text, as_json = tmp_path / "talk.txt", tmp_path / "talk.json"
    for path in (as_text, as_json, as_json):  # its own file may be written again
        commands.obey(f"/save {path}")
    assert said == [f"saved {path}" for path in (as_text, as_json, as_json)]
    written = f"system:\nbe brief\n\nuser:\nhello\n\nassistant:\n{answer}\n"
    assert as_text.read_text("utf-8") == written
    assert json.loads(as_json.read_text("utf-8"))["messages"] == conversation.messages
    other = tmp_path / "other"
    other.write_text("mine")
    with pytest.raises(InvalidArgument, match="exists"):
        commands.obey(f"/save {other}")
    with pytest.raises(InvalidArgument, match="No such file"):
        commands.obey(f"/save {tmp_path / 'no' / 'folder'}")
    assert other.read_text() == "mine"


@pytest.mark.parametrize(
    ("typed", "message"),
    [
        (["hello"], "hello"),
        (['"""one"""'], "one"),
        (['"""one', "", 'two"""'], "one\n\ntwo"),
        (['"""', "one", "two", '"""'], "one\ntwo"),
        (["one\ntwo"], "one\ntwo"),
    ],
)
def test_a_message_may_have_several_lines(typed: list[str], message: str) -> None:
    lines, prompts = iter(typed), []

    def read_line(prompt: str) -> str:
        prompts.append(prompt)
        return next(lines)

    assert read_message(read_line, "> ", "... ") == message
    assert prompts == ["> ", *["... "] * (len(typed) - 1)]
