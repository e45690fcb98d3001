"""Tools in a conversation: for chat templates that know them as they are, for others as text.
Invariant: a call reads the same in a prompt as the gateway's grammar has it in an answer."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from tandem.core.errors import InvalidArgument
from tandem.core.prompt import Turn
from tandem.text import FamilyTokenizer, ReasoningTokenizer, Tokenizer, ToolTokenizer
from tandem.text.chat_rendering import NO_VARIABLES
from tandem.text.families import HERMES, CallFormat
from tandem.text.past_reasoning import reasoning_of


def conversation_ids(
    tokenizer: Tokenizer,
    turns: Sequence[Turn],
    tools: str = "",
    images: int = 0,
    variables: Mapping[str, Any] = NO_VARIABLES,
) -> list[int]:
    """Encode a conversation, up to where the answer begins. `tools`: a JSON list of functions, as
    OpenAI's API has them. Raises InvalidArgument."""
    field = tokenizer.reasoning_field if isinstance(tokenizer, ReasoningTokenizer) else ""
    if not tools and not any(turn.tool_calls or turn.tool_call_id for turn in turns):
        messages = [_message(turn, field) for turn in turns]
        return tokenizer.chat(messages, images, variables)
    listed = _parsed(tools, "tools") if tools else []
    if isinstance(tokenizer, ToolTokenizer) and tokenizer.template_knows_tools:
        names = {call["id"]: call["function"]["name"] for turn in turns for call in _calls(turn)}
        structured = [_structured(turn, names, field) for turn in turns]
        return tokenizer.chat_with_tools(structured, listed, images, variables)
    calls = tokenizer.family.calls if isinstance(tokenizer, FamilyTokenizer) else HERMES
    return tokenizer.chat(_described(turns, listed, calls, field), images, variables)


def _message(turn: Turn, reasoning_field: str) -> dict[str, Any]:
    said = {"role": turn.role, "content": turn.content}
    return {**said, **reasoning_of(turn, reasoning_field)}


def _structured(turn: Turn, names: dict[str, str], reasoning_field: str) -> dict[str, Any]:
    """Return a turn with its calls as objects: templates print arguments themselves, and name the
    tool that answers."""
    message = _message(turn, reasoning_field)
    if turn.tool_calls:
        message["tool_calls"] = _calls(turn)
    if turn.tool_call_id:
        message["tool_call_id"] = turn.tool_call_id
        message["name"] = names.get(turn.tool_call_id, "")
    return message


def _described(
    turns: Sequence[Turn], tools: Sequence[Any], calls: CallFormat, reasoning_field: str
) -> list[dict[str, str]]:
    """Return the turns with answers of tools as the user's, and the tools themselves before
    everything. `calls`: how the model writes calls."""
    messages: list[dict[str, str]] = []
    for turn in turns:
        if turn.tool_call_id:
            content = f"<tool_response>\n{turn.content}\n</tool_response>"
            if messages and messages[-1]["content"].endswith("</tool_response>"):
                messages[-1]["content"] += f"\n{content}"  # templates want turns to alternate
                continue
            messages.append({"role": "user", "content": content})
            continue
        functions = [call["function"] for call in _calls(turn)]
        called = [(each["name"], json.dumps(each["arguments"])) for each in functions]
        parts = [turn.content] if turn.content else []
        parts += [calls.written(called)] if called else []
        content = "\n".join(parts)
        messages.append(_message(replace(turn, content=content), reasoning_field))
    if tools and messages:
        words = _description(tools, calls)
        first = messages[0]
        system = first["role"] == "system"
        both = (first["content"], words) if system else (words, first["content"])
        first["content"] = "\n\n".join(both)
    return messages


def _description(tools: Sequence[Any], calls: CallFormat) -> str:
    listed = "\n".join(json.dumps(tool) for tool in tools)
    example = calls.written([("NAME", "OBJECT")])
    return f"You may call these functions:\n{listed}\nTo call one, answer:\n{example}"


def _calls(turn: Turn) -> list[dict[str, Any]]:
    """Return tool calls with arguments as objects."""
    calls = _parsed(turn.tool_calls, "messages") if turn.tool_calls else []
    try:
        return [
            {
                "id": str(call["id"]),
                "type": "function",
                "function": {
                    "name": str(call["function"]["name"]),
                    "arguments": _arguments(call["function"]["arguments"]),
                },
            }
            for call in calls
        ]
    except (KeyError, TypeError):
        raise InvalidArgument("messages", "a tool call needs id, name and arguments") from None


def _arguments(text: str) -> Any:
    """Return the arguments as text: those that a caller passes back need not be JSON, since an
    answer may have been cut."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def _parsed(text: str, field: str) -> list[Any]:
    try:
        parsed = json.loads(text)
    except (ValueError, RecursionError):
        parsed = None
    if not isinstance(parsed, list) or not all(isinstance(each, dict) for each in parsed):
        raise InvalidArgument(field, "is not a JSON list of objects")
    return parsed
