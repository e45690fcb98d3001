"""The sampling settings of requests that name none: the model's own, unless the operator wants
OpenAI's."""

from __future__ import annotations

from typing import Any

import pytest

from tandem.gateway.catalog import Catalog, ServedPair
from tandem.services.aggregator.config import AggregatorSettings
from tandem.services.aggregator.http import gateway_settings
from tandem_api.common.v1.generation_pb2 import DescribeResponse
from tandem_api.common.v1.sampling_pb2 import DefaultSampling, ModelDescription
from tests.gateway.http_suite import NoTexts


class Describes(NoTexts):
    """A suite whose target recommends something."""

    leaving = False

    def __init__(self, **recommended: Any) -> None:
        self._recommended = recommended

    async def describe(self) -> DescribeResponse:
        target = ModelDescription(
            model_name="m",
            vocabulary_size=64,
            default_sampling=DefaultSampling(**self._recommended),
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
