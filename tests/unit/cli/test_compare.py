"""`tandem compare` with scripted models: who answers when, what is remembered, what is refused."""

from __future__ import annotations

import json
from typing import Any

import pytest
from click.testing import CliRunner, Result

from tandem.cli import main
from tandem.commands import compare as compare_module
from tandem.commands.ask_suite import ask
from tandem.generation.client import Generated
from tandem.generation.request import GenerationRequest
from tests.unit.cli.scripted_pair import scripted_pair


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[GenerationRequest]:
    """What is asked of the scripted models, in order."""
    requests: list[GenerationRequest] = []

    async def noted(*given: Any, **more: Any) -> Generated:
        requests.append(given[1])
        return await ask(*given, **more)

    monkeypatch.setattr(compare_module, "ask", noted)
    monkeypatch.setattr(
        "tandem.commands.suite_choice.load_pair", lambda draft, target: scripted_pair()
    )
    return requests


def compare(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["compare", "--demo", *arguments], prog_name="tandem")


def test_the_two_answer_in_turns_alike_and_remember_nothing(
    asked: list[GenerationRequest],
) -> None:
    flags = ("--raw", "hello", "--preset", "dssd", "--turns", "3", "--seed", "7")
    ended = compare(*flags, "--max-tokens", "24")
    assert ended.exit_code == 0, ended.output
    presets = [request.preset for request in asked]
    assert presets == ["dssd", "ar", "ar", "dssd", "dssd", "ar", "ar", "dssd"]
    assert all(request.no_memory for request in asked)
    assert {request.params.seed for request in asked} == {7}
    assert len({request.params.sampling for request in asked}) == 1
    alone, own, same, verdict = ended.stdout.splitlines()
    assert alone.startswith("the large model alone: ")
    assert alone.endswith(", 1.00 passes of the large model a token")
    assert own.startswith("dssd: ")
    assert "times as fast" in verdict
    assert same.startswith("the texts ")
    assert ended.stderr.count("\nturn ") == 3


def test_json_has_all_answers_and_the_verdict(asked: list[GenerationRequest]) -> None:
    ended = compare("--raw", "hello", "--turns", "2", "--max-tokens", "24", "--json")
    found = json.loads(ended.stdout)
    assert len(found["answers"]) == len(found["answers_alone"]) == 2
    assert {one["preset"] for one in found["answers_alone"]} == {"ar"}
    assert found["preset"] == "auto"
    assert found["same_text"] is True
    assert found["speedup"]["lowest"] <= found["speedup"]["middle"] <= found["speedup"]["highest"]
    assert found["verdict"]


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("--preset", "ar"), "--preset: ar is what others are compared with"),
        (("--preset", "dragon-coupled"), "--preset: dragon-coupled answers from documents"),
        (("--endpoint", "127.0.0.1:1"), "--demo: the suite at --endpoint has its own"),
        (("--turns", "1"), "--turns"),
        (("--timeout", "0"), "--timeout: must be above 0, is 0"),
    ],
)
def test_what_cannot_be_compared_is_refused_before_a_model_is_loaded(
    flags: tuple[str, ...], words: str, asked: list[GenerationRequest]
) -> None:
    ended = compare("hello", *flags)
    assert ended.exit_code == 2
    assert words in ended.stderr
    assert asked == []
