"""Penalties, biases, cuts and grammars over HTTP are those of the suite's own request."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tandem.core.processors import Grammar, GrammarKind
from tandem.gateway.errors import ApiError
from tandem.gateway.schema import ChatCompletionRequest
from tandem.generation.request import GenerationRequest
from tests.gateway.http_suite import MODEL, HttpSuite, chat_body, one_loop

pytestmark = one_loop

SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}}}
JSON = GrammarKind.JSON_SCHEMA
REGEX = GrammarKind.REGEX
LARK = GrammarKind.LARK


@pytest.mark.parametrize(
    ("body", "processors", "cuts"),
    [
        ({"logit_bias": {"5": 40, "7": -1.5}}, {"logit_bias": ((5, 40.0), (7, -1.5))}, {}),
        ({"presence_penalty": 2, "frequency_penalty": 1.5}, None, {}),
        ({"repetition_penalty": 3}, None, {}),
        ({"allowed_token_ids": [3, 9, 0], "banned_token_ids": [9]}, None, {}),
        ({"min_p": 0.3}, {}, {"min_p": 0.3}),
        ({"typical_p": 0.4}, {}, {"typical_p": 0.4}),
    ],
)
async def test_an_answer_is_that_of_the_suite_s_own_request(
    served: HttpSuite, body: dict[str, Any], processors: dict[str, Any] | None, cuts: dict[str, Any]
) -> None:
    common: dict[str, Any] = {"max_tokens": 16, "seed": 3, "ignore_eos": True}
    if processors is None:
        processors = {
            name: tuple(value) if isinstance(value, list) else value for name, value in body.items()
        }
    request = GenerationRequest("abc").with_fields(**cuts, **processors, **common)
    expected = (await served.suite.client.generate(request)).text
    plain = (
        await served.suite.client.generate(GenerationRequest("abc").with_fields(**common))
    ).text
    answer = await served.post(
        "/v1/completions", {"model": MODEL, "prompt": "abc", **common, **body}
    )
    assert answer.json()["choices"][0]["text"] == expected
    assert expected != plain


NAMED = {"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA, "strict": True}}


@pytest.mark.parametrize(
    ("body", "name", "grammar"),
    [
        ({"response_format": NAMED}, "response_format", (JSON, json.dumps(SCHEMA))),
        ({"response_format": {"type": "json_object"}}, "response_format", (JSON, None)),
        ({"guided_json": SCHEMA}, "guided_json", (JSON, json.dumps(SCHEMA))),
        ({"guided_json": json.dumps(SCHEMA)}, "guided_json", (JSON, json.dumps(SCHEMA))),
        ({"guided_regex": "a+"}, "guided_regex", (REGEX, "a+")),
        ({"guided_choice": ["a.", "b"]}, "guided_choice", (REGEX, r"a\.|b")),
        ({"guided_grammar": "start: A"}, "guided_grammar", (LARK, "start: A")),
        ({"structured_outputs": {"regex": "b"}}, "structured_outputs.regex", (REGEX, "b")),
        (
            {"structured_outputs": {"json_object": True}},
            "structured_outputs.json_object",
            (JSON, None),
        ),
        ({"structured_outputs": {"grammar": "x"}}, "structured_outputs.grammar", (LARK, "x")),
    ],
)
async def test_each_way_to_name_a_grammar(
    body: dict[str, Any], name: str, grammar: tuple[GrammarKind, str | None]
) -> None:
    asking = ChatCompletionRequest.model_validate(chat_body(**body))
    kind, source = grammar
    if source is None:
        source = json.dumps({"type": "object"})
    assert asking.named_grammar() == (name, Grammar(kind, source))


async def test_two_grammars_are_one_too_many() -> None:
    body = chat_body(response_format={"type": "json_object"}, guided_regex="a")
    with pytest.raises(
        ApiError, match="set either response_format or guided_regex, not both"
    ) as refused:
        ChatCompletionRequest.model_validate(body).named_grammar()
    assert refused.value.param == "guided_regex"


@pytest.mark.parametrize("given", [{}, {"backend": "x"}, {"structural_tag": None}])
async def test_structured_outputs_without_a_known_structure_are_refused(
    given: dict[str, Any],
) -> None:
    asking = ChatCompletionRequest.model_validate(chat_body(structured_outputs=given))
    with pytest.raises(ApiError, match="send one of json, regex, choice") as refused:
        asking.named_grammar()
    assert refused.value.param == "structured_outputs"


async def test_what_cannot_be_compiled_is_named_as_the_caller_named_it(served: HttpSuite) -> None:
    for body, param in (
        ({"guided_grammar": "start: ("}, "guided_grammar"),
        ({"response_format": NAMED, "ignore_eos": True}, "response_format"),
    ):
        answer = await served.post("/v1/chat/completions", chat_body(**body))
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)
