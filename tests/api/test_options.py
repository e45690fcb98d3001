"""Options as requests, presets of one's own, and how bad ones are refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tandem
from tandem.api.options import (
    DEFAULTS,
    GenerationOptions,
    conversation,
    given_options,
    request_of,
)
from tandem.core.prompt import Turn
from tandem.specdec.presets import PRESETS
from tandem.two_sided.protocol.presets import AGGREGATION_PRESETS


def test_options_become_a_request() -> None:
    options: GenerationOptions = {
        "preset": "dssd",
        "max_tokens": 7,
        "temperature": 0.5,
        "top_k": 9,
        "seed": 4,
        "stop": "\n",
        "overrides": {"window": 6, "chunk": 6, "bonus": False},
        "lost_cloud": "edge",
    }
    request = request_of([{"role": "user", "content": "hi"}], options)
    assert request.prompt == (Turn("user", "hi"),)
    assert (request.stop, request.params.seed, request.params.max_tokens) == (("\n",), 4, 7)
    assert request.overrides == (
        "window=6",
        "chunk=6",
        "bonus=False",
    )
    assert request.composed_preset().schedule.window == 6


@pytest.mark.parametrize("name", [*PRESETS, *AGGREGATION_PRESETS])
def test_rag_chooses_its_default_and_refuses_presets_without_documents(name: str) -> None:
    assert request_of("x", {"rag": True}).preset == "dragon-coupled"
    if name in AGGREGATION_PRESETS:
        assert request_of("x", {"rag": True, "preset": name}).preset == name
        return
    with pytest.raises(tandem.InvalidArgument, match=r"^rag: .* has no documents"):
        request_of("x", {"rag": True, "preset": name})


@pytest.mark.parametrize(
    ("base", "choices", "words"),
    [
        ("nothing", {}, "preset: unknown: 'nothing'; known: ar, "),
        ("coupled", {"window": [8]}, "overrides: must be of type Mapping[str, bool | int | "),
        ("coupled", {"nothing": 1}, "overrides: unknown: 'nothing'; known: draft_length, "),
        ("coupled", {"uplink": "smoke"}, "overrides: uplink must be full_distributions, "),
        ("coupled", {"rejection_payload": "top_k"}, "rejection_payload: "),
    ],
)
def test_a_bad_preset_is_refused_when_it_is_made(
    base: str, choices: dict[str, Any], words: str
) -> None:
    with pytest.raises(tandem.InvalidArgument) as refused:
        tandem.preset(base, **choices)
    assert str(refused.value).startswith(words)


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"temperature": -1.0}, "temperature"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": 2**32}, "max_tokens"),
        ({"seed": -1}, "seed"),
        ({"preset": "nothing"}, "preset"),
        ({"lost_cloud": "hope"}, "lost_cloud"),
        ({"query": "x"}, "query"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"stop": ["x"] * 17}, "stop"),
    ],
)
def test_a_bad_option_is_named(options: GenerationOptions, field: str) -> None:
    with pytest.raises(tandem.InvalidArgument) as refused:
        request_of("x", options)
    assert refused.value.field == field


@pytest.mark.parametrize(
    ("option", "value", "hint"),
    [
        ("max_tokens", "many", "int, is 'many'"),
        ("max_tokens", 7.5, "int, is 7.5"),
        ("temperature", "hot", "float, is 'hot'"),
        ("rag", "perhaps", "bool, is 'perhaps'"),
        ("stop", 3, "str | Sequence[str], is 3"),
        ("stop", [3], "str | Sequence[str], is [3]"),
        ("stop_token_ids", 5, "Sequence[int], is 5"),
        ("logit_bias", [(1, 2.0)], "Mapping[int, float], is [(1, 2.0)]"),
        ("preset", 3, "str | Preset | AggregationPreset, is 3"),
        ("overrides", ["window=8"], "Mapping[str, bool | int | float | str], is ['window=8']"),
        ("json_schema", 3, "str | Mapping[str, Any], is 3"),
        ("images", b"png", "Sequence[bytes], is b'png'"),
        ("truncate", "newest", "'none' | 'oldest', is 'newest'"),
        ("timeout_s", "long", "float, is 'long'"),
    ],
)
def test_a_value_of_a_wrong_type_is_refused_by_name(option: str, value: Any, hint: str) -> None:
    with pytest.raises(tandem.InvalidArgument) as refused:
        given_options({option: value})  # type: ignore[misc]
    assert (refused.value.field, refused.value.why) == (option, f"must be of type {hint}")


def test_a_value_that_means_the_same_in_another_type_is_taken() -> None:
    options = {
        "max_tokens": np.int64(7),
        "temperature": np.float32(0.5),
        "logit_bias": {"3": 1},
        "stop": None,
        "seed": None,
    }
    given = given_options(options)  # type: ignore[arg-type]
    assert given == DEFAULTS | {"max_tokens": 7, "temperature": 0.5, "logit_bias": {3: 1.0}}
    request = request_of("x", given)
    assert (request.params.max_tokens, request.stop) == (7, ())
    assert type(request.params.max_tokens) is int


@pytest.mark.parametrize("messages", [3, [1, 2], [], ["hi"], [{"role": "user", "content": 3}]])
def test_what_is_no_conversation_is_refused(messages: Any) -> None:
    with pytest.raises(tandem.InvalidArgument) as refused:
        conversation(messages)
    assert refused.value.field == "messages"
