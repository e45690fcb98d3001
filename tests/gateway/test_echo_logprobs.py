"""Completions that begin with their prompt and say how likely it was, as programs that rate texts
ask for them; and the bytes of tokens."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tandem.core.errors import FailedPrecondition
from tandem.gateway.openai_answer import OpenAIWriter
from tandem.gateway.parallel_choices import ChoiceDelta
from tandem.generation.client import Generated
from tandem.generation.request import GenerationRequest
from tandem.testing.scripted import scripted_probs
from tandem_api.common.v1 import generation_pb2 as pb
from tests.gateway.http_suite import MODEL, HttpSuite, asking, one_loop
from tests.services.scripted_suite import VOCABULARY

pytestmark = one_loop

PROBS = scripted_probs(1, VOCABULARY, sharpness=9.0)
"""The scripted target's."""
TEXT = "tell me"
IDS = [ord(letter) % VOCABULARY for letter in TEXT]
OTHER = [9, 8, 7, 6]


def logprobs_of(token_ids: list[int]) -> list[float]:
    """Of the tokens from the second on."""
    return [
        float(np.log(PROBS(tuple(token_ids[:place]))[token_ids[place]]))
        for place in range(1, len(token_ids))
    ]


async def completed(served: HttpSuite, prompt: Any, **more: Any) -> Any:
    body = {"max_tokens": 1, "temperature": 0, "logprobs": 1, "echo": True, "seed": 5, **more}
    body["extra_body"] = {"ignore_eos": True, **body.get("extra_body", {})}
    return await served.openai.completions.create(model=MODEL, prompt=prompt, **body)


def check_prompt(choice: Any, token_ids: list[int], answer: int) -> None:
    """The choice begins with the prompt, and has so many tokens more."""
    told = choice.logprobs
    texts = [f"<{token}>" for token in token_ids]
    assert told.tokens[: len(token_ids)] == texts
    assert len(told.tokens) == len(token_ids) + answer
    assert told.token_logprobs[0] is None
    found = told.token_logprobs[1 : len(token_ids)]
    assert found == pytest.approx(logprobs_of(token_ids), abs=1e-5)
    assert told.top_logprobs[0] is None
    for place in range(1, len(token_ids)):
        (best,) = told.top_logprobs[place].items()
        row = np.log(PROBS(tuple(token_ids[:place])))
        assert best[0] == f"<{int(np.argmax(row))}>"
        assert best[1] == pytest.approx(float(row.max()), abs=1e-5)
        # What lm-eval takes for "the likeliest token".
        assert (told.token_logprobs[place] == best[1]) == (int(np.argmax(row)) == token_ids[place])
    joined = [len("".join(told.tokens[:place])) for place in range(len(told.tokens))]
    assert told.text_offset == joined


@pytest.mark.parametrize("answer", [0, 1, 3])
async def test_a_prompt_as_text_as_ids_and_in_batches(served: HttpSuite, answer: int) -> None:
    spelt = "".join(f"<{token}>" for token in IDS)
    for prompt, echoed in ((TEXT, TEXT), (IDS, spelt), ([IDS], spelt)):
        whole = await completed(served, prompt, max_tokens=answer)
        (choice,) = whole.choices
        check_prompt(choice, IDS, answer)
        assert choice.text == echoed + "".join(choice.logprobs.tokens[len(IDS) :])
        assert choice.finish_reason == "length"
        silent = await completed(served, prompt, max_tokens=answer, logprobs=None)
        assert silent.choices[0].text == choice.text
        assert (whole.usage.prompt_tokens, whole.usage.completion_tokens) == (len(IDS), answer)
    batch = await completed(served, [IDS, OTHER, IDS], max_tokens=answer, n=2)
    assert [choice.index for choice in batch.choices] == [*range(6)]
    for choice, ids in zip(batch.choices, [IDS, IDS, OTHER, OTHER, IDS, IDS], strict=True):
        check_prompt(choice, ids, answer)


@pytest.mark.parametrize("prompt", [TEXT, IDS, [IDS, OTHER]])
@pytest.mark.parametrize("answer", [0, 3])
async def test_the_chunks_of_a_stream_are_the_whole(
    served: HttpSuite, prompt: Any, answer: int
) -> None:
    whole = await completed(served, prompt, max_tokens=answer)
    stream = await completed(
        served, prompt, max_tokens=answer, stream=True, stream_options={"include_usage": True}
    )
    chunks = [chunk async for chunk in stream]
    assert chunks[-1].usage == whole.usage
    for choice in whole.choices:
        parts = [part for chunk in chunks for part in chunk.choices if part.index == choice.index]
        assert "".join(part.text for part in parts) == choice.text
        told = [part.logprobs for part in parts if part.logprobs is not None]
        for name in ("tokens", "token_logprobs", "top_logprobs", "text_offset"):
            joined = [each for one in told for each in getattr(one, name)]
            assert joined == getattr(choice.logprobs, name), name
        assert parts[-1].finish_reason == choice.finish_reason


async def test_the_draft_model_has_no_part_in_it_unless_asked_for(served: HttpSuite) -> None:
    def preset_of(whole: Any) -> str:
        return str(whole.choices[0].tandem["preset"])

    assert preset_of(await completed(served, IDS)) == "ar"
    assert preset_of(await completed(served, IDS, max_tokens=2)) == "auto"
    asked = {"tandem": {"preset": "coupled"}}
    chosen = await completed(served, IDS, extra_body=asked)
    assert preset_of(chosen) == "coupled"
    check_prompt(chosen.choices[0], IDS, 1)


async def test_what_an_answer_without_tokens_needs(served: HttpSuite) -> None:
    for body, param in (
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": 0, "echo": False, "logprobs": 1}, "max_tokens"),
        ({"echo": True, "truncate": "oldest"}, "echo"),
        ({"echo": True, "logprobs": 21}, "logprobs"),
    ):
        answer = await served.post("/v1/completions", {"model": MODEL, "prompt": "a", **body})
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, param), body
    silent = await served.openai.completions.create(
        model=MODEL, prompt=TEXT, max_tokens=0, echo=True
    )
    assert (silent.choices[0].text, silent.choices[0].logprobs) == (TEXT, None)


async def test_up_to_twenty_likeliest_tokens(served: HttpSuite) -> None:
    chat = await served.openai.chat.completions.create(
        **asking(max_tokens=3, seed=2, logprobs=True, top_logprobs=20)
    )
    told = chat.choices[0].logprobs
    assert told is not None
    assert told.content is not None
    assert [len(token.top_logprobs) for token in told.content] == [20] * 3
    whole = await completed(served, IDS, logprobs=20)
    assert len(whole.choices[0].logprobs.top_logprobs[1]) == 20


EMOJI = "👍🏽"
PARTS = [b"\xf0\x9f", b"\x91\x8d\xf0\x9f\x8f", b"\xbd"]


def spelt_answer() -> Generated:
    """Three tokens for two characters; the likeliest other token is half a character too."""
    answer = Generated()
    answer.begin(pb.Started(session="1", preset="ar", prompt_tokens=1, max_tokens=3))
    committed = pb.Committed(
        token_ids=[1, 2, 3],
        text=EMOJI,
        logprobs=[-1.0, -2.0, -3.0],
        token_texts=["", "", EMOJI],
        token_bytes=PARTS,
    )
    for part in PARTS:
        committed.top_logprobs.add(
            token_ids=[4, 5],
            logprobs=[-0.5, -1.0],
            texts=["", "é"],
            token_bytes=[part[:1], b"\xa9"],
        )
    answer.take(committed, 0.5)
    answer.end(pb.Summary(finish_reason="length", prompt_tokens=1, tokens=3), 1.0)
    return answer


def written(answer: Generated, *, chat: bool, **more: Any) -> Any:
    writer = OpenAIWriter(chat, "m", "fp", [GenerationRequest("a")], **more)
    last = ChoiceDelta(0, "", (), len(answer.token_ids), answer, ended=True)
    return writer.whole([last]).model_dump()["choices"][0]["logprobs"]


async def test_bytes_are_the_tokens_own_and_make_up_the_text() -> None:
    content = written(spelt_answer(), chat=True)["content"]
    assert [bytes(token["bytes"]) for token in content] == PARTS
    assert b"".join(bytes(token["bytes"]) for token in content).decode() == EMOJI
    others = [[bytes(each["bytes"]) for each in token["top_logprobs"]] for token in content]
    assert others == [[part[:1], b"\xa9"] for part in PARTS]


async def test_a_service_that_tells_no_bytes_leaves_those_of_the_text() -> None:
    answer = spelt_answer()
    answer.token_bytes.clear()
    answer.top_bytes[:] = [()] * 3
    content = written(answer, chat=True)["content"]
    assert [bytes(token["bytes"]) for token in content] == [b"", b"", EMOJI.encode()]
    assert bytes(content[0]["top_logprobs"][1]["bytes"]) == "é".encode()


async def test_a_service_that_tells_nothing_of_the_prompt_is_no_answer() -> None:
    with pytest.raises(FailedPrecondition, match="log-probabilities of prompts"):
        written(spelt_answer(), chat=False, echoes=["a"], reads_prompt=True)
