"""Answers from the documents of both sides, asked for over HTTP."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2

from tandem.core.prompt import Turn
from tandem.generation.request import RAG_PRESET, GenerationRequest
from tandem.specdec.messages import GenerationParams
from tests.gateway.http_suite import chat_body, http_to
from tests.services.two_sided_suite import TwoSides, two_sides


@asynccontextmanager
async def served(
    folder: Path, **changes: Any
) -> AsyncIterator[tuple[TwoSides, httpx2.AsyncClient]]:
    """`changes`: of the two sides, as `two_sides` has them."""
    async with two_sides(folder, **changes) as suite, http_to(suite.front.requests) as http:
        yield suite, http


def asking(**tandem: Any) -> dict[str, Any]:
    return chat_body("what of the heron?", max_tokens=8, seed=5, tandem=tandem)


async def test_rag_is_one_word_and_equals_the_suite_s_answer(tmp_path: Path) -> None:
    turns = (Turn("user", "what of the heron?"),)
    request = GenerationRequest(
        turns, RAG_PRESET, GenerationParams(seed=5, max_tokens=8), query="heron", documents=1
    )
    async with served(tmp_path) as (suite, http):
        expected = await suite.client.generate(request)
        body = asking(rag=True, query="heron", documents=1, provenance=True)
        answer = (await http.post("/v1/chat/completions", json=body)).json()
        plain = (await http.post("/v1/chat/completions", json=asking())).json()
    (choice,) = answer["choices"]
    assert choice["message"]["content"] == expected.text
    assert choice["tandem"]["preset"] == RAG_PRESET
    provenance = choice["tandem"]["provenance"]
    assert [token["id"] for token in provenance] == expected.token_ids
    assert [token["source"] for token in provenance] == expected.token_sources
    assert all(expected.token_sources)
    assert plain["choices"][0]["tandem"]["preset"] == "auto"


async def test_what_does_not_fit_is_named(tmp_path: Path) -> None:
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"rag": True, "preset": "dssd"}, "preset"),
        ({"rag": False, "preset": "dragon"}, "rag"),
        ({"query": "heron"}, "query"),
        ({"documents": 2}, "documents"),
        ({"rag": True, "documents": 33}, "documents"),
        ({"rag": True, "query": "x" * 5000}, "query"),
    ]
    async with served(tmp_path) as (_, http):
        for tandem, field in wrong:
            answer = await http.post("/v1/chat/completions", json=asking(**tandem))
            assert answer.status_code == 400
            assert answer.json()["error"]["param"] == f"tandem.{field}"
        body = asking(rag=True) | {"stop_token_ids": [1]}
        answer = await http.post("/v1/chat/completions", json=body)
        assert answer.json()["error"]["param"] == "stop_token_ids"
