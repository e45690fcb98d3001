"""What an assistant thought in earlier turns, for the chat templates that know it. Most drop it
before the user's last turn, and keep it between the tool calls of one answer.

Invariant: a template that does not name it is given the same messages as without it."""

import re
from collections.abc import Mapping
from typing import Any

from tandem.core.prompt import Turn

_NAMES = ("reasoning_content", "thinking", "reasoning")
"""Fields of a message under which templates look for it: those of Qwen3, GLM, Kimi and others;
gpt-oss; some newer ones. The first that a template names is used."""
_READ = r"""\.{name}\b|\[\s*['"]{name}['"]\s*\]|\bget\(\s*['"]{name}['"]|['"]{name}['"]\s+in\b"""
"""A field as templates read it, and not a variable of the same name."""


def reasoning_field(template: str) -> str:
    """Return the field of a message in which a chat template looks for what an assistant thought;
    empty where it does not."""
    return next((name for name in _NAMES if re.search(_READ.format(name=name), template)), "")


def reasoning_of(turn: Turn, field: str) -> Mapping[str, Any]:
    """Return that field of a turn's message; nothing where turn or template has none."""
    if not (field and turn.reasoning_content and turn.role == "assistant"):
        return {}
    # The template of gpt-oss refuses a message that has thinking, content and tool calls.
    if field == "thinking" and turn.content and turn.tool_calls:
        return {}
    return {field: turn.reasoning_content}
