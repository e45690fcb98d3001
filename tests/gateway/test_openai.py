"""OpenAI's own client against a running suite: what it asks for, and what it leaves behind."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import openai
import pytest

from tandem.core.probs import SamplingParams
from tandem.core.prompt import Turn
from tandem.generation.request import GenerationRequest
from tandem.specdec.messages import GenerationParams
from tandem.specdec.presets import PRESETS
from tests.gateway.http_suite import MODEL, HttpSuite, asking, chat_body, one_loop
from tests.services.scripted_suite import summary_of, until

pytestmark = one_loop


async def streamed(served: HttpSuite, **arguments: Any) -> tuple[str, Any, list[Any]]:
    """Text of choice 0, its finish reason, all chunks."""
    stream = await served.openai.chat.completions.create(**asking(**arguments), stream=True)
    chunks = [chunk async for chunk in stream]
    choices = [chunk.choices[0] for chunk in chunks if chunk.choices]
    text = "".join(choice.delta.content or "" for choice in choices)
    return text, choices[-1].finish_reason, chunks


async def test_a_chat_is_what_the_suite_answers_for_that_seed(served: HttpSuite) -> None:
    request = GenerationRequest(
        (Turn("system", "be brief"), Turn("user", "hello")),
        params=GenerationParams(sampling=SamplingParams(0.7, 0, 0.9), max_tokens=24, seed=5),
    )
    expected = await served.suite.client.generate(request)
    body = asking(max_tokens=24, temperature=0.7, top_p=0.9, seed=5)
    body["messages"] = [{"role": "developer", "content": "be brief"}, *body["messages"]]
    answer = await served.openai.chat.completions.create(**body)
    (choice,) = answer.choices
    assert answer.object == "chat.completion"
    assert choice.message.role == "assistant"
    assert choice.message.content == expected.text
    assert choice.finish_reason == summary_of(expected).finish_reason
    assert answer.usage is not None
    assert answer.usage.prompt_tokens == len("be briefhello")
    assert answer.usage.completion_tokens == len(expected.token_ids)
    assert answer.usage.total_tokens == len("be briefhello") + len(expected.token_ids)


async def test_a_completion_takes_text_and_ids_alike(served: HttpSuite) -> None:
    expected = await served.suite.client.generate(
        GenerationRequest("abc", params=GenerationParams(max_tokens=16, seed=9))
    )
    ids = [ord(letter) % 64 for letter in "abc"]
    for prompt in ("abc", ids):
        answer = await served.openai.completions.create(
            model=MODEL, prompt=prompt, max_tokens=16, seed=9
        )
        assert answer.object == "text_completion"
        assert answer.choices[0].text == expected.text


async def test_several_prompts_and_choices_stand_in_order(served: HttpSuite) -> None:
    common: dict[str, Any] = {"model": MODEL, "max_tokens": 8, "seed": 4}
    answer = await served.openai.completions.create(prompt=["ab", "cd"], n=2, **common)
    assert [choice.index for choice in answer.choices] == [0, 1, 2, 3]
    alone = [await served.openai.completions.create(prompt=p, n=2, **common) for p in ("ab", "cd")]
    texts = [choice.text for one in alone for choice in one.choices]
    assert [choice.text for choice in answer.choices] == texts
    assert len(set(texts)) == 4
    single = await served.openai.completions.create(prompt="ab", **common)
    assert single.choices[0].text == texts[0]
    assert answer.usage is not None
    assert answer.usage.prompt_tokens == 4
    assert answer.usage.completion_tokens == sum(text.count("<") for text in texts)


async def test_a_stream_joined_is_the_whole_answer(served: HttpSuite) -> None:
    arguments: dict[str, Any] = {"max_tokens": 40, "seed": 11, "tandem": {"provenance": True}}
    whole = await served.openai.chat.completions.create(**asking(**arguments))
    text, reason, chunks = await streamed(
        served, **arguments, stream_options={"include_usage": True}
    )
    assert text == whole.choices[0].message.content
    assert reason == whole.choices[0].finish_reason
    assert chunks[0].choices[0].delta.role == "assistant"
    assert {chunk.id for chunk in chunks} == {chunks[0].id}
    assert chunks[-1].choices == []
    assert chunks[-1].usage == whole.usage
    assert all(chunk.usage is None for chunk in chunks[:-1])
    parts = [chunk.choices[0].tandem for chunk in chunks if chunk.choices and tandem_of(chunk)]
    tokens = [token for part in parts for token in part.get("provenance", [])]
    assert [t["id"] for t in tokens] == [t["id"] for t in whole.choices[0].tandem["provenance"]]
    assert parts[-1]["seed"] == 11


def tandem_of(chunk: Any) -> Any:
    return getattr(chunk.choices[0], "tandem", None)


async def test_the_bare_stream_ends_with_done(served: HttpSuite) -> None:
    answer = await served.post("/v1/chat/completions", chat_body(stream=True, max_tokens=4))
    assert answer.headers["content-type"].startswith("text/event-stream")
    events = answer.text.split("\n\n")
    assert events[-1] == ""
    assert events[-2] == "data: [DONE]"
    for event in events[:-2]:
        assert json.loads(event.removeprefix("data: "))["object"] == "chat.completion.chunk"


async def test_a_seed_gives_its_text_again_also_one_that_was_made_up(served: HttpSuite) -> None:
    texts = {
        seed: (await streamed(served, max_tokens=16, seed=seed))[0] for seed in (1, 2, 2**64 - 1)
    }
    assert len(set(texts.values())) == 3
    assert (await streamed(served, max_tokens=16, seed=1))[0] == texts[1]
    first, second = [
        (await served.openai.chat.completions.create(**asking(max_tokens=16))).choices[0]
        for _ in range(2)
    ]
    assert first.message.content != second.message.content
    assert first.tandem["seed"] < 2**53
    again = await streamed(served, max_tokens=16, seed=first.tandem["seed"])
    assert again[0] == first.message.content


@pytest.mark.parametrize("preset", PRESETS)
async def test_every_preset_answers_and_says_who_made_each_token(
    served: HttpSuite, preset: str
) -> None:
    arguments = asking(
        max_tokens=20, temperature=0, seed=3, tandem={"preset": preset, "provenance": True}
    )
    answer = await served.openai.chat.completions.create(**arguments)
    figures = answer.choices[0].tandem
    token_sources = [token["source"] for token in figures["provenance"]]
    assert figures["preset"] == preset
    assert len(token_sources) == figures["tokens"]
    makers = {
        "target": True,
        "draft": PRESETS[preset].drafts,
        "cloud_draft": PRESETS[preset].may_draft_in_cloud,
    }
    assert set(token_sources) <= {maker for maker, drafts in makers.items() if drafts}
    if PRESETS[preset].drafts and not PRESETS[preset].schedule.decode_when_idle:
        assert token_sources.count("draft") == figures["accepted"]


async def test_logprobs_are_those_that_the_suite_tells(served: HttpSuite) -> None:
    turns = (Turn("user", "hello"),)
    expected = await served.suite.client.generate(
        GenerationRequest(turns, params=GenerationParams(max_tokens=12, seed=6, logprobs=True))
    )
    arguments: dict[str, Any] = {"max_tokens": 12, "seed": 6, "logprobs": True}
    whole = await served.openai.chat.completions.create(**asking(**arguments, n=2))
    _, _, chunks = await streamed(served, **arguments)
    told = whole.choices[0].logprobs
    assert told is not None
    assert told.content is not None
    assert [token.logprob for token in told.content] == expected.logprobs
    assert "".join(token.token for token in told.content) == expected.text
    parts = [c.choices[0].logprobs for c in chunks if c.choices[0].logprobs is not None]
    assert [token for part in parts for token in part.content] == told.content
    assert whole.choices[1].logprobs != told

    answer = await served.openai.completions.create(
        model=MODEL, prompt="hello", max_tokens=12, seed=6, logprobs=0
    )
    told_text = answer.choices[0].logprobs
    assert told_text is not None
    assert told_text.token_logprobs == expected.logprobs
    assert told_text.tokens == expected.token_texts
    assert told_text.text_offset is not None
    for text, offset in zip(expected.token_texts, told_text.text_offset, strict=True):
        assert answer.choices[0].text[offset:].startswith(text)


async def test_models_are_listed_and_found(served: HttpSuite) -> None:
    models = [model async for model in served.openai.models.list()]
    assert [model.id for model in models] == [MODEL]
    assert (await served.openai.models.retrieve(MODEL)).id == MODEL
    with pytest.raises(openai.NotFoundError) as refused:
        await served.openai.models.retrieve("gpt-4")
    assert refused.value.code == "model_not_found"


async def test_thirty_two_streams_at_once_keep_their_text(served: HttpSuite) -> None:
    seeds = range(32)
    requests = [
        GenerationRequest(
            (Turn("user", "hello"),), params=GenerationParams(max_tokens=8, seed=seed)
        )
        for seed in seeds
    ]
    alone = [(await served.suite.client.generate(request)).text for request in requests]
    together = await asyncio.gather(*(streamed(served, max_tokens=8, seed=seed) for seed in seeds))
    assert [text for text, _, _ in together] == alone
    await served.suite.idle()


async def test_a_stream_that_is_left_frees_both_sides(served: HttpSuite) -> None:
    arguments = asking(max_tokens=400, tandem={"overrides": [], "preset": "ar"})
    async with await served.openai.chat.completions.create(**arguments, stream=True) as stream:
        async for _ in stream:
            break
    await served.suite.idle()


async def test_an_answer_that_is_not_waited_for_frees_both_sides(served: HttpSuite) -> None:
    asked = asyncio.create_task(
        served.openai.chat.completions.create(**asking(max_tokens=400, n=4))
    )
    await until(lambda: served.suite.front.open_requests)
    asked.cancel()
    await asyncio.gather(asked, return_exceptions=True)
    await until(lambda: not served.suite.front.open_requests)
    await served.suite.idle()


async def test_errors_are_the_client_s_own_exceptions(served: HttpSuite) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        await served.openai.chat.completions.create(**asking(temperature=-1))
    assert refused.value.param == "temperature"
    with pytest.raises(openai.NotFoundError):
        await served.openai.chat.completions.create(**{**asking(), "model": "gpt-4"})
    with pytest.raises(openai.BadRequestError) as unknown:
        await served.openai.chat.completions.create(**asking(tandem={"preset": "fastest"}))
    assert unknown.value.param == "tandem.preset"
    with pytest.raises(openai.BadRequestError) as none_known:
        await served.openai.chat.completions.create(
            **asking(logprobs=True, tandem={"preset": "picospec-top-k"})
        )
    assert none_known.value.param == "logprobs"
    assert "picospec-top-k" in str(none_known.value)
    with pytest.raises(openai.BadRequestError) as others:
        await served.openai.chat.completions.create(**asking(logprobs=True, top_logprobs=21))
    assert others.value.param == "top_logprobs"
