"""What of a tool's schema is enforced: a schema that is not strict never takes the other tools with
it, and a refusal says which tool and which keyword it is about."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from tandem.backends.cross_vocabulary.pairing import load_target_tokenizer
from tandem.core.errors import InvalidArgument
from tandem.core.processors import Grammar
from tandem.demo import demo_folder
from tandem.gateway.constraints import schema_grammar
from tandem.gateway.schema import ChatCompletionRequest
from tandem.gateway.tool_schemas import enforced_schema, refusal_of_schema
from tandem.grammar.compiler import GrammarCompiler
from tests.gateway.http_suite import chat_body

EMAIL = r"^(?!\.)(?!.*\.\.)([a-z0-9_'+\-\.]*)[a-z0-9_+-]@([a-z0-9][a-z0-9\-]*\.)+[a-z]{2,}$"
UNKNOWN: dict[str, tuple[dict[str, Any], str]] = {
    "set": (
        {"type": "array", "items": {"type": "string"}, "uniqueItems": True},
        "not supported in a JSON schema: 'uniqueItems'",
    ),
    "path": (
        {"type": "string", "format": "path"},
        "not supported in a JSON schema: the format 'path'",
    ),
    "password": (
        {"type": "string", "format": "password"},
        "not supported in a JSON schema: the format 'password'",
    ),
    "email": (
        {"type": "string", "pattern": EMAIL},
        f"the pattern {EMAIL} is not supported: look-around",
    ),
    "not": ({"not": {"type": "string"}}, "not supported in a JSON schema: 'not'"),
    "if": (
        {"type": "object", "if": {"required": ["a"]}, "then": {"required": ["b"]}},
        "not supported in a JSON schema: 'if', 'then'",
    ),
    "oneOf": (
        {"oneOf": [{"type": "string"}, {"type": "string", "maxLength": 3}]},
        "not supported in a JSON schema: this 'oneOf'; use 'anyOf'",
    ),
    "int64": (
        {"type": "integer", "minimum": -(2**63), "maximum": 2**63 - 1},
        "Failed to generate regex for integer range",
    ),
    "double": (
        {"type": "number", "minimum": -sys.float_info.max, "maximum": sys.float_info.max},
        "Failed to generate regex for float range",
    ),
}


@pytest.fixture(scope="module")
def compiler() -> GrammarCompiler:
    tokenizer = load_target_tokenizer(str(demo_folder("demo-target")))
    return GrammarCompiler(tokenizer, tokenizer.model_size, tokenizer.eos_token_ids)


def tools_grammar(schema: dict[str, Any], **more: Any) -> Grammar:
    """Of a tool without parameters, and of one with a parameter of this schema."""
    parameters = {"type": "object", "properties": {"a": schema}, "required": ["a"]}
    functions = [{"name": "now"}, {"name": "look", "parameters": parameters, **more}]
    tools = [{"type": "function", "function": function} for function in functions]
    named = ChatCompletionRequest.model_validate(chat_body(tools=tools)).named_grammar()
    assert named is not None
    return named[1]


@pytest.mark.parametrize("name", UNKNOWN)
def test_a_schema_that_is_not_strict_is_enforced_as_far_as_it_can_be(
    compiler: GrammarCompiler, name: str
) -> None:
    schema, _ = UNKNOWN[name]
    for more in ({}, {"strict": False}, {"strict": None}):
        assert compiler.mask(tools_grammar(schema, **more)) is not None


@pytest.mark.parametrize("name", UNKNOWN)
def test_a_strict_one_is_refused_with_the_tool_and_the_keyword(
    compiler: GrammarCompiler, name: str
) -> None:
    schema, why = UNKNOWN[name]
    with pytest.raises(InvalidArgument) as refused:
        compiler.mask(tools_grammar(schema, strict=True))
    message = refusal_of_schema(f"grammar: {refused.value.why}", ["now", "look"])
    assert message.startswith(f"tools: the schema of 'look': {why}")
    with pytest.raises(InvalidArgument) as refused:
        compiler.mask(schema_grammar(schema))
    assert refused.value.why.startswith(why)


def test_what_is_no_schema_is_refused_with_the_tool(compiler: GrammarCompiler) -> None:
    with pytest.raises(InvalidArgument) as refused:
        compiler.mask(tools_grammar({"type": "any"}))
    message = refusal_of_schema(f"grammar: {refused.value.why}", ["now", "look"])
    assert message == "tools: the schema of 'look': Invalid type: any"


def test_of_a_schema_only_what_is_unknown_is_left_out() -> None:
    known = {"type": "string", "pattern": "^[a-z]+$", "format": "date"}
    values = {"const": {"pattern": "(?=a)"}, "enum": [{"pattern": "(?=a)"}]}
    named = {"properties": {"pattern": known, "default": {"pattern": "(?=a)", "type": "string"}}}
    schema = {**named, **values, "anyOf": [{"pattern": r"\bx"}, known]}
    left = enforced_schema(schema, strict=False)
    assert left["properties"] == {"pattern": known, "default": {"type": "string"}}
    assert {name: left[name] for name in values} == values
    assert left["anyOf"] == [{}, known]
    bounded = {"minimum": 0, "maximum": 2**63 - 1, "properties": {"maximum": {"minimum": 1}}}
    left = enforced_schema(bounded, strict=False)
    assert left["minimum"] == 0
    assert "maximum" not in left
    assert left["properties"] == bounded["properties"]
    by_pattern = {"(?=x)": {"type": "string"}, "^y": {"type": "integer"}}
    left = enforced_schema(
        {"patternProperties": by_pattern, "additionalProperties": False}, strict=False
    )
    assert left["patternProperties"] == {"^y": {"type": "integer"}}
    assert "additionalProperties" not in left, "what it forbade may be of the first pattern"
    odds: list[dict[str, Any]] = [{"patternProperties": 5}, {"properties": []}, {"pattern": 1}]
    for odd in odds:
        assert enforced_schema(odd, strict=False).items() >= odd.items()


def test_other_refusals_stay_as_they_are() -> None:
    for message in ("grammar: too large", "grammar: line 3: Invalid type: any", "prompt: is empty"):
        assert refusal_of_schema(message, ["now", "look"]) == message
