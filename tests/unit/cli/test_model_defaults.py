"""The sampling settings of a model's generation_config, on the command line and over HTTP: they are
for those who name none."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import httpx2
import pytest
from click.testing import CliRunner

from tandem.backends.model_source import LoadedModel
from tandem.cli import main
from tandem.commands.open_sampling import open_sampling
from tandem.core.default_sampling import DefaultSampling
from tandem.generation.request import GenerationRequest
from tandem.suite.background import BackgroundSuite
from tandem.suite.models import ModelPair
from tests.unit.cli.scripted_pair import scripted_pair

OF_MODEL = {"temperature": 0.4, "top_p": 0.9, "top_k": 20, "repetition_penalty": 1.5}
FLAGS = ("--temperature", "0.4", "--top-p", "0.9", "--top-k", "20", "--repetition-penalty", "1.5")


def pair_with(defaults: DefaultSampling) -> ModelPair:
    pair = scripted_pair()
    draft = LoadedModel(pair.draft, pair.tokenizer, lambda: "")
    target = LoadedModel(pair.target, pair.tokenizer, lambda: "", defaults)
    return replace(pair, models=(draft, target))


@pytest.fixture
def defaults() -> DefaultSampling:
    return DefaultSampling(**OF_MODEL)  # type: ignore[arg-type]


@pytest.fixture(autouse=True)
def models(monkeypatch: pytest.MonkeyPatch, defaults: DefaultSampling) -> None:
    for module in ("suite_choice", "chat"):
        monkeypatch.setattr(
            f"tandem.commands.{module}.load_pair", lambda draft, target: pair_with(defaults)
        )


def answer(*arguments: str) -> dict[str, Any]:
    words = ["generate", *arguments, "--max-tokens", "24", "--seed", "3", "--json"]
    ended = CliRunner().invoke(main, words, prog_name="tandem")
    assert (ended.exit_code, ended.stderr) == (0, "")
    found: dict[str, Any] = json.loads(ended.stdout)
    return found


def test_what_no_flag_sets_is_the_model_s() -> None:
    found, explicit = answer("--raw", "hello"), answer("--raw", "hello", *FLAGS)
    assert found["sampling"] == explicit["sampling"] == OF_MODEL
    assert found["text"] == explicit["text"]


def test_what_a_flag_sets_stays() -> None:
    found = answer("--raw", "hello", "--temperature", "1", "--top-k", "0")
    assert found["sampling"] == {**OF_MODEL, "temperature": 1.0, "top_k": 0}


async def test_a_suite_that_does_not_answer_has_no_say() -> None:
    options = {**dict.fromkeys(OF_MODEL), "generation_config": "auto", "timeout": 60.0}
    request = GenerationRequest("hello")
    sampling = await open_sampling("127.0.0.1:1", request, options, None)
    assert sampling.settings == {}
    assert sampling.line(request).endswith("(the suite did not say what the model recommends)")


@pytest.fixture
def http(defaults: DefaultSampling) -> Iterator[httpx2.Client]:
    with BackgroundSuite(pair_with(defaults)) as suite, httpx2.Client(base_url=suite.url) as http:
        yield http


def test_http_requests_that_name_nothing_get_the_model_s_settings(http: httpx2.Client) -> None:
    (card,) = http.get("/v1/models").json()["data"]
    assert card["tandem"]["default_sampling"] == OF_MODEL
    asked = {
        "model": card["id"],
        "messages": [{"role": "user", "content": "hello"}],
        "max_tokens": 24,
        "seed": 3,
    }

    def text(**settings: Any) -> str:
        answered = http.post("/v1/chat/completions", json={**asked, **settings})
        assert answered.status_code == 200, answered.text
        return str(answered.json()["choices"][0]["message"]["content"])

    assert text() == text(**OF_MODEL)
    assert text() != text(temperature=1, top_p=1, top_k=0, repetition_penalty=1)
    assert text(tandem={"top_k": 0}) == text(**{**OF_MODEL, "top_k": 0})
    body = {"model": card["id"], "input": "hello", "max_output_tokens": 4}
    response = http.post("/v1/responses", json=body).json()
    assert (response["temperature"], response["top_p"]) == (0.4, 0.9)
