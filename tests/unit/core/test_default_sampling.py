"""What is taken from a model's generation_config, and what is passed over."""

from __future__ import annotations

from typing import Any

import pytest

from tandem.core.default_sampling import (
    NO_DEFAULTS,
    DefaultSampling,
)

VOCABULARY = 100


def test_the_settings_of_a_model_are_taken() -> None:
    config = {"temperature": 0.6, "top_p": 0.95, "top_k": 20, "repetition_penalty": 1.05}
    taken = DefaultSampling.from_config({**config, "do_sample": True, "max_length": 9}, VOCABULARY)
    assert taken.named == config


@pytest.mark.parametrize(
    "config",
    [
        {},
        {"temperature": None, "top_p": None, "top_k": None},
        {"temperature": -1, "top_p": 0, "repetition_penalty": 0},
        {"temperature": float("nan"), "top_p": 1.5, "repetition_penalty": 11},
        {"temperature": "0.5", "top_p": [0.5], "top_k": 2.5, "repetition_penalty": True},
    ],
)
def test_what_no_request_could_have_is_left_out(config: dict[str, Any]) -> None:
    assert DefaultSampling.from_config(config, VOCABULARY) == NO_DEFAULTS
    assert not NO_DEFAULTS.named


@pytest.mark.parametrize(("top_k", "taken"), [(0, 0), (-1, 0), (50, 50), (1000, VOCABULARY)])
def test_a_cut_fits_the_vocabulary(top_k: int, taken: int) -> None:
    assert DefaultSampling.from_config({"top_k": top_k}, VOCABULARY).named == {"top_k": taken}
