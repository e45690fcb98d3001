"""`prediction`, as OpenAI's API has it: its forms, its counts, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from tests.gateway.http_suite import HttpSuite, asking, chat_body, one_loop
from tests.services.scripted_suite import VOCABULARY

pytestmark = one_loop
ASKED: dict[str, Any] = {"max_tokens": 40, "seed": 11, "tandem": {"preset": "coupled"}}


def spelt(text: str) -> str:
    """A text of which the scripted tokenizer makes the ids that an answer's text tells."""
    ids = [int(each) for each in text.strip("<>").split("><")]
    return "".join(chr(VOCABULARY + token_id) for token_id in ids)


async def test_openai_s_client_sends_it_as_text_or_as_parts(served: HttpSuite) -> None:
    own = await served.openai.chat.completions.create(**asking(**ASKED))
    text = spelt(own.choices[0].message.content or "")
    parts = [{"type": "text", "text": text[:9]}, {"type": "text", "text": text[9:]}]
    for content in (text, parts):
        prediction: Any = {"type": "content", "content": content}
        answer = await served.openai.chat.completions.create(
            **asking(**ASKED, prediction=prediction)
        )
        assert answer.choices[0].message.content == own.choices[0].message.content
        assert answer.usage is not None
        details = answer.usage.completion_tokens_details
        assert details is not None
        assert details.accepted_prediction_tokens is not None
        own_tokens = answer.usage.completion_tokens - details.accepted_prediction_tokens
        assert own_tokens <= 2, "the target adds one after drafts that are all accepted"
        assert details.rejected_prediction_tokens == 0
    assert own.usage is not None
    assert own.usage.completion_tokens_details is not None
    assert own.usage.completion_tokens_details.accepted_prediction_tokens == 0


async def test_every_choice_is_drafted_from_it_and_counted(served: HttpSuite) -> None:
    own = await served.openai.chat.completions.create(**asking(**ASKED))
    text = spelt(own.choices[0].message.content or "")
    prediction: Any = {"type": "content", "content": text}
    stream = await served.openai.chat.completions.create(
        **asking(**ASKED, n=2, prediction=prediction),
        stream=True,
        stream_options={"include_usage": True},
    )
    usage = [chunk async for chunk in stream][-1].usage
    assert usage is not None
    details = usage.completion_tokens_details
    assert details is not None
    assert details.accepted_prediction_tokens is not None
    assert details.rejected_prediction_tokens is not None
    assert details.accepted_prediction_tokens >= 38, "the first choice is as predicted"
    assert details.rejected_prediction_tokens > 0, "the second one is not"


@pytest.mark.parametrize(
    ("prediction", "param"),
    [
        ("text", "prediction"),
        ({"type": "text", "content": "a"}, "prediction.type"),
        ({"type": "content"}, "prediction.content"),
        ({"type": "content", "content": 3}, "prediction.content"),
        ({"type": "content", "content": "a" * 513}, "prediction"),
    ],
)
async def test_what_is_no_prediction_is_refused_by_name(
    served: HttpSuite, prediction: Any, param: str
) -> None:
    answer = await served.post("/v1/chat/completions", chat_body(prediction=prediction))
    assert answer.status_code == 400
    assert answer.json()["error"]["param"].startswith(param)
