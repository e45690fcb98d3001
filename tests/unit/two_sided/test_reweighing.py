"""Estimating relevances anew: which presets can."""

from dataclasses import replace

import pytest

from tandem.core.errors import InvalidArgument
from tandem.two_sided.protocol.presets import (
    AGGREGATION_PRESETS,
    MAX_REWEIGH_EVERY,
    AggregationMode,
    DocumentContext,
)


@pytest.mark.parametrize("name", list(AGGREGATION_PRESETS))
def test_only_one_coin_for_all_cannot_follow_weights_that_change(name: str) -> None:
    separate = DocumentContext.SEPARATE
    preset = replace(AGGREGATION_PRESETS[name], reweigh_every=4, context=separate)
    if preset.mode is not AggregationMode.ANSWER_COIN:
        preset.validate()
    else:
        with pytest.raises(InvalidArgument, match="reweigh_every: one coin"):
            preset.validate()


def test_joined_documents_have_no_weights() -> None:
    with pytest.raises(InvalidArgument, match="reweigh_every: joined"):
        replace(AGGREGATION_PRESETS["drcg-text"], reweigh_every=4).validate()
    with pytest.raises(InvalidArgument, match="context: only one side"):
        replace(AGGREGATION_PRESETS["dragon"], context=DocumentContext.JOINED).validate()


@pytest.mark.parametrize("every", [-1, MAX_REWEIGH_EVERY + 1])
def test_its_bounds(every: int) -> None:
    with pytest.raises(InvalidArgument, match="reweigh_every: must be 0…4096"):
        replace(AGGREGATION_PRESETS["dragon"], reweigh_every=every).validate()
