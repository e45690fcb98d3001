"""JSON bodies at a cost that is bounded before it is spent: parsing, checking and refusing all hold
the event loop. Invariant: no body of `max_body_bytes` holds it for much longer than reading its
JSON takes, whatever it says."""

from typing import Any

from pydantic_core import from_json

from tandem.gateway.errors import ApiError, invalid

MAX_VALUES = 20_000
"""Values in a body beside the token ids of its prompts; a message has two, and is one."""
MAX_INPUT_IDS = 2**17
"""Token ids of one text to embed."""
MAX_BRACKETS = 100_000
"""In the raw body, those inside of texts included: each may be an object to make."""


def parse_json(raw: bytes, max_ids: int) -> dict[str, Any]:
    """Parse a body; a prompt in it may have at most `max_ids` token ids. Raises ApiError 400 or
    413."""
    if raw.count(b"[") + raw.count(b"{") > MAX_BRACKETS:
        raise _too_many(f"{MAX_BRACKETS} brackets")
    try:
        content = from_json(raw, allow_inf_nan=False, cache_strings="none")
    except ValueError as error:
        raise invalid(None, f"the body is not JSON: {error}", "invalid_json") from None
    if not isinstance(content, dict):
        raise invalid(None, "the body must be a JSON object", "invalid_json")
    _check_values(content, max_ids)
    return content


def _check_values(content: dict[str, Any], max_ids: int) -> None:
    """Raise ApiError for too many values or token ids. pydantic records a fault for each value that
    it refuses, so their number is limited before."""
    containers: list[list[Any] | dict[str, Any]] = [content]
    count = 0
    skipped = set()
    for name in ("prompt", "tokens"):
        for ids in _lists_of_ids(content.get(name)):
            if len(ids) > max_ids:
                raise invalid(name, f"{name}: {len(ids)} tokens; the context holds {max_ids}")
            skipped.add(id(ids))
    for ids in _lists_of_ids(content.get("input")):
        if len(ids) > MAX_INPUT_IDS:
            raise invalid("input", f"input: {len(ids)} token ids; at most {MAX_INPUT_IDS}")
        if all(type(token) is int for token in ids):  # messages of other bodies are counted
            skipped.add(id(ids))
    while containers:
        container = containers.pop()
        count += len(container)
        if count > MAX_VALUES:
            raise _too_many(f"{MAX_VALUES} values")
        values = container.values() if isinstance(container, dict) else container
        containers += [
            each for each in values if isinstance(each, (list, dict)) and id(each) not in skipped
        ]


def _lists_of_ids(prompt: Any) -> list[list[Any]]:
    """Return the lists that seem to be token ids, without checking every entry."""
    if not isinstance(prompt, list) or len(prompt) == 0:
        return []
    if isinstance(prompt[0], list):
        return [each for each in prompt if isinstance(each, list)]
    return [prompt] if isinstance(prompt[0], int) else []


def _too_many(what: str) -> ApiError:
    return ApiError(413, f"the body has more than {what}", code="request_too_large")
