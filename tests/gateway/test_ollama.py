"""Ollama's API is a translation: its answers are those of OpenAI's routes, in its own form."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from datetime import datetime
from pathlib import Path
from typing import Any

import grpc
import httpx2
import numpy as np
import pytest
import pytest_asyncio

from tandem.core.errors import ResourceExhausted
from tandem.core.processors import GrammarKind
from tandem.core.prompt import Turn
from tandem.gateway.errors import ApiError
from tandem.gateway.ollama import OllamaChatRequest, chat_of
from tandem.gateway.request_reading import RequestLimits, chat_requests
from tandem.gateway.schema import ChatCompletionRequest
from tandem.net.status import Rejected
from tests.gateway.http_suite import KEY, MODEL, HttpSuite, chat_body, http_suite, http_to
from tests.gateway.said_answer import Saying
from tests.services.scripted_suite import CONTEXT
from tests.services.two_sided_suite import retriever
from tests.unit.index.word_vectors import WordVectors

pytestmark = pytest.mark.asyncio(loop_scope="module")

PARAMETERS = {
    "type": "object",
    "properties": {"city": {"type": "string"}},
    "required": ["city"],
}
TOOL = {"type": "function", "function": {"name": "weather", "parameters": PARAMETERS}}
CALLS = (
    'So: <tool_call>\n{"name": "weather", "arguments": {"city": "Rome"}}\n</tool_call>\n'
    '<tool_call>\n{"name": "weather", "arguments": {"city": "Oslo"}}\n</tool_call>'
)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def served(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[HttpSuite]:
    folder = tmp_path_factory.mktemp("documents")
    async with (
        retriever(folder, embedder=WordVectors()) as documents,
        http_suite(retriever=documents.running.target, http_max_tokens=64) as running,
    ):
        yield running


def asked(**more: Any) -> dict[str, Any]:
    return {**chat_body(), "stream": False, **more}


async def told(served: HttpSuite, path: str, body: dict[str, Any]) -> dict[str, Any]:
    answer = await served.post(path, body)
    assert answer.status_code == 200, answer.text
    content: dict[str, Any] = answer.json()
    return content


def lines_of(answer: httpx2.Response) -> list[dict[str, Any]]:
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"] == "application/x-ndjson"
    assert answer.text.endswith("\n")
    return [json.loads(line) for line in answer.text.splitlines()]


async def openai_text(served: HttpSuite, path: str, **body: Any) -> tuple[str, dict[str, Any]]:
    answer = await told(served, path, {"model": MODEL, **body})
    (choice,) = answer["choices"]
    return choice.get("text") or choice["message"]["content"], answer["usage"]


async def test_a_chat_is_openai_s_chat_with_ollama_s_figures(served: HttpSuite) -> None:
    messages = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "hello"}]
    text, usage = await openai_text(
        served, "/v1/chat/completions", messages=messages, max_tokens=12, seed=5
    )
    body = {"model": MODEL, "messages": messages, "options": {"num_predict": 12, "seed": 5}}
    whole = await told(served, "/api/chat", {**body, "stream": False})
    assert whole["message"] == {"role": "assistant", "content": text}
    assert (whole["model"], whole["done"]) == (MODEL, True)
    assert whole["prompt_eval_count"] == usage["prompt_tokens"] == len("be briefhello")
    assert whole["eval_count"] == usage["completion_tokens"]
    assert whole["done_reason"] == ("length" if whole["eval_count"] == 12 else "stop")
    parts = whole["prompt_eval_duration"], whole["eval_duration"]
    assert min(parts) > 0
    assert whole["total_duration"] == pytest.approx(sum(parts), abs=2)
    assert datetime.fromisoformat(whole["created_at"]).tzinfo is not None


def text_of(line: dict[str, Any]) -> str:
    text: str = line["message"]["content"] if "message" in line else line["response"]
    return text


async def test_streams_are_the_default_and_joined_are_the_whole_answer(served: HttpSuite) -> None:
    options = {"num_predict": 20, "seed": 11}
    for path, prompt in (
        ("/api/chat", chat_body()),
        ("/api/generate", {"model": MODEL, "prompt": "hi"}),
    ):
        body = {**prompt, "options": options}
        whole = await told(served, path, {**body, "stream": False})
        lines = lines_of(await served.post(path, body))
        assert len(lines) > 3
        assert "".join(map(text_of, lines)) == text_of(whole)
        assert [line["done"] for line in lines] == [False] * (len(lines) - 1) + [True]
        for name in ("done_reason", "prompt_eval_count", "eval_count"):
            assert lines[-1][name] == whole[name]
        assert lines[-1].keys() == whole.keys()


async def test_a_prompt_is_a_chat_unless_it_is_raw(served: HttpSuite) -> None:
    options = {"num_predict": 10, "seed": 3}
    body = {"model": MODEL, "prompt": "abc", "stream": False, "options": options}
    messages = [{"role": "system", "content": "sys"}, {"role": "user", "content": "abc"}]
    chat, usage = await openai_text(
        served, "/v1/chat/completions", messages=messages, max_tokens=10, seed=3
    )
    templated = await told(served, "/api/generate", {**body, "system": "sys"})
    assert (templated["response"], templated["prompt_eval_count"]) == (chat, 6)
    assert usage["prompt_tokens"] == 6
    text, _ = await openai_text(served, "/v1/completions", prompt="abc", max_tokens=10, seed=3)
    raw = await told(served, "/api/generate", {**body, "raw": True})
    assert (raw["response"], raw["prompt_eval_count"]) == (text, 3)
    for more, field in (({"system": "s"}, "system"), ({"images": ["AA=="]}, "images")):
        refused = await served.post("/api/generate", {**body, "raw": True, **more})
        assert refused.status_code == 400
        assert refused.json() == {"error": f"{field}: cannot be combined with raw or suffix"}


@pytest.mark.parametrize(
    ("options", "same"),
    [
        ({"temperature": 0}, {"temperature": 0}),
        ({"temperature": 0.5, "top_k": 3}, {"temperature": 0.5, "top_k": 3}),
        ({"top_p": 0.3}, {"top_p": 0.3}),
        ({"min_p": 0.3}, {"min_p": 0.3}),
        ({"typical_p": 0.4}, {"typical_p": 0.4}),
        ({"repeat_penalty": 3}, {"repetition_penalty": 3}),
        ({"presence_penalty": 2, "frequency_penalty": 1.5},) * 2,
        ({"stop": ["<1", "<2"]}, {"stop": ["<1", "<2"]}),
        ({"num_ctx": 4096, "num_gpu": 1, "num_thread": 2}, {}),
        ({"num_keep": 4, "penalize_newline": True, "dry_multiplier": 0, "mirostat": 0}, {}),
        ({"xtc_probability": 0.0, "top_n_sigma": -1, "tfs_z": 1, "mirostat_tau": 5.0}, {}),
        ({"num_predict": -1}, {"max_tokens": None}),
    ],
)
async def test_options_are_openai_s_parameters(
    options: dict[str, Any], same: dict[str, Any]
) -> None:
    common = {"num_predict": 24, "seed": 9}
    theirs = OllamaChatRequest.model_validate(asked(options={**common, **options}))
    ours = ChatCompletionRequest.model_validate(chat_body(**{"max_tokens": 24, "seed": 9, **same}))
    limits = RequestLimits(max_tokens=64)
    assert chat_requests(chat_of(theirs, MODEL), limits) == chat_requests(ours, limits)


async def test_a_format_is_the_grammar_of_the_answer() -> None:
    for wanted, source in (("json", {"type": "object"}), (PARAMETERS, PARAMETERS)):
        suite = Saying('{"city": "Rome"}')
        async with http_to(suite) as http:
            answer = await http.post("/api/chat", json=asked(format=wanted))
        assert answer.json()["message"]["content"] == suite.text
        grammar = suite.asked[0].params.processors.grammar
        assert grammar is not None
        assert (grammar.kind, json.loads(grammar.source)) == (GrammarKind.JSON_SCHEMA, source)
    plain = Saying("x")
    async with http_to(plain) as http:
        await http.post("/api/generate", json={"model": MODEL, "prompt": "a", "format": ""})
    assert plain.asked[0].params.processors.grammar is None


async def test_calls_of_tools_have_their_arguments_as_objects() -> None:
    suite = Saying(CALLS)
    async with http_to(suite) as http:
        whole = (await http.post("/api/chat", json=asked(tools=[TOOL]))).json()
        lines = lines_of(await http.post("/api/chat", json=asked(tools=[TOOL], stream=True)))
    calls = whole["message"]["tool_calls"]
    assert [call["function"] for call in calls] == [
        {"name": "weather", "arguments": {"city": "Rome"}},
        {"name": "weather", "arguments": {"city": "Oslo"}},
    ]
    assert whole["message"]["content"] == "So: "
    assert whole["done_reason"] == "stop"
    assert json.loads(suite.asked[0].tools) == [TOOL]
    streamed = [line["message"] for line in lines]
    assert "".join(message["content"] for message in streamed) == "So: "
    found = [call for message in streamed for call in message.get("tool_calls", ())]
    assert [call["function"] for call in found] == [call["function"] for call in calls]


async def test_a_call_that_was_cut_off_is_left_out() -> None:
    cut = CALLS[: CALLS.index("Oslo") + 2]
    async with http_to(Saying(cut, finish_reason="length")) as http:
        whole = (await http.post("/api/chat", json=asked(tools=[TOOL]))).json()
        lines = lines_of(await http.post("/api/chat", json=asked(tools=[TOOL], stream=True)))
    for answer in (whole, lines[-1]):
        assert answer["done_reason"] == "length"
    for messages in ([whole["message"]], [line["message"] for line in lines]):
        calls = [call for each in messages for call in each.get("tool_calls", ())]
        assert [call["function"]["arguments"] for call in calls] == [{"city": "Rome"}]


async def test_results_of_tools_belong_to_the_calls_before_them() -> None:
    call = {"function": {"name": "weather", "arguments": {"city": "Rome"}}}
    other = {"function": {"name": "now", "arguments": {}}}
    messages: list[dict[str, Any]] = [
        {"role": "user", "content": "Where does it rain?"},
        {"role": "assistant", "content": "", "tool_calls": [call, other, call]},
        {"role": "tool", "tool_name": "now", "content": "noon"},
        {"role": "tool", "content": "sun"},
        {"role": "tool", "tool_name": "weather", "content": "rain"},
        {"role": "assistant", "tool_calls": [{"id": "mine", **other}]},
        {"role": "tool", "tool_call_id": "mine", "content": "one"},
    ]
    body = OllamaChatRequest.model_validate({"model": MODEL, "messages": messages})
    (request,) = chat_requests(chat_of(body, MODEL), RequestLimits())
    turns = request.prompt
    assert isinstance(turns, tuple)
    turns = tuple(turn for turn in turns if isinstance(turn, Turn))
    assert turns[0] == Turn("user", "Where does it rain?")
    calls = json.loads(turns[1].tool_calls)
    assert [each["function"] for each in calls] == [
        {"name": "weather", "arguments": '{"city": "Rome"}'},
        {"name": "now", "arguments": "{}"},
        {"name": "weather", "arguments": '{"city": "Rome"}'},
    ]
    numbers = [each["id"] for each in calls]
    assert len({*numbers}) == 3
    results = [(turn.tool_call_id, turn.content) for turn in turns if turn.role == "tool"]
    assert results == [
        (numbers[1], "noon"),
        (numbers[0], "sun"),
        (numbers[2], "rain"),
        ("mine", "one"),
    ]
    for stray in ({"tool_name": "later"}, {"tool_call_id": "x"}):
        wrong = {**messages[2], "tool_name": None, **stray}
        body = OllamaChatRequest.model_validate(
            {"model": MODEL, "messages": [*messages[:2], wrong]}
        )
        with pytest.raises(ApiError, match=r"messages\.2: is not the result of a call"):
            chat_of(body, MODEL)


async def test_images_come_with_the_user_s_message() -> None:
    suite = Saying("A heron.")
    message = {"role": "user", "content": "What is this?", "images": ["aGVyb24="]}
    async with http_to(suite) as http:
        await http.post("/api/chat", json=asked(messages=[message]))
        body = {"model": MODEL, "prompt": "What is this?", "images": ["aGVyb24="]}
        await http.post("/api/generate", json=body)
    for request in suite.asked:
        assert request.params.images == (b"heron",)
        assert request.prompt == (Turn("user", "What is this?"),)


async def test_who_asks_nothing_is_told_that_the_model_is_loaded(served: HttpSuite) -> None:
    bodies: dict[str, dict[str, Any]] = {"/api/chat": {"messages": []}, "/api/generate": {}}
    for path, body in bodies.items():
        answer = await told(served, path, {"model": MODEL, **body})
        assert (answer["done"], answer["done_reason"]) == (True, "load")
        assert answer.get("response", "") == ""
        assert (await served.post(path, {"model": "x", **body})).status_code == 404


async def test_models_are_listed_and_described(served: HttpSuite) -> None:
    listed = (await served.http.get("/api/tags")).json()["models"]
    assert [model["name"] for model in listed] == [MODEL, "words"]
    assert len({model["digest"] for model in listed}) == 2
    shown = await told(served, "/api/show", {"model": MODEL})
    assert shown["model_info"]["tandem.context_length"] == CONTEXT
    assert shown["capabilities"] == ["completion", "tools"]
    vectors = await told(served, "/api/show", {"model": "words"})
    assert vectors["model_info"]["tandem.embedding_length"] == 16
    assert vectors["capabilities"] == ["embedding"]
    assert (await served.post("/api/show", {"model": "none"})).status_code == 404
    assert await told(served, "/api/show", {"name": MODEL}) == shown, "as Continue asks"
    unnamed = await served.post("/api/show", {"verbose": True})
    assert (unnamed.status_code, unnamed.json()["error"]) == (400, "model: is required")
    assert (await served.http.get("/api/version")).json().keys() == {"version"}


async def test_ollama_s_tag_may_stand_behind_a_name(served: HttpSuite) -> None:
    named = f"{MODEL}:latest"
    answer = await told(served, "/api/chat", asked(model=named, options={"num_predict": 2}))
    assert answer["model"] == named
    refused = await served.post("/api/chat", asked(model=f"{MODEL}:7b"))
    assert refused.status_code == 404
    assert refused.json()["error"].startswith(f"The model '{MODEL}:7b' does not exist here")


async def test_embeddings_are_those_of_the_retriever_s_model(served: HttpSuite) -> None:
    expected = WordVectors().embed(["a heron", "two"])
    answer = await told(served, "/api/embed", {"model": "words", "input": ["a heron", "two"]})
    np.testing.assert_array_equal(np.array(answer["embeddings"], np.float32), expected)
    assert answer["prompt_eval_count"] == 3
    single = await told(served, "/api/embed", {"model": "words:latest", "input": "a heron"})
    np.testing.assert_array_equal(np.array(single["embeddings"], np.float32), expected[:1])
    for more, words in (
        ({"input": ["a", ""]}, "input: contains an empty text"),
        ({"dimensions": 8}, "dimensions: must be 16, the dimension of this model"),
    ):
        refused = await served.post("/api/embed", {"model": "words", "input": "a", **more})
        assert (refused.status_code, refused.json()) == (400, {"error": words})
    assert (await served.post("/api/embed", {"model": MODEL, "input": "a"})).status_code == 404


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"options": {"num_predict": 65}}, "options.num_predict: must be at most 64, got 65"),
        ({"options": {"temperature": 3}}, "options.temperature: must be at most 2.0"),
        ({"options": {"mirostat": 2}}, "options.mirostat: "),
        ({"options": {"tfs_z": 0.5}}, "options.tfs_z: is not supported; send temperature, top_k"),
        ({"options": {"repeat_last_n": 64}}, "options.repeat_last_n: "),
        ({"options": {"num_keep": 24}}, "options.num_keep: "),
        ({"options": {"penalize_newline": False}}, "options.penalize_newline: "),
        ({"options": {"dry_multiplier": 0.8}}, "options.dry_multiplier: "),
        ({"options": {"xtc_probability": 0.5}}, "options.xtc_probability: "),
        ({"options": {"top_n_sigma": 1}}, "options.top_n_sigma: "),
        ({"options": {"dynatemp_range": 1.5}}, "options.dynatemp_range: "),
        ({"options": {"samplers": ["top_k"]}}, "options.samplers: "),
        ({"logprobs": True}, "logprobs: is not supported; ask /v1/chat/completions"),
        ({"top_logprobs": 3}, "top_logprobs: is not supported; ask /v1/chat/completions"),
        ({"shift": True}, "shift: is not supported; "),
        ({"options": {"stop": ""}}, "options.stop: "),
        ({"messages": [{"role": "user", "content": "a" * 600}]}, "messages: 600 tokens; "),
        ({"think": "much"}, "think: "),
        ({"format": "xml"}, "format: "),
        ({"formats": "json"}, "Unknown parameter: formats; did you mean 'format'?"),
    ],
)
async def test_what_is_refused_is_named_as_the_caller_named_it(
    served: HttpSuite, more: dict[str, Any], words: str
) -> None:
    answer = await served.post("/api/chat", asked(**more))
    assert answer.status_code == 400
    assert answer.json().keys() == {"error"}
    assert answer.json()["error"].startswith(words)


async def test_keys_and_statuses_are_those_of_openai_s_routes(keys: Path) -> None:
    async with http_suite(http_keys_file=keys, key=KEY) as served:
        body = asked(options={"num_predict": 2})
        assert (await served.post("/api/chat", body)).status_code == 200
        none = await served.http.post("/api/chat", json=body, headers={"Authorization": ""})
        assert none.status_code == 401
        assert none.json().keys() == {"error"}
        nowhere = await served.http.get("/api/nowhere")
        assert (nowhere.status_code, nowhere.json()) == (
            404,
            {"error": "GET /api/nowhere: Not Found"},
        )
    async with http_to(Saying("", error=ResourceExhausted("queue: full"))) as http:
        full = await http.post("/api/chat", json=body)
    assert (full.status_code, full.json()) == (429, {"error": "queue: full"})
    assert full.headers["retry-after"] == "1"


async def test_a_stream_that_breaks_ends_with_an_error_line() -> None:
    lost = Rejected(grpc.StatusCode.UNAVAILABLE, "the cloud is lost")
    async with http_to(Saying("so far", error=lost)) as http:
        lines = lines_of(await http.post("/api/chat", json=chat_body()))
    assert "".join(line["message"]["content"] for line in lines[:-1]) == "so far"
    assert lines[-1] == {"error": "the cloud is lost"}
