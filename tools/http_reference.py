"""The page of the HTTP API's parameters, from the schemas of its bodies.

Invariant: what the page says of a parameter is what `/openapi.json` says.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from tandem.gateway.schema import ChatCompletionRequest, CompletionRequest, TandemOptions
from tools.markdown_table import table

BODIES: Mapping[str, type[ChatCompletionRequest | CompletionRequest]] = {
    "chats": ChatCompletionRequest,
    "completions": CompletionRequest,
}


def http_page() -> str:
    """Every parameter of chats and completions."""
    forms = {body: kind.model_json_schema()["properties"] for body, kind in BODIES.items()}
    words: dict[str, str] = {}
    bodies: dict[str, list[str]] = {}
    for body, properties in forms.items():
        for name, form in properties.items():
            if _constants(form) is None:
                words.setdefault(name, form.get("description", ""))
                bodies.setdefault(name, []).append(body)
    rows = [
        (f"`{name}`" + ("" if len(bodies[name]) > 1 else f" ({bodies[name][0]})"), told)
        for name, told in words.items()
        if told
    ]
    plain = ", ".join(f"`{name}`" for name, told in words.items() if not told)
    options = TandemOptions.model_fields.items()
    return "\n\n".join(
        (
            "# HTTP API: parameters",
            "Of `/v1/chat/completions` and `/v1/completions`. The [HTTP API](../http-api.md) says"
            " what differs from OpenAI's; `/docs` of a running aggregator has every route, body and"
            " answer. `null` is the default of every parameter.",
            "## With a meaning or default of ours",
            table(("parameter", "meaning"), rows),
            f"As in OpenAI's API or vLLM's: {plain}.",
            "## Only with their neutral value",
            "Parameters of other servers that would change the answer. Any other value is refused"
            " with what to send instead. Parameters in neither table are ignored, but a misspelt"
            " name is refused.",
            table(("parameter: accepted", "why"), _neutral(forms, set(words))),
            "## The field tandem",
            table(
                ("key", "meaning"),
                ((f"`{name}`", field.description or "") for name, field in options),
            ),
        )
    )


def _neutral(forms: Mapping[str, Mapping[str, Any]], others: set[str]) -> Iterator[tuple[str, str]]:
    """Parameters of which only constants are accepted, by why."""
    names: dict[str, dict[str, str]] = {}
    for properties in forms.values():
        for name, form in properties.items():
            if name not in others:
                accepted = ", ".join(f"`{json.dumps(value)}`" for value in _constants(form) or [])
                named = names.setdefault(form["description"], {})
                named[name] = f"`{name}`: {accepted or '`null`'}"
    for why, named in names.items():
        yield "; ".join(named.values()), why


def _constants(form: Mapping[str, Any]) -> list[Any] | None:
    """The values beside null that a schema accepts; None if it accepts more than constants."""
    found: list[Any] = []
    for each in form.get("anyOf", [form]):
        match each:
            case {"const": value}:
                found.append(value)
            case {"type": "null"}:
                pass
            case {"type": "array", "minItems": least, "maxItems": most} if least == most:
                found.append(each["items"]["enum"][:most])
            case {"type": "object", "maxProperties": 0}:
                found.append({})
            case {"enum": values} if "type" not in each:
                found += [value for value in values if value is not None]
            case _:
                return None
    return found
