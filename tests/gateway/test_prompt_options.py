"""What is asked about prompts and endings beside a chat's own: token ids, vectors, echo, stop
tokens, conversations that are too long."""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import numpy as np
import openai
import pytest
import pytest_asyncio
import tiktoken
from numpy.typing import NDArray

from tests.gateway.http_suite import MODEL, HttpSuite, chat_body, http_suite
from tests.services.scripted_suite import CONTEXT
from tests.services.two_sided_suite import retriever
from tests.unit.index.word_vectors import WordVectors

pytestmark = pytest.mark.asyncio(loop_scope="module")

COMPLETIONS = "/v1/completions"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def served(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[HttpSuite]:
    folder = tmp_path_factory.mktemp("documents")
    async with (
        retriever(folder, embedder=WordVectors()) as documents,
        http_suite(
            retriever=documents.running.target,
            http_embedding_aliases="text-embedding-3-small, text-embedding-ada-002",
        ) as running,
    ):
        yield running


async def told(served: HttpSuite, path: str, **body: Any) -> dict[str, Any]:
    answer = await served.post(path, {"model": MODEL, **body})
    assert answer.status_code == 200, answer.text
    content: dict[str, Any] = answer.json()
    return content


async def refusal(served: HttpSuite, path: str, **body: Any) -> tuple[int, str | None, str]:
    answer = await served.post(path, {"model": MODEL, **body})
    error = answer.json()["error"]
    return answer.status_code, error["param"], error["message"]


async def test_tokens_of_texts_and_conversations_and_back(served: HttpSuite) -> None:
    ids = [ord(letter) % 64 for letter in "abc"]
    plain = await told(served, "/tokenize", prompt="abc")
    assert plain == {"count": 3, "max_model_len": CONTEXT, "tokens": ids, "token_strs": None}
    messages = [{"role": "user", "content": "abc"}]
    spelt = await told(served, "/tokenize", messages=messages, return_token_strs=True)
    assert spelt["tokens"] == ids
    assert spelt["token_strs"] == [f"<{token}>" for token in ids]
    back = await told(served, "/detokenize", tokens=ids)
    assert back == {"prompt": "".join(spelt["token_strs"])}
    assert await told(served, "/detokenize", tokens=[]) == {"prompt": ""}
    for path, body, param in (
        ("/tokenize", {}, "prompt"),
        ("/tokenize", {"prompt": "a", "messages": messages}, "prompt"),
        ("/tokenize", {"prompt": "a" * 10**6}, "prompt"),
        ("/detokenize", {"tokens": [64]}, "tokens"),
        ("/detokenize", {"tokens": [1] * (CONTEXT + 1)}, "tokens"),
        ("/detokenize", {"tokens": ["a"]}, "tokens.0"),
    ):
        assert (await refusal(served, path, **body))[:2] == (400, param), (path, body)
    assert (await served.post("/tokenize", {"model": "x", "prompt": "a"})).status_code == 404


async def test_vectors_by_the_retrievers_model(served: HttpSuite) -> None:
    words = WordVectors()
    expected = words.embed(["a heron", "two"])
    models = {model.id: model.to_dict() async for model in served.openai.models.list()}
    assert models.keys() == {MODEL, "words", "text-embedding-3-small", "text-embedding-ada-002"}
    assert models["words"]["tandem"] == {"dimension": 16}
    for form in ("float", "base64"):
        found = await served.openai.embeddings.create(
            model="words", input=["a heron", "two"], encoding_format=form
        )
        rows: list[Any] = [item.embedding for item in found.data]
        if form == "base64":
            rows = [np.frombuffer(base64.b64decode(row), np.float32) for row in rows]
        np.testing.assert_array_equal(np.array(rows, np.float32), expected)
        assert [item.index for item in found.data] == [0, 1]
        assert found.usage.prompt_tokens == 3
    single = await served.openai.embeddings.create(model="words", input="a heron")
    np.testing.assert_array_equal(np.array(single.data[0].embedding, np.float32), expected[0])
    for more, param in (
        ({"input": ["a", ""]}, "input"),
        ({"input": []}, "input"),
        ({"input": [1, 2]}, "input"),
        ({"input": [[101, 102], []]}, "input"),
        ({"input": [[101, 102], "a"]}, "input"),
        ({"input": [-1]}, "input"),
        ({"input": [1.5]}, "input"),
        ({"input": ["a"] * 2049}, "input"),
        ({"input": "a", "truncate_prompt_tokens": 0}, "truncate_prompt_tokens"),
        ({"input": "a", "dimensions": 8}, "dimensions"),
    ):
        body = {"model": "words", **more}
        assert (await refusal(served, "/v1/embeddings", **body))[:2] == (400, param), more
    assert (await refusal(served, "/v1/embeddings", input="a"))[0] == 404


async def vectors_of(served: HttpSuite, given: Any, **more: Any) -> NDArray[np.float32]:
    arguments: dict[str, Any] = {"model": "words", "input": given, **more}
    found = await served.openai.embeddings.create(**arguments)
    return np.array([each.embedding for each in found.data], np.float32)


async def test_another_name_of_the_embedding_model_is_answered_to(served: HttpSuite) -> None:
    answer = await told(served, "/v1/embeddings", model="text-embedding-3-small", input="a heron")
    assert answer["model"] == "text-embedding-3-small"
    np.testing.assert_array_equal(
        np.array([answer["data"][0]["embedding"]], np.float32), WordVectors().embed(["a heron"])
    )
    card = await served.openai.models.retrieve("text-embedding-3-small")
    assert card.to_dict()["tandem"] == {"dimension": 16}
    assert (await served.post("/v1/embeddings", {"model": "", "input": "a"})).status_code == 404


async def test_many_texts_are_asked_for_in_several_calls(served: HttpSuite) -> None:
    texts = [f"word{number} heron" for number in range(300)]
    np.testing.assert_array_equal(await vectors_of(served, texts), WordVectors().embed(texts))


async def test_a_long_text_is_embedded_in_windows_or_cut(served: HttpSuite) -> None:
    words = [f"w{number}" for number in range(600)]
    windows = [words[:256], words[256:512], words[512:]]
    rows = WordVectors().embed([" ".join(window) for window in windows])
    mean = np.array([256, 256, 88], np.float32) @ rows
    short = WordVectors().embed(["short"])[0]
    found = await vectors_of(served, [" ".join(words), "short"])
    np.testing.assert_allclose(found[0], mean / np.linalg.norm(mean), atol=1e-6)
    np.testing.assert_array_equal(found[1], short)
    for more, kept in (
        ({"truncate": True}, 256),
        ({"truncate_prompt_tokens": -1}, 256),
        ({"truncate_prompt_tokens": 1000}, 256),
        ({"truncate_prompt_tokens": 7}, 7),
    ):
        cut = await vectors_of(served, " ".join(words), extra_body=more)
        np.testing.assert_array_equal(cut[0], WordVectors().embed([" ".join(words[:kept])])[0])
        told_of = await told(served, "/v1/embeddings", model="words", input=" ".join(words), **more)
        assert told_of["usage"]["prompt_tokens"] == kept


async def test_token_ids_of_the_models_own_tokenizer_are_its_texts(served: HttpSuite) -> None:
    words = WordVectors()
    ids = words.token_ids(["a heron", "two"])
    await vectors_of(served, ["a heron", "two"])  # this embedder knows words that it has seen
    marked = [[101, *each, 102] for each in ids]
    np.testing.assert_array_equal(await vectors_of(served, marked), words.embed(["a heron", "two"]))
    np.testing.assert_array_equal(await vectors_of(served, marked[0]), words.embed(["a heron"]))


async def test_token_ids_of_another_tokenizer_are_refused_with_what_mends_it(
    served: HttpSuite,
) -> None:
    """As tiktoken makes them of "hello world", all below the size of this vocabulary, and with an
    id that is above it."""
    for ids in ([15339, 1917], [[15339, 1917]], [101, 2**31, 102], [101], [102, 101]):
        status, param, words = await refusal(
            served, "/v1/embeddings", **{"model": "words", "input": ids}
        )
        assert (status, param) == (400, "input")
        assert "check_embedding_ctx_length=False" in words
        assert "TIKTOKEN_CACHE_DIR" in words
        assert "[101]" in words


def spelling_bytes() -> tiktoken.Encoding:
    """A vocabulary of OpenAI's kind, whose ids are bytes."""
    ranks = {bytes([each]): each for each in range(256)}
    return tiktoken.Encoding(
        "bytes", pat_str=r"(?s:.)", mergeable_ranks=ranks, special_tokens={"<|end|>": 300}
    )


async def test_token_ids_of_openai_s_vocabulary_are_the_texts_that_they_spell(
    tmp_path: Path,
) -> None:
    """As LangChain's OpenAIEmbeddings sends them, a long text in parts that may end within a
    character."""
    ids = {text: [*text.encode()] for text in ("a heron", "two", "né")}
    async with (
        retriever(tmp_path, embedder=WordVectors(), openai_vocabulary=spelling_bytes) as documents,
        http_suite(retriever=documents.running.target) as suite,
    ):
        expected = WordVectors().embed(["a heron", "two", "n\N{REPLACEMENT CHARACTER}"])
        asked = [ids["a heron"], ids["two"], ids["né"][:-1]]
        np.testing.assert_array_equal(await vectors_of(suite, asked), expected)
        np.testing.assert_array_equal(await vectors_of(suite, ids["two"]), expected[1:2])
        answer = await told(suite, "/v1/embeddings", model="words", input=asked)
        assert answer["usage"]["prompt_tokens"] == 4  # the embedding model's
        words = WordVectors()
        (own,) = words.token_ids(["a heron"])
        await vectors_of(suite, "a heron")  # this embedder knows words that it has seen
        mixed = [[101, *own, 102], ids["two"]]
        np.testing.assert_array_equal(await vectors_of(suite, mixed), expected[:2])
        for unknown, why in (
            ([97, 256], "token id 256 is not in"),
            ([[97], [2**32 - 1]], f"token id {2**32 - 1} is not in"),
            ([32] * (2**17 + 1), "at most 131072"),
        ):
            body = {"model": "words", "input": unknown}
            status, param, message = await refusal(suite, "/v1/embeddings", **body)
            assert (status, param) == (400, "input")
            assert why in message


async def test_token_ids_that_spell_too_much_are_refused(tmp_path: Path) -> None:
    """A token of few bytes in a request may spell many characters."""

    def long_tokens() -> tiktoken.Encoding:
        ranks = {bytes([each]): each for each in range(256)} | {b" " * 128: 256}
        return tiktoken.Encoding(
            "long", pat_str=r"(?s:.)", mergeable_ranks=ranks, special_tokens={}
        )

    async with (
        retriever(tmp_path, embedder=WordVectors(), openai_vocabulary=long_tokens) as documents,
        http_suite(retriever=documents.running.target) as suite,
    ):
        body = {"model": "words", "input": [256] * 8193}
        status, param, message = await refusal(suite, "/v1/embeddings", **body)
        assert (status, param) == (400, "input")
        assert "spell more than 1048576 characters" in message


async def test_without_a_retriever_there_is_no_embedding_model() -> None:
    async with http_suite(http_embedding_aliases="words") as bare:
        with pytest.raises(openai.NotFoundError, match="none does"):
            await bare.openai.embeddings.create(model="words", input="a")


async def test_a_suffix_is_refused_where_the_model_cannot_fill_in(served: HttpSuite) -> None:
    status, param, words = await refusal(served, COMPLETIONS, prompt="a", suffix="end")
    assert (status, param) == (400, "suffix")
    assert "does not support filling in the middle" in words


async def test_top_k_stands_at_top_level_too(served: HttpSuite) -> None:
    common: dict[str, Any] = {"prompt": "abc", "max_tokens": 12, "seed": 4}
    greedy = await told(served, COMPLETIONS, **common, temperature=0)
    for own in ({"top_k": 1}, {"tandem": {"top_k": 1}}, {"top_k": 1, "tandem": {"top_k": 1}}):
        cut = await told(served, COMPLETIONS, **common, **own)
        assert cut["choices"][0]["text"] == greedy["choices"][0]["text"], own
    plain = await told(served, COMPLETIONS, **common)
    free = await told(served, COMPLETIONS, **common, top_k=-1)
    assert free["choices"][0]["text"] == plain["choices"][0]["text"]
    status, param, _ = await refusal(served, COMPLETIONS, **common, top_k=1, tandem={"top_k": 2})
    assert (status, param) == (400, "top_k")


async def test_a_conversation_that_is_too_long_is_refused_or_cut(served: HttpSuite) -> None:
    talk = [
        {"role": "system", "content": "s" * 20},
        *({"role": role, "content": "a" * 150} for role in ("user", "assistant") * 2),
        {"role": "user", "content": "last"},
    ]
    body = {**chat_body(max_tokens=8, seed=1), "messages": talk}
    answer = await served.post("/v1/chat/completions", body)
    error = answer.json()["error"]
    assert (error["param"], error["code"]) == ("messages", "context_length_exceeded")
    assert f"624 tokens; the context holds {CONTEXT}" in error["message"]
    cut = await told(served, "/v1/chat/completions", **{**body, "truncate": "oldest"})
    assert cut["usage"]["prompt_tokens"] == 20 + 150 + 150 + 4
    kept = {**body, "messages": [talk[0], *talk[3:]]}
    same = await told(served, "/v1/chat/completions", **kept)
    assert cut["choices"][0]["message"] == same["choices"][0]["message"]


async def test_interactive_documentation_loads_nothing_foreign() -> None:
    async with http_suite() as running:
        page = await running.http.get("/docs")
        assert page.headers["content-type"].startswith("text/html")
        assert "default-src 'none'" in page.headers["content-security-policy"]
        assert "unsafe" not in page.headers["content-security-policy"]
        assert "//" not in page.text
        for name, kind in (
            ("swagger-ui.js", "javascript"),
            ("swagger-ui.css", "css"),
            ("docs.js", "javascript"),
            ("docs.css", "css"),
        ):
            assert f'"docs/{name}"' in page.text
            file = await running.http.get(f"/docs/{name}")
            assert file.status_code == 200
            assert kind in file.headers["content-type"]
            assert file.headers["x-content-type-options"] == "nosniff"
    async with http_suite(http_docs=False) as running:
        assert (await running.http.get("/docs")).status_code == 404
