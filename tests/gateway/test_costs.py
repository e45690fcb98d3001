"""What a body may cost before it is admitted: work is counted, since machines differ."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from tandem.gateway.body_parsing import MAX_VALUES
from tandem.gateway.errors import ApiError
from tandem.gateway.request_reading import RequestLimits, completion_requests
from tandem.gateway.schema import ChatCompletionRequest, CommonParameters, CompletionRequest
from tandem.generation.request import GenerationRequest
from tests.gateway.http_suite import MODEL, chat_body, http_suite
from tests.gateway.parsed_body import parse_body
from tests.services.scripted_suite import CONTEXT

BODY_BYTES = 2 * 2**20
CPU_S = 1.0
TRIES = 3
"""Of one 2 MiB body, on any machine; they take some 0.06 s, and took up to 10 s. On processors that
others share, the shortest of a few tries."""
READY_S = 60.0


def hostile_bodies() -> Iterator[tuple[str, type[CommonParameters], bytes]]:
    """As large as a body may be, and full of what is dear to check or to refuse."""
    for name, kind, head, item in (
        ("ids", CompletionRequest, '"n":8,"prompt":[%s]', "1"),
        ("long ids", CompletionRequest, '"n":8,"prompt":[%s]', "12345"),
        ("ids and no id", CompletionRequest, '"n":8,"prompt":[%s,true]', "1"),
        ("fractions", CompletionRequest, '"prompt":[%s]', "1.5"),
        ("lists of ids", CompletionRequest, '"prompt":[%s]', "[1,1]"),
        ("empty lists", CompletionRequest, '"prompt":[%s]', "[]"),
        ("texts", CompletionRequest, '"prompt":[%s]', '"x"'),
        ("no messages", ChatCompletionRequest, '"messages":[%s]', '"x"'),
        ("messages", ChatCompletionRequest, '"messages":[%s]', '{"role":"user","content":"x"}'),
        ("stops", ChatCompletionRequest, '"messages":[],"stop":[%s]', "1"),
        ("overrides", ChatCompletionRequest, '"messages":[],"tandem":{"overrides":[%s]}', "1"),
        ("metadata", ChatCompletionRequest, '"messages":[],"metadata":[%s]', "1"),
        (
            "parts",
            ChatCompletionRequest,
            '"messages":[{"role":"user","content":[%s]}]',
            '{"type":"text","text":""}',
        ),
    ):
        items = (BODY_BYTES - 200) // (len(item) + 1)
        yield name, kind, ('{"model":"m",' + head % ",".join([item] * items) + "}").encode()
    unknown = ",".join(f'"k{index}":1' for index in range(BODY_BYTES // 13)).join("{}")
    yield "unknown", ChatCompletionRequest, unknown.encode()
    inner = f'{{"model":"m","messages":[],"tandem":{unknown}}}'
    yield "unknown in tandem", ChatCompletionRequest, inner.encode()


@pytest.mark.parametrize(
    ("kind", "raw"), [pytest.param(kind, raw, id=name) for name, kind, raw in hostile_bodies()]
)
def test_no_body_costs_much(
    kind: type[CommonParameters], raw: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    noted = list[int]()

    def count(details: Sequence[Any]) -> ApiError:
        noted.append(len(details))
        return ApiError(400, "bad")

    monkeypatch.setattr("tests.gateway.parsed_body.validation_error", count)
    assert len(raw) <= BODY_BYTES
    for _ in range(TRIES):
        noted.clear()
        began_s = time.thread_time()  # what other threads of this process do is not its cost
        with pytest.raises(ApiError) as refused:
            parse_body(raw, kind, 2**17)
        took_s = time.thread_time() - began_s
        assert refused.value.status in (400, 413)
        assert sum(noted) <= MAX_VALUES
        if took_s < CPU_S:
            break
    assert took_s < CPU_S


@pytest.mark.parametrize("prompts", [1, 2])
def test_choices_are_checked_once_and_share_their_prompt(
    prompts: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    checked = 0
    check = GenerationRequest.validate

    def validate(self: GenerationRequest, rag: bool = False) -> None:
        nonlocal checked
        checked += 1
        check(self, rag)

    monkeypatch.setattr(GenerationRequest, "validate", validate)
    body = {"model": "m", "prompt": [[1, 2, 3]] * prompts, "n": 4, "seed": 1}
    asking = parse_body(json.dumps(body).encode(), CompletionRequest, 8)
    requests = completion_requests(asking, RequestLimits())
    assert len(requests) == 4 * prompts
    assert len({id(request.prompt) for request in requests}) == prompts
    assert checked == 1


@pytest.mark.parametrize(
    ("prompt", "fits"),
    [([1] * 8, True), ([1] * 9, False), ([[1] * 8, [1]], True), ([[1], [1] * 9], False)],
)
def test_ids_are_counted_before_they_are_looked_at(prompt: list[Any], fits: bool) -> None:
    raw = json.dumps({"model": "m", "prompt": prompt}).encode()
    if fits:
        several = prompt if isinstance(prompt[0], list) else [prompt]
        assert parse_body(raw, CompletionRequest, 8).prompt == [*map(tuple, several)]
        return
    with pytest.raises(ApiError, match="prompt: 9 tokens; the context holds 8"):
        parse_body(raw, CompletionRequest, 8)


def test_a_long_conversation_is_no_fault() -> None:
    messages = [{"role": "user", "content": "{[x]}" * 9}] * 5_000
    assert (
        len(
            parse_body(
                json.dumps({**chat_body(), "messages": messages}).encode(), ChatCompletionRequest, 8
            ).messages
        )
        == 5_000
    )


async def test_the_suite_s_context_bounds_a_prompt_and_others_are_answered_meanwhile() -> None:
    async with http_suite() as served:
        async with asyncio.timeout(READY_S):
            while (await served.http.get("/readyz")).status_code != 200:
                await asyncio.sleep(0.02)
        body = {"model": MODEL, "prompt": [1] * (BODY_BYTES // 3), "n": 8}
        asked = asyncio.create_task(served.post("/v1/completions", body))
        assert (await served.http.get("/healthz")).status_code == 200
        answer = await asked
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "prompt"
    assert f"the context holds {CONTEXT}" in answer.json()["error"]["message"]
