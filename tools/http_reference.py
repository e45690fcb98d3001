"""The page of the HTTP API's parameters, from the models of its bodies.

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
    described = {**_described("completions"), **_described("chats")}
    rows = [(f"`{name}`", _bodies_with(name), words) for name, words in described.items() if words]
    plain = ", ".join(f"`{name}`" for name, words in described.items() if not words)
    return "\n\n".join(
        (
            "# HTTP API: parameters",
            "Of `/v1/chat/completions` and `/v1/completions`. The [HTTP API](../http-api.md) says"
            " what differs from OpenAI's; `/docs` of a running aggregator has every route, body and"
            " answer. `null` is the default of every parameter.",
            "## With a meaning or default of ours",
            table(("parameter", "of", "meaning"), rows),
            f"As in OpenAI's API or vLLM's: {plain}.",
            "## Only with their neutral value",
            "Parameters of other servers that would change the answer. Any other value is refused"
            " with what to send instead. Parameters in neither table are ignored, but a misspelt"
            " name is refused.",
            table(("parameter: accepted", "why"), _neutral(set(described))),
            "## The field tandem",
            table(
                ("key", "meaning"),
                ((f"`{name}`", words) for name, words in _words(TandemOptions).items()),
            ),
        )
    )


def _described(body: str) -> dict[str, str]:
    return _words(BODIES[body])


def _words(kind: type[Any]) -> dict[str, str]:
    """The descriptions of the model's own fields, by the names that callers send."""
    return {
        field.alias or name: field.description or "" for name, field in kind.model_fields.items()
    }


def _bodies_with(name: str) -> str:
    found = [body for body in BODIES if name in _described(body)]
    return "both" if len(found) == len(BODIES) else found[0]


def _neutral(own: set[str]) -> Iterator[tuple[str, str]]:
    """Parameters that the schemas have and the models have not, by why they are refused."""
    names: dict[str, dict[str, str]] = {}
    for kind in BODIES.values():
        for name, form in kind.model_json_schema()["properties"].items():
            if name not in own:
                accepted = ", ".join(f"`{json.dumps(value)}`" for value in _values(form))
                named = names.setdefault(form["description"], {})
                named[name] = f"`{name}`: {accepted or '`null`'}"
    for why, named in names.items():
        yield "; ".join(named.values()), why


def _values(form: Mapping[str, Any]) -> Iterator[Any]:
    """The values that a neutral parameter may have, beside null."""
    for each in form.get("anyOf", [form]):
        if "const" in each:
            yield each["const"]
        elif each.get("type") == "array":
            yield each["items"]["enum"][: each["maxItems"]]
        else:
            yield from (value for value in each["enum"] if value is not None)
