"""The OpenAPI document says what the API does: real answers fit it, and so do answers to whatever
can be asked by it."""

from __future__ import annotations

import asyncio
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from jsonschema_rs import Draft202012Validator
from pydantic import BaseModel

from tandem.gateway.anthropic_messages import MessageEvent, MessageObject, TokenCount
from tandem.gateway.app import AliveAnswer, ReadyAnswer
from tandem.gateway.catalog import ModelCard, ModelList
from tandem.gateway.errors import ErrorBody, MessageError, OllamaError
from tandem.gateway.ollama import (
    OllamaAnswer,
    OllamaModelCard,
    OllamaModels,
    OllamaVersion,
)
from tandem.gateway.openai_answer import (
    ChatCompletion,
    ChatCompletionChunk,
    TextCompletion,
    TextCompletionChunk,
)
from tandem.gateway.responses import ResponseEvent, ResponseObject
from tests.gateway.http_suite import KEY, MODEL, HttpSuite, chat_body, http_suite, one_loop
from tests.gateway.test_sent_bodies import CLAUDE_CODE, CODEX, OPEN_WEBUI, OPEN_WEBUI_OLLAMA
from tests.long_runs import LONG

CASES = [1, pytest.param(3, marks=LONG)]
"""Of each kind and operation; `make test-openapi` asks more than LEAST_ASKED in all."""
LEAST_ASKED = 2000
SILENT_S = 120
"""A request that is not answered for so long fails, and is told."""


def references(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        if "$ref" in value:
            yield value["$ref"]
        value = list(value.values())
    if isinstance(value, list):
        for each in value:
            yield from references(each)


async def document_of(suite: HttpSuite) -> dict[str, Any]:
    document: dict[str, Any] = (await suite.http.get("/openapi.json")).json()
    return document


@one_loop
async def test_references_resolve_and_every_status_is_named(served: HttpSuite) -> None:
    document = await document_of(served)
    found = list(references(document))
    assert found
    for reference in found:
        part: Any = document
        for name in reference.removeprefix("#/").split("/"):
            part = part[name]
    for path in ("/v1/chat/completions", "/v1/completions"):
        answers = document["paths"][path]["post"]["responses"]
        assert {"200", "400", "401", "404", "413", "429", "503"} <= answers.keys()
        assert "422" not in answers
        assert answers["200"]["content"].keys() == {"application/json", "text/event-stream"}
    assert (
        "application/json"
        not in document["paths"]["/metrics"]["get"]["responses"]["200"]["content"]
    )


@one_loop
async def test_bodies_of_programs_are_what_the_document_allows(served: HttpSuite) -> None:
    document = await document_of(served)
    for kind, body in (
        ("MessagesRequest", CLAUDE_CODE),
        ("ResponsesRequest", CODEX),
        ("ChatCompletionRequest", OPEN_WEBUI),
        ("OllamaChatRequest", OPEN_WEBUI_OLLAMA),
    ):
        schema = {"$ref": f"#/components/schemas/{kind}", "components": document["components"]}
        Draft202012Validator(schema).validate(body)


def parts(value: Any) -> Iterator[dict[str, Any]]:
    """Yield every object in a document."""
    if isinstance(value, dict):
        yield value
        value = list(value.values())
    if isinstance(value, list):
        for each in value:
            yield from parts(each)


@one_loop
async def test_no_number_of_an_answer_is_a_constant(served: HttpSuite) -> None:
    """Generators write a check for each constant, which no other number passes, and some write
    what their language warns of where the constant is a number."""
    document = await document_of(served)
    schemas = document["components"]["schemas"]
    waiting = {
        reference.rpartition("/")[2]
        for path in document["paths"].values()
        for operation in path.values()
        for reference in references(operation["responses"])
    }
    checked: set[str] = set()
    while waiting:
        checked.add(name := waiting.pop())
        waiting |= {each.rpartition("/")[2] for each in references(schemas[name])} - checked
        constants = [each for each in parts(schemas[name]) if each.get("type") == "integer"]
        assert not [each for each in constants if "const" in each or "enum" in each], name
    assert {"ResponseObject", "CacheCreation"} <= checked


def fits(kind: type[BaseModel], raw: bytes | str) -> None:
    """No field more and none less."""
    told = kind.model_validate_json(raw).model_dump(mode="json")
    assert told == json.loads(raw)


@one_loop
async def test_answers_in_other_apis_forms_are_what_the_document_says(served: HttpSuite) -> None:
    message = {**chat_body(max_tokens=6), "system": "Be brief."}
    options = {"num_predict": 6}
    fits(MessageObject, (await served.post("/v1/messages", message)).content)
    fits(TokenCount, (await served.post("/v1/messages/count_tokens", chat_body())).content)
    fits(MessageError, (await served.post("/v1/messages", {**message, "top_p": 2})).content)
    streamed = (await served.post("/v1/messages", {**message, "stream": True})).text
    events = [part.partition("data: ")[2] for part in streamed.split("\n\n")]
    assert events.pop() == ""
    assert len(events) > 5
    for event in events:
        fits(MessageEvent, event)
    for path, body, kind in (
        ("/api/chat", {**chat_body(), "options": options}, OllamaAnswer),
        (
            "/api/generate",
            {"model": MODEL, "prompt": "a", "options": options},
            OllamaAnswer,
        ),
    ):
        fits(kind, (await served.post(path, {**body, "stream": False})).content)
        lines = (await served.post(path, body)).text.splitlines()
        assert len(lines) > 1
        for line in lines:
            fits(kind, line)
        fits(OllamaError, (await served.post(path, {**body, "options": 1})).content)
    fits(OllamaModels, (await served.http.get("/api/tags")).content)
    fits(OllamaModelCard, (await served.post("/api/show", {"model": MODEL})).content)
    fits(OllamaVersion, (await served.http.get("/api/version")).content)


@one_loop
async def test_answers_are_what_the_document_says(served: HttpSuite) -> None:
    """No field more and none less, in whole answers, chunks, lists and refusals."""
    tandem = {"provenance": True}
    chat = chat_body(max_tokens=6, logprobs=True, top_logprobs=2, tandem={**tandem, "preset": "ar"})
    text = {"model": MODEL, "prompt": "once", "max_tokens": 6, "logprobs": 2, "tandem": tandem}
    text["tandem"] = {**tandem, "preset": "ar"}
    asked = {"model": MODEL, "input": "once", "max_output_tokens": 6, "instructions": "Be brief."}

    async def events(path: str, body: dict[str, Any]) -> list[str]:
        parts = (await served.post(path, {**body, "stream": True})).text.split("\n\n")
        assert parts.pop() == ""
        assert parts.pop() == "data: [DONE]"
        return [part[part.index("data: ") + len("data: ") :] for part in parts]

    for path, body, whole, chunk in (
        ("/v1/chat/completions", chat, ChatCompletion, ChatCompletionChunk),
        ("/v1/completions", text, TextCompletion, TextCompletionChunk),
    ):
        fits(whole, (await served.post(path, body)).content)
        fits(
            whole,
            (
                await served.post(
                    path,
                    {**body, "tandem": {}, "logprobs": None}
                    | ({"top_logprobs": None} if whole is ChatCompletion else {}),
                )
            ).content,
        )
        found = await events(path, {**body, "stream_options": {"include_usage": True}})
        assert len(found) > 3
        for event in found:
            fits(chunk, event)
        fits(ErrorBody, (await served.post(path, {**body, "top_p": 2})).content)
    fits(ResponseObject, (await served.post("/v1/responses", asked)).content)
    for event in await events("/v1/responses", asked):
        fits(ResponseEvent, event)
    fits(ModelList, (await served.http.get("/v1/models")).content)
    fits(ModelCard, (await served.http.get(f"/v1/models/{MODEL}")).content)
    fits(ErrorBody, (await served.http.get("/v1/models/other")).content)
    fits(AliveAnswer, (await served.http.get("/healthz")).content)
    fits(ReadyAnswer, (await served.http.get("/readyz")).content)


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("few", CASES)
async def test_whatever_is_asked_by_the_document_is_answered_by_it(
    few: int, tmp_path: Path, keys: Path, pytestconfig: pytest.Config
) -> None:
    """Schemathesis, in a process of its own: no 5xx; no status, header, type or body that the
    document does not name; nothing taken that it forbids, and nothing given without a key. It is
    not asked whether every body that the document allows is taken: there are rules between fields.
    """
    asked = pytestconfig.getoption("--openapi-cases", None)
    cases, phases = asked or few, "examples,coverage,fuzzing" if asked else "examples,fuzzing"
    async with http_suite(key=KEY, http_keys_file=keys, http_max_tokens=4) as suite:
        document = await document_of(suite)
        for kind in (
            *("ChatCompletion", "Completion", "Tokenize", "Detokenize", "Responses", "Messages"),
            *("CountTokens", "OllamaChat", "OllamaGenerate", "OllamaShow"),
        ):
            schema = document["components"]["schemas"][f"{kind}Request"]
            schema["properties"]["model"]["enum"] = [MODEL]
        place = tmp_path / "openapi.json"
        place.write_text(json.dumps(document))
        running = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "schemathesis.cli", "run", str(place), "--url", suite.url),
            *("--max-examples", str(cases), "--seed", "1", "--no-color"),
            *("--header", f"Authorization: Bearer {KEY}"),
            *("--exclude-checks", "positive_data_acceptance"),
            *("--phases", phases, "--suppress-health-check", "all"),
            *("--request-timeout", str(SILENT_S)),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            cwd=tmp_path,
        )
        said, _ = await running.communicate()
    assert running.returncode == 0, said.decode()[-6000:]
    generated = re.search(r"(\d+) generated, (\d+) passed", said.decode())
    assert generated is not None
    assert generated[1] == generated[2]
    assert int(generated[1]) > (LEAST_ASKED if asked else few)
