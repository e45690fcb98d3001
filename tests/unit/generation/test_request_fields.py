"""The table of request fields, and a request whose fields are changed by their names."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tandem.api.options import request_of
from tandem.commands.generate import build_request, generate
from tandem.core.errors import InvalidArgument
from tandem.core.probs import SamplingParams
from tandem.core.processors import Processors
from tandem.core.prompt import Truncate
from tandem.gateway.request_reading import RequestLimits, completion_requests
from tandem.gateway.responses import ResponsesRequest, as_chat
from tandem.gateway.schema import CompletionRequest
from tandem.generation.request import GenerationRequest
from tandem.generation.request_fields import RequestFields, fields_of, given_fields
from tandem.specdec.liveness import LostCloud
from tandem.specdec.messages import GenerationParams


def test_a_field_is_changed_by_its_name_wherever_it_lies() -> None:
    request = GenerationRequest("a", "dssd", GenerationParams(seed=3, sampling=SamplingParams(0.5)))
    changed = request.with_fields(priority=2, max_tokens=9, top_k=4, presence_penalty=1.5)
    assert changed == GenerationRequest(
        "a",
        "dssd",
        GenerationParams(
            seed=3,
            max_tokens=9,
            sampling=SamplingParams(0.5, top_k=4),
            processors=Processors(presence_penalty=1.5),
        ),
        priority=2,
    )
    whole = request.with_fields(sampling=SamplingParams(top_p=0.5))
    assert whole.params == replace(request.params, sampling=SamplingParams(top_p=0.5))
    with pytest.raises(TypeError, match="temprature"):
        request.with_fields(temprature=1.0)


def test_only_what_was_given_for_a_field_of_the_table_counts() -> None:
    options = {"top_k": 0, "seed": None, "rag": True, "truncate": "oldest", "lost_cloud": "edge"}
    assert given_fields(options) == {
        "top_k": 0,
        "truncate": Truncate.OLDEST,
        "lost_cloud": LostCloud.EDGE,
    }
    with pytest.raises(InvalidArgument, match=r"^truncate: must be one of none, oldest, is 'all'"):
        given_fields({"truncate": "all"})


def test_every_caller_who_gives_nothing_asks_for_the_same() -> None:
    command = generate.make_context("generate", ["--raw", "--prompt", "a"])
    body = CompletionRequest.model_validate({"model": "m", "prompt": "a"})
    (over_http,) = completion_requests(body, RequestLimits(max_tokens=128))
    for request in (build_request(command.params), over_http, request_of("a", {})):
        assert request.with_fields(seed=0) == GenerationRequest("a")


def test_every_caller_s_values_reach_the_request() -> None:
    values = {
        **{"max_tokens": 7, "temperature": 0.5, "top_k": 9, "top_p": 0.75, "min_p": 0.25},
        **{"typical_p": 0.5, "presence_penalty": 1.5, "frequency_penalty": -0.5, "seed": 3},
        **{"repetition_penalty": 1.25, "suffix": "b", "ignore_eos": True, "priority": -2},
        **{"query": "heron", "documents": 2, "lost_cloud": "edge", "truncate": "oldest"},
        **{"min_tokens": 2, "include_stop_str_in_output": True},
        "thinking_token_budget": 0,
        "prediction": "an old text",
        "no_memory": True,
    }
    assert set(values) == {row.name for row in fields_of(RequestFields)}
    # No request has a suffix and drops tokens, nor a suffix and documents.
    of_one_side = {"suffix", "truncate", "min_tokens", "include_stop_str_in_output"}
    of_one_side.add("thinking_token_budget")
    for left_out in (of_one_side, {"query", "documents", "truncate"}):
        given = {name: value for name, value in values.items() if name not in left_out}
        preset = "dragon-coupled" if "query" in given else "coupled"
        expected = GenerationRequest("a", preset).with_fields(**given_fields(given))
        flags = [f"--{name.replace('_', '-')}={value}" for name, value in given.items()]
        flags = [flag.removesuffix("=True") for flag in flags]
        command = generate.make_context(
            "generate", ["--raw", "--prompt=a", f"--preset={preset}", *flags]
        )
        in_tandem = {name: given.pop(name) for name in IN_TANDEM if name in given}
        over = given | {"prediction": {"type": "content", "content": given["prediction"]}}
        body = {"model": "m", "prompt": "a", **over, "tandem": {"preset": preset, **in_tandem}}
        (over_http,) = completion_requests(CompletionRequest.model_validate(body), RequestLimits())
        from_python = request_of("a", {"preset": preset, **given, **in_tandem})  # type: ignore[typeddict-item]
        assert build_request(command.params) == over_http == from_python == expected


IN_TANDEM = ("query", "documents", "lost_cloud", "no_memory")


@pytest.mark.parametrize(("store", "no_memory"), [(False, True), (True, False), (None, False)])
def test_what_openai_s_client_does_not_want_stored_is_not_remembered(
    store: bool | None, no_memory: bool
) -> None:
    body = {"model": "m", "prompt": "a", "store": store}
    (completion,) = completion_requests(CompletionRequest.model_validate(body), RequestLimits())
    assert completion.no_memory is no_memory
    asked = ResponsesRequest.model_validate({"model": "m", "input": "a", "store": store})
    assert as_chat(asked).store is store
