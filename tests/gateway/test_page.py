"""The web page as it is served, and what streams tell it; tests/page looks at it in a browser."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import httpx2

import tandem.gateway
from tandem.gateway.openai_answer import ChatCompletion, ChatCompletionChunk
from tandem.specdec.presets import PRESETS
from tests.gateway.http_suite import KEY, HttpSuite, chat_body, http_suite, one_loop


async def streamed(suite: HttpSuite, **more: Any) -> list[dict[str, Any]]:
    """The choices of the chunks, each of which fits the API's document."""
    answer = await suite.post("/v1/chat/completions", chat_body(stream=True, seed=3, **more))
    assert answer.status_code == 200, answer.text
    events = [event.removeprefix("data: ") for event in answer.text.split("\n\n")]
    chunks = [event for event in events if event.startswith("{")]
    for chunk in chunks:
        ChatCompletionChunk.model_validate_json(chunk)
    return [json.loads(chunk)["choices"][0] for chunk in chunks]


def joined(choices: list[dict[str, Any]], name: str) -> list[dict[str, Any]]:
    return [each for choice in choices for each in choice.get("tandem", {}).get(name, [])]


@one_loop
async def test_every_file_that_the_page_names_is_served_and_nothing_of_another_host(
    served: HttpSuite,
) -> None:
    waiting, seen = ["/"], set[str]()
    while waiting:
        path = waiting.pop()
        seen.add(path)
        answer = await served.http.get(path)
        assert answer.status_code == 200, path
        policy = answer.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert answer.headers["x-content-type-options"] == "nosniff"
        text = answer.text
        assert not re.search(r"""(src|href|from|url)[=( ]*["']?(https?:)?//""", text), path
        assert not re.search(r"<style|\sstyle=\"|<script>|\son\w+=\"", text), path
        # What a proxy serves below a prefix may not ask for anything beside it.
        assert not re.search(r"""["'`(=]/(page|v1|api|docs)\b""", text), path
        named = re.findall(r"""(?:src|href)="(page/[^"]+)"|from ?"\./([^"]+)\"""", text)
        folder = path.rpartition("/")[0]
        found = {f"/{file}" if file else f"{folder}/{module}" for file, module in named}
        waiting += found - seen - set(waiting)
        again = await served.http.get(path, headers={"If-None-Match": answer.headers["etag"]})
        assert (again.status_code, again.content) == (304, b"")
    assert {"/page/main.mjs", "/page/page.css", "/page/vendor/preact.mjs"} <= seen
    assert len(seen) >= 10


async def test_the_page_needs_no_key_and_what_it_asks_does(keys: Path) -> None:
    async with (
        http_suite(key=KEY, http_keys_file=keys) as suite,
        httpx2.AsyncClient(base_url=suite.url) as nobody,
    ):
        assert (await nobody.get("/")).status_code == 200
        able = (await nobody.get("/page/features.json")).json()
        assert able == {"documents": False}
        assert (await nobody.get("/page/../v1/models")).status_code == 401
        assert (await nobody.get("/page/vendor/LICENSE.htm")).status_code == 401
        assert (await suite.http.get("/page/vendor/LICENSE.htm")).status_code == 404
        assert (await nobody.get("/v1/models")).status_code == 401


async def test_it_can_be_left_out() -> None:
    async with http_suite(http_page=False) as suite:
        assert (await suite.http.get("/")).status_code == 404
        assert (await suite.http.get("/page/page.css")).status_code == 404


@one_loop
async def test_rounds_and_token_texts_are_told_where_asked_for(served: HttpSuite) -> None:
    wanted = {"preset": "dssd", "provenance": True, "token_texts": True, "rounds": True}
    choices = await streamed(served, max_tokens=24, tandem=wanted)
    plain = await streamed(served, max_tokens=24, tandem={"preset": "dssd", "provenance": True})
    body = chat_body(seed=3, max_tokens=24, tandem=wanted)
    whole = (await served.post("/v1/chat/completions", body)).json()
    figures = choices[-1]["tandem"]
    content = "".join(choice["delta"].get("content", "") for choice in choices)
    made = joined(choices, "provenance")
    assert "".join(each["text"] for each in made) == content
    assert len(made) == figures["tokens"]
    rounds = joined(choices, "rounds_ended")
    assert len(rounds) == figures["rounds"] > 1
    assert figures["same_bits"] is True
    assert sum(each["accepted"] for each in rounds) == figures["accepted"]
    assert 0 < sum(each["drafted"] for each in rounds) <= figures["drafted"]
    assert all(each["round_s"] > 0 and each["resumes"] == 0 for each in rounds)
    assert [each | {"text": ""} for each in joined(plain, "provenance")] == [
        each | {"text": ""} for each in made
    ]
    assert all("text" not in each for each in joined(plain, "provenance"))
    assert joined(plain, "rounds_ended") == []
    ChatCompletion.model_validate(whole)
    told = whole["choices"][0]["tandem"]
    assert told["provenance"] == made
    assert [each["accepted"] for each in told["rounds_ended"]] == [
        each["accepted"] for each in rounds
    ]


@one_loop
async def test_the_model_card_says_what_presets_can(served: HttpSuite) -> None:
    (card,) = (await served.http.get("/v1/models")).json()["data"]
    kinds = card["tandem"]
    assert set(kinds["logprobs"]) == {*PRESETS} - {"picospec-top-k"}
    assert "dragon" in kinds["documents"]
    assert {"picospec-top-k", "dragon-lossy"} <= set(kinds["lossy"]) <= set(kinds["presets"])


async def test_documents_are_taken_where_that_is_set_and_there_is_a_retriever() -> None:
    path, document = "/v1/tandem/documents", {"name": "a.md", "content": "# A"}
    async with http_suite() as suite:
        assert (await suite.post(path, document)).status_code == 404
    async with http_suite(http_documents=True) as suite:
        able = (await suite.http.get("/page/features.json")).json()
        assert able == {"documents": True}
        for wrong in ({"name": "", "content": "x"}, {"name": "a"}, {**document, "more": 1}):
            assert (await suite.post(path, wrong)).status_code == 400
        answer = await suite.post(path, document)
        assert answer.status_code == 503
        assert "no retriever" in answer.json()["error"]["message"]


def test_the_codes_that_the_page_knows_are_those_of_errors() -> None:
    """Of the server's, or of the page's own."""
    gateway = Path(tandem.gateway.__file__).parent
    scripts = "".join(path.read_text() for path in gateway.glob("page/*.mjs"))
    compared = re.compile(r'\bcode === "(\w+)"')
    known = set(compared.findall(scripts))
    assert "upstream_auth_failed" in known
    sources = "".join(path.read_text() for path in gateway.glob("*.py"))
    assert known <= set(re.findall(r'"(\w+)"', sources + compared.sub("", scripts)))
