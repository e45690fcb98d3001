"""Other people's clients, unchanged, are answered what plain HTTP is answered.

`make test-clients` installs them. Each test is a line of the matrix in `docs/clients.md`."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.clients.conftest import Clients, Server

QUESTION = "Tom has 3 apples."
TEXTS = ("A heron stands in the water.", "The train leaves at noon.", "Bread is baked at night.")
SUMS: Any = [{"a": a, "b": b} for a in (1, 2) for b in (3, 4)]

pytestmark = pytest.mark.timeout(300)  # the first test waits for the suite


def check_texts(told: dict[str, Any], server: Server) -> None:
    text = server.chat(QUESTION)
    assert text
    assert told["text"] == text
    assert told["streamed"] == text


def check_call(called: Any) -> None:
    name, arguments = called
    assert name == "add"
    assert arguments in SUMS


def check_vectors(vectors: Any, server: Server) -> None:
    np.testing.assert_allclose(np.array(vectors), np.array(server.vectors(*TEXTS)), atol=1e-6)


def test_openai_for_python(clients: Clients, server: Server) -> None:
    told = clients.python("openai_client", "openai")
    check_texts(told, server)
    assert told["response"] == told["text"]
    assert told["parsed"] in SUMS
    check_call(told["called"])
    assert told["finish_reason"] == "tool_calls"
    check_vectors(told["vectors"], server)
    assert told["models"] == [server.model, server.embedding]


def test_openai_for_node(clients: Clients, server: Server) -> None:
    told = clients.node("openai_node", "openai")
    check_texts(told, server)
    assert told["response"] == told["text"]
    check_call(told["called"])
    check_vectors(told["vectors"], server)


def test_ai_sdk(clients: Clients, server: Server) -> None:
    told = clients.node("ai_sdk_node", "ai", "@ai-sdk/openai-compatible")
    check_texts(told, server)
    assert told["parsed"] in SUMS
    check_call(told["called"])
    check_vectors(told["vectors"], server)


def test_langchain(clients: Clients, server: Server) -> None:
    told = clients.python("langchain_client", "langchain-openai", "litellm")
    check_texts(told, server)
    assert told["parsed"] in SUMS
    assert told["called"] in SUMS
    check_vectors(told["vectors"], server)
    assert told["nearest"] == TEXTS[1]


def test_llama_index(clients: Clients, server: Server) -> None:
    told = clients.python(
        "llama_index_client", "llama-index-llms-openai-like", "llama-index-embeddings-openai-like"
    )
    check_texts(told, server)
    assert told["nearest"] == TEXTS[1]
    assert told["sources"] == [TEXTS[1]]
    assert told["answer"]


def test_litellm(clients: Clients, server: Server) -> None:
    told = clients.python("litellm_client", "litellm")
    check_texts(told, server)
    check_call(told["called"])
    check_vectors(told["vectors"], server)


def test_litellm_s_proxy(clients: Clients, server: Server) -> None:
    check_texts(clients.python("litellm_proxy", "litellm", "litellm-proxy-extras"), server)


def test_instructor_in_every_mode(clients: Clients) -> None:
    told = clients.python("instructor_client", "instructor")
    modes = {"tools", "parallel", "json", "json_schema", "md_json", "responses_tools"}
    assert told.keys() == modes
    for mode, found in told.items():
        assert found, mode
        assert all(each in SUMS for each in found), mode
        assert len(found) == 1 or mode == "parallel"


def test_pydantic_ai(clients: Clients, server: Server) -> None:
    told = clients.python("pydantic_ai_client", "pydantic-ai-slim")
    check_texts(told, server)
    assert told["called"] in SUMS
    assert told["parsed"] in SUMS


def test_llm(clients: Clients, server: Server) -> None:
    check_texts(clients.python("llm_client", "llm"), server)


def test_ollama(clients: Clients, server: Server) -> None:
    told = clients.python("ollama_client", "ollama")
    check_texts(told, server)
    assert 0 < told["tokens"] <= 24
    prompted = server.chat(QUESTION, system="Be brief.")
    assert told["prompted"] == told["prompted_streamed"] == prompted
    assert told["parsed"] in SUMS
    check_vectors(told["vectors"], server)
    assert told["models"] == [server.model, server.embedding]
    assert told["capabilities"] == ["completion", "tools"]
    assert told["refused"] == 404


def test_anthropic(clients: Clients, server: Server) -> None:
    told = clients.python("anthropic_client", "anthropic")
    assert told["text"] == server.chat(QUESTION, system="Be brief.")
    assert told["streamed"] == server.chat(QUESTION)
    assert 0 < told["tokens"] <= 24
    assert told["counted"] == told["prompts"]
    assert told["stop_reason"] in ("end_turn", "max_tokens")
    check_call(told["called"])
    assert told["called_streamed"] == told["called"]
    assert told["call_reasons"] == ["tool_use", "tool_use"]
    assert told["refused"] == "not_found_error"


@pytest.mark.timeout(600)
def test_llm_comply(clients: Clients, server_that_talks: Server) -> None:
    asking = replace(clients, server=server_that_talks, timeout_s=500.0)
    told = asking.python("llm_comply_client", "llm-comply")
    failed = {
        dialect: {each["id"]: each["errors"][0] for each in tests if each["status"] == "failed"}
        for dialect, tests in told.items()
    }
    assert failed == {  # the pair sees no images
        "openai-chat": {"chat-image-input": "HTTP 400 (expected [200])"},
        "open-responses": {"image-input": "HTTP 400 (expected [200])"},
        "anthropic": {"anth-image-input": "HTTP 400 (expected [200])"},
    }
    passed = {
        dialect: sum(each["status"] == "passed" for each in tests)
        for dialect, tests in told.items()
    }
    assert passed == {"openai-chat": 7, "open-responses": 11, "anthropic": 7}


def test_aiperf(clients: Clients, pytestconfig: pytest.Config) -> None:
    environment = pytestconfig.getoption("--load-generators")
    if environment is None:
        pytest.skip("aiperf is large: 'make test-clients CLIENTS=all' installs it")
    told = replace(clients, environment=environment.absolute()).python("aiperf_client", "aiperf")
    assert told == {"requests": 4, "tokens": 32, "errors": []}
