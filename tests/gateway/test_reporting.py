"""What an answer tells of drafting, as vLLM does; usage in every chunk; streams that are even."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

import pytest

from tandem.generation.figures import speculative_decoding_metrics
from tandem_api.common.v1.generation_pb2 import Summary
from tests.gateway.http_suite import HttpSuite, chat_body, one_loop

CHAT = "/v1/chat/completions"


async def chunks(served: HttpSuite, path: str, body: dict[str, Any]) -> list[dict[str, Any]]:
    answer = await served.post(path, {**body, "stream": True})
    assert answer.status_code == 200, answer.text
    lines = [line.removeprefix("data: ") for line in answer.text.splitlines() if line]
    assert lines[-1] == "[DONE]"
    return [json.loads(line) for line in lines[:-1]]


def asked(preset: str = "coupled", **more: Any) -> dict[str, Any]:
    tandem = {"preset": preset, **more.pop("tandem", {})}
    return chat_body(max_tokens=40, seed=11, tandem=tandem, **more)


def test_metrics_are_those_of_vllm_s_own_example() -> None:
    summary = Summary(drafted=129, rounds=43, accepted=10, acceptance_histogram=[39, 1, 0, 3])
    found = speculative_decoding_metrics([summary])
    assert found is not None
    assert asdict(found) == {
        "mean_acceptance_length": pytest.approx(1.2325581395348837),
        "draft_acceptance_rate": pytest.approx(0.07751937984496124),
        "acceptance_histogram": [39, 1, 0, 3],
        "num_spec_steps": 43,
        "num_accepted_draft_tokens": 10,
        "num_draft_tokens": 129,
        "num_spec_tokens": 3,
    }
    other = Summary(drafted=8, acceptance_histogram=[1, 1])
    both = speculative_decoding_metrics([summary, other])
    assert both is not None
    assert both.acceptance_histogram == [40, 2, 0, 3]
    assert speculative_decoding_metrics([Summary(rounds=3, drafted=9)]) is None, "it does not tell"


@one_loop
async def test_a_whole_answer_has_them_beside_ours(served: HttpSuite) -> None:
    answer = (await served.post(CHAT, asked(tandem={"draft_length": 3}))).json()
    own = answer["choices"][0]["tandem"]
    told = answer["metrics"]["speculative_decoding"]
    assert told["num_spec_steps"] == own["rounds"] > 0
    assert told["num_accepted_draft_tokens"] == own["accepted"] > 0
    assert told["num_draft_tokens"] == own["drafted"]
    assert told["num_spec_tokens"] == 3, "the draft length that was asked for"
    assert "metrics" not in (await served.post(CHAT, asked("ar"))).json()


@one_loop
@pytest.mark.parametrize("usage", [False, True])
async def test_a_stream_has_them_once_in_its_last_event(served: HttpSuite, usage: bool) -> None:
    # What decides how many tokens are drafted in a round is fixed, so that both take as many.
    fixed = {"no_memory": True, "draft_length": 4}
    whole = (await served.post(CHAT, asked(n=2, tandem=fixed))).json()
    body = asked(n=2, tandem=fixed, stream_options={"include_usage": usage})
    events = await chunks(served, CHAT, body)
    assert [event for event in events if "metrics" in event] == events[-1:]
    assert events[-1]["metrics"] == whole["metrics"]
    assert (events[-1]["choices"] == []) is usage


@one_loop
@pytest.mark.parametrize("path", [CHAT, "/v1/completions"])
async def test_every_chunk_tells_the_usage_so_far_on_request(served: HttpSuite, path: str) -> None:
    body = asked(stream_options={"include_usage": True, "continuous_usage_stats": True})
    if path != CHAT:
        body = {**body, "prompt": "hello"}
        del body["messages"]
    body["tandem"]["provenance"] = True
    events = await chunks(served, path, body)
    counted = 0
    for event in events[:-1]:
        counted += len(event["choices"][0].get("tandem", {}).get("provenance", ()))
        assert event["usage"] == {
            "prompt_tokens": len("hello"),
            "completion_tokens": counted,
            "total_tokens": len("hello") + counted,
        }
    assert events[-1]["usage"]["completion_tokens"] == counted > 0


@one_loop
async def test_an_even_stream_has_a_token_a_chunk_and_the_same_text(served: HttpSuite) -> None:
    whole = (await served.post(CHAT, asked())).json()
    body = asked(tandem={"even_stream": True, "provenance": True})
    events = await chunks(served, CHAT, body)
    choices = [event["choices"][0] for event in events]
    assert (
        "".join(each["delta"].get("content") or "" for each in choices)
        == (whole["choices"][0]["message"]["content"])
    )
    told = [each.get("tandem", {}).get("provenance", []) for each in choices]
    assert max(map(len, told)) == 1
    assert sum(map(len, told)) == whole["usage"]["completion_tokens"]
    assert choices[-1]["finish_reason"] == whole["choices"][0]["finish_reason"]
    assert all("text" not in token for each in told for token in each), "not asked for"
