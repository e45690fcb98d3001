"""Sampling constraints of a request body: penalties, biases, token lists, and the grammar of the
answer under OpenAI's and vLLM's names. Invariant: a request names at most one grammar, and a
finished answer matches it."""

import json
import re
from collections.abc import Iterator
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field

from tandem.core.errors import InvalidArgument
from tandem.core.processors import Grammar, GrammarKind
from tandem.gateway.base_models import LIKE, Body, Lenient, TokenId, refused_unless
from tandem.gateway.errors import invalid

MAX_CHOICES = 256
JsonSchema = dict[str, Any]
Choices = Annotated[list[str], Field(min_length=1, max_length=MAX_CHOICES, fail_fast=True)]
Penalty = Annotated[float, Field(ge=-2, le=2)]
TokenIds = Annotated[list[TokenId], Field(max_length=2**14, fail_fast=True)]

ANY_OBJECT: JsonSchema = {"type": "object"}


class TextFormat(Lenient):
    type: Literal["text"]


class JsonObjectFormat(Lenient):
    type: Literal["json_object"]


class AnyJsonFormat(Body):
    """`json_object`, as llama.cpp has it."""

    misspelt = LIKE

    type: Literal["json_object"]
    json_schema: JsonSchema | None = Field(
        default=None, alias="schema", description="JSON schema that the answer must match."
    )


class NamedSchema(Body):
    """Answers always match the schema, also where it is not `strict`."""

    misspelt = LIKE
    other_names = frozenset({"description", "strict"})

    name: Annotated[str, Field(pattern=r"^[a-zA-Z0-9_-]{1,64}$")]
    json_schema: JsonSchema = Field(default=ANY_OBJECT, alias="schema")


class JsonSchemaFormat(Lenient):
    type: Literal["json_schema"]
    json_schema: NamedSchema


Format = Annotated[TextFormat | AnyJsonFormat | JsonSchemaFormat, Field(discriminator="type")]


_AsWritten = Annotated[None, refused_unless("send a grammar")]


class StructuredOutputs(Body):
    """vLLM's structured outputs. Set exactly one field."""

    json_schema: JsonSchema | str | None = Field(default=None, alias="json")
    regex: str | None = None
    choice: Choices | None = None
    grammar: str | None = Field(default=None, description="Grammar in Lark syntax.")
    json_object: bool | None = None
    structural_tag: _AsWritten = None
    whitespace_pattern: _AsWritten = None
    disable_any_whitespace: _AsWritten = None
    disable_additional_properties: _AsWritten = None


_ONE_OF = {"json_schema": "json", **{each: each for each in ("regex", "choice", "grammar")}}
_ONE_OF["json_object"] = "json_object"


class Constraints(BaseModel):
    """Constraints shared by the chat and completion endpoints."""

    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    logit_bias: dict[str, Annotated[float, Field(ge=-100, le=100)]] | None = Field(
        default=None, description="Values to add to logits, by token id."
    )
    allowed_token_ids: TokenIds | None = Field(
        default=None, description="Only these token ids may be generated."
    )
    banned_token_ids: TokenIds | None = None
    response_format: Format | None = None
    structured_outputs: StructuredOutputs | None = None
    guided_json: JsonSchema | str | None = None
    guided_regex: str | None = None
    guided_choice: Choices | None = None
    guided_grammar: str | None = Field(default=None, description="Grammar in Lark syntax.")

    def named_grammar(self) -> tuple[str, Grammar] | None:
        """Return the name and value of the grammar parameter, or None.
        Raises ApiError if there is more than one."""
        grammars = list(self._grammars())
        if len(grammars) > 1:
            names = [name for name, _ in grammars]
            raise invalid(names[1], f"{names[1]}: set either {names[0]} or {names[1]}, not both")
        return grammars[0] if grammars else None

    @property
    def biases(self) -> tuple[tuple[int, float], ...]:
        """`logit_bias` by token ids. Raises InvalidArgument for a malformed one."""
        return tuple(_biases(self.logit_bias or {}))

    def _grammars(self) -> Iterator[tuple[str, Grammar]]:
        match self.response_format:
            case AnyJsonFormat(json_schema=schema):
                yield "response_format", schema_grammar(schema or ANY_OBJECT)
            case JsonSchemaFormat(json_schema=named):
                yield "response_format", schema_grammar(named.json_schema)
        yield from _named(
            "guided_",
            schema=self.guided_json,
            regex=self.guided_regex,
            choices=self.guided_choice,
            grammar=self.guided_grammar,
        )
        if (outputs := self.structured_outputs) is not None:
            prefix = "structured_outputs."
            yield from _named(
                prefix,
                schema=outputs.json_schema,
                regex=outputs.regex,
                choices=outputs.choice,
                grammar=outputs.grammar,
            )
            if not outputs.model_fields_set & _ONE_OF.keys():
                known = ", ".join(_ONE_OF.values())
                raise invalid("structured_outputs", f"structured_outputs: send one of {known}")
            if outputs.json_object:
                yield f"{prefix}json_object", schema_grammar(ANY_OBJECT)


def schema_grammar(schema: JsonSchema) -> Grammar:
    """Return the grammar of JSON that matches `schema`."""
    return Grammar(GrammarKind.JSON_SCHEMA, json.dumps(schema))


def _named(
    prefix: str,
    *,
    schema: JsonSchema | str | None,
    regex: str | None,
    choices: list[str] | None,
    grammar: str | None,
) -> Iterator[tuple[str, Grammar]]:
    if schema is not None:
        yield f"{prefix}json", _schema(f"{prefix}json", schema)
    if regex is not None:
        yield f"{prefix}regex", Grammar(GrammarKind.REGEX, regex)
    if choices is not None:
        yield f"{prefix}choice", Grammar(GrammarKind.REGEX, "|".join(map(re.escape, choices)))
    if grammar is not None:
        yield f"{prefix}grammar", Grammar(GrammarKind.LARK, grammar)


def _schema(field: str, schema: JsonSchema | str) -> Grammar:
    if isinstance(schema, dict):
        return schema_grammar(schema)
    try:
        parsed = json.loads(schema)
    except (ValueError, RecursionError):
        raise invalid(field, f"{field}: is not JSON") from None
    return schema_grammar(parsed)


def _biases(biases: dict[str, float]) -> Iterator[tuple[int, float]]:
    for token, bias in biases.items():
        if not (token.isascii() and token.isdecimal() and len(token) < 11):
            raise InvalidArgument("logit_bias", f"{token[:20]!r} is no token id")
        yield int(token), bias
