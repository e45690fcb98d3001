"""From a body to the requests that the suite is asked, and the sampling of those that name none."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest
from pydantic import BaseModel

from tandem.core.default_sampling import DefaultSampling
from tandem.core.probs import SamplingParams
from tandem.core.prompt import Turn
from tandem.gateway.catalog import Catalog, ServedPair
from tandem.gateway.errors import ApiError
from tandem.gateway.ollama import OllamaChatRequest
from tandem.gateway.request_reading import SEED_BITS, RequestLimits, chat_requests, choice_seed
from tandem.gateway.schema import ChatCompletionRequest, CompletionRequest
from tandem.gateway.text_endpoints import TokenizeRequest
from tandem.generation.request import GenerationRequest
from tandem.services.aggregator.config import AggregatorSettings
from tandem.services.aggregator.http import gateway_settings
from tandem_api.common.v1 import sampling_pb2
from tandem_api.common.v1.generation_pb2 import DescribeResponse
from tests.gateway.http_suite import NoTexts, chat_body
from tests.gateway.parsed_body import parse_body

IMAGE = b"\x89PNG and so on"
IMAGE_URL = "data:image/png;base64," + base64.b64encode(IMAGE).decode()


def requests_of(**more: Any) -> list[GenerationRequest]:
    return chat_requests(ChatCompletionRequest.model_validate(chat_body(**more)), RequestLimits())


def test_what_a_body_leaves_out_is_the_model_s_default() -> None:
    defaults = DefaultSampling(temperature=0.6, top_k=20)
    limits = RequestLimits(default_sampling=defaults)
    for more, expected in (
        ({}, SamplingParams(temperature=0.6, top_k=20)),
        ({"temperature": 1.0}, SamplingParams(top_k=20)),
        ({"temperature": None, "top_k": -1}, SamplingParams(temperature=0.6)),
        ({"tandem": {"top_k": 0}}, SamplingParams(temperature=0.6)),
        ({"tandem": {"top_k": 3}, "top_p": 0.5}, SamplingParams(0.6, top_k=3, top_p=0.5)),
    ):
        body = ChatCompletionRequest.model_validate(chat_body(**more))
        (request,) = chat_requests(body, limits)
        assert request.params.sampling == expected, more


def image(url: str) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": url}}


def test_single_choices_of_the_preset_can_be_set() -> None:
    (request,) = requests_of(
        tandem={"preset": "dssd", "draft_length": 7, "overrides": ["payload_top=9"]}
    )
    preset = request.composed_preset()
    assert (preset.schedule.chunk, preset.payload_top) == (7, 9)


def test_choices_have_seeds_of_their_own_and_the_first_has_the_caller_s() -> None:
    seeds = [request.params.seed for request in requests_of(seed=5, n=8)]
    assert seeds[0] == 5
    assert len(set(seeds)) == 8
    assert all(seed < 2**SEED_BITS for seed in seeds)
    assert seeds == [choice_seed(5, index) for index in range(8)]
    assert seeds[:3] == [request.params.seed for request in requests_of(seed=5, n=3)]


def test_parts_of_text_are_joined_and_images_are_read() -> None:
    parts = [{"type": "text", "text": "what "}, image(IMAGE_URL), {"type": "text", "text": "is it"}]
    (request,) = requests_of(messages=[{"role": "user", "content": parts}])
    assert request.prompt == (Turn("user", "what is it"),)
    assert request.params.images == (IMAGE,)


@pytest.mark.parametrize(
    "messages",
    [
        [{"role": "user", "content": [image("https://example.com/cat.png")]}],
        [{"role": "user", "content": [image("data:image/png;base64,%%%")]}],
        [{"role": "user", "content": [image("file:///etc/passwd")]}],
        [{"role": "assistant", "content": [image(IMAGE_URL)]}],
        [{"role": "user", "content": [image(IMAGE_URL)]}, {"role": "user", "content": "and now"}],
    ],
)
def test_images_that_cannot_be_shown_are_refused(messages: list[Any]) -> None:
    with pytest.raises(ApiError) as refused:
        requests_of(messages=messages)
    assert refused.value.status == 400


@pytest.mark.parametrize(
    ("kind", "body", "param"),
    [
        (CompletionRequest, {"prompt": "a", "echo": True, "max_tokens": False}, "max_tokens"),
        (CompletionRequest, {"prompt": "a", "echo": True, "max_tokens": 0.0}, "max_tokens"),
        (CompletionRequest, {"prompt": "a", "n_predict": -1.0}, "n_predict"),
        (TokenizeRequest, {"prompt": "a", "add_special_tokens": 1}, "add_special_tokens"),
        (OllamaChatRequest, {"options": {"mirostat": False}}, "options.mirostat"),
        (
            ChatCompletionRequest,
            {"messages": [{"role": "user", "content": "a", "prefix": 0}]},
            "messages.0.prefix",
        ),
    ],
)
def test_what_python_takes_for_equal_is_not_the_same(
    kind: type[BaseModel], body: dict[str, Any], param: str
) -> None:
    with pytest.raises(ApiError) as refused:
        parse_body(json.dumps({"model": "m", **body}).encode(), kind, 512)
    assert (refused.value.status, refused.value.param) == (400, param)


class Describes(NoTexts):
    """A suite whose target recommends something."""

    leaving = False

    def __init__(self, **recommended: Any) -> None:
        self._recommended = recommended

    async def describe(self) -> DescribeResponse:
        target = sampling_pb2.ModelDescription(
            model_name="m",
            vocabulary_size=64,
            default_sampling=sampling_pb2.DefaultSampling(**self._recommended),
        )
        return DescribeResponse(target=target)


@pytest.mark.parametrize(
    ("wanted", "named"),
    [("auto", {"temperature": 0.7, "top_k": 0}), ("none", {})],
)
async def test_the_operator_chooses_whose_defaults_count(
    wanted: str, named: dict[str, float]
) -> None:
    settings = gateway_settings(AggregatorSettings(insecure=True, generation_config=wanted))  # type: ignore[arg-type]
    suite: Any = Describes(temperature=0.7, top_k=0)
    catalog = Catalog(suite, model_defaults=settings.model_defaults)
    (card,) = await catalog.cards()
    assert isinstance(card.tandem, ServedPair)
    assert card.tandem.default_sampling == catalog.default_sampling.named == named


async def test_what_a_cloud_cannot_mean_is_passed_over() -> None:
    suite: Any = Describes(temperature=-1.0, top_p=float("nan"), top_k=2**31, repetition_penalty=0)
    catalog = Catalog(suite)
    assert not catalog.default_sampling.named  # nothing was heard yet
    await catalog.reach()
    assert catalog.default_sampling.named == {"top_k": 64}
