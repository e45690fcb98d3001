"""`tandem generate` and `tandem chat` with a target of 13 billion parameters on a laptop."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from tandem.cli import main
from tests.services.scripted_engines import laptop_pair

PROMPT = "what does the heron wait for? " * 7


def test_generate_answers_a_long_prompt_once(monkeypatch: pytest.MonkeyPatch) -> None:
    pair = laptop_pair()
    monkeypatch.setattr("tandem.commands.suite_choice.load_pair", lambda draft, target: pair)
    arguments = ["generate", "--prompt", PROMPT, "--max-tokens", "4", "--json"]
    ended = CliRunner().invoke(main, arguments, prog_name="tandem")
    assert (ended.exit_code, ended.stderr) == (0, "")
    found = json.loads(ended.stdout)
    assert (found["tokens"], found["resumes"], found["links_lost"]) == (4, 0, 0)
    assert found["unverified"] == []


def test_chat_takes_a_turn_after_another(monkeypatch: pytest.MonkeyPatch) -> None:
    pair = laptop_pair()
    monkeypatch.setattr("tandem.commands.chat.load_pair", lambda draft, target: pair)
    arguments = ["chat", "--json", "--max-tokens", "3"]
    ended = CliRunner().invoke(main, arguments, input=f"{PROMPT}\nand?\n", prog_name="tandem")
    assert (ended.exit_code, ended.stderr) == (0, "")
    assert [json.loads(line)["tokens"] for line in ended.stdout.splitlines()] == [3, 3]
