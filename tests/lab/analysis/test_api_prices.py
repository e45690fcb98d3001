"""Dollars, by hand. The papers' report compares FSD's Table 1 with what it prints."""

import pytest

from lab.analysis.api_prices import (
    RequestLoad,
    TokenPrices,
    autoregressive_cost,
    speculative_cost,
)

LOAD = RequestLoad(requests=1000, input_tokens=100, output_tokens=500)
TARGET = TokenPrices(1.0, 2.0)
DRAFT = TokenPrices(0.1, 0.2)


def test_the_target_alone_bills_every_token() -> None:
    assert autoregressive_cost(TARGET, LOAD) == pytest.approx(0.1 * 1 + 0.5 * 2)


def test_a_round_is_one_output_token_and_drafts_are_input_where_that_is_billed() -> None:
    """200 rounds of four drafts a request."""
    edge = speculative_cost(TARGET, LOAD, tokens_per_round=2.5, draft_length=4)
    assert edge == pytest.approx(0.1 + 0.2 * 2)
    hosted = speculative_cost(TARGET, LOAD, tokens_per_round=2.5, draft_length=4, draft=DRAFT)
    assert hosted - edge == pytest.approx(0.1 * 0.1 + 0.8 * 0.2)
    billed = speculative_cost(
        TARGET, LOAD, tokens_per_round=2.5, draft_length=4, drafts_as_input=True
    )
    assert billed - edge == pytest.approx(0.8 * 1)
