"""Tools: how bodies and answers name them, as in OpenAI's API, the grammar that an answer with
tools follows, and the calls in its text.

Invariant: however a text is cut into pieces, its pieces joined are the same calls; arguments are
JSON that fits the tool's schema once the answer ended by itself.

In the text a call is `<tool_call>`, an object with name and arguments, `</tool_call>`, each on its
own line, as Hermes and Qwen write it; the grammar holds every model to that."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import Annotated, Any, Literal

from pydantic import Field

from tandem.core.processors import Grammar, GrammarKind
from tandem.gateway.body_parsing import Strict

MAX_TOOLS = 128
MAX_CALLS = 8
"""Of one answer: a model that does not know when to stop calling would go on for ever."""
_BEGIN = "<tool_call>"
_END = "</tool_call>"
_HEAD = re.compile(r'\s*\{\s*"name"\s*:\s*"([^"\\]*)"\s*,\s*"arguments"\s*:\s*')
_NO_PARAMETERS: dict[str, Any] = {"type": "object", "properties": {}}
_COMPACT = {"x-guidance": {"whitespace_flexible": False}}
"""llguidance's own keyword: a model that may write spaces for ever would."""
_PLAIN = f"TEXT: /(?s:.*)/ & ~/(?s:.*){_BEGIN}(?s:.*)/"
"""Text without a call in it."""

ToolName = Annotated[str, Field(pattern=r"^[a-zA-Z0-9_-]{1,64}$")]


class ToolFunction(Strict):
    name: ToolName
    description: str | None = None
    parameters: dict[str, Any] | None = Field(default=None, description="A JSON schema.")
    strict: bool | None = Field(default=None, description="Of no effect: arguments always fit.")


class Tool(Strict):
    type: Literal["function"]
    function: ToolFunction


class NamedFunction(Strict):
    name: ToolName


class NamedTool(Strict):
    type: Literal["function"]
    function: NamedFunction


Tools = Annotated[list[Tool], Field(max_length=MAX_TOOLS, fail_fast=True)]
ToolChoice = Literal["none", "auto", "required"] | NamedTool


class CalledFunction(Strict):
    name: str
    arguments: str = Field(description="Arguments as JSON.")


class ToolCall(Strict):
    """A tool call in a message of the assistant."""

    id: str
    type: Literal["function"]
    function: CalledFunction


class CalledFunctionDelta(Strict):
    name: str | None = None
    arguments: str


class ToolCallDelta(Strict):
    """Part of a streamed tool call. The first part has id, type and name; later parts append to the
    arguments."""

    index: int
    id: str | None = None
    type: Literal["function"] | None = None
    function: CalledFunctionDelta


def tool_grammar(
    tools: Sequence[Tool], *, text: Grammar | None, must_call: bool, parallel: bool
) -> Grammar:
    """Calls of `tools`, one or, if `parallel`, several; unless one must be called, or else a text:
    JSON of the schema `text` where one is given."""
    rules = [
        "start: calls" if must_call else f"start: {'json' if text else 'TEXT'} | calls",
        f'calls: call ("\\n" call){{0,{MAX_CALLS - 1}}}' if parallel else "calls: call",
        f'call: "{_BEGIN}\\n{{\\"name\\": " function "}}\\n{_END}"',
        "function: " + " | ".join(f"f{index}" for index in range(len(tools))),
    ]
    for index, tool in enumerate(tools):
        parameters = _NO_PARAMETERS | (tool.function.parameters or {}) | _COMPACT
        rules.append(f'f{index}: "\\"{tool.function.name}\\", \\"arguments\\": " a{index}')
        rules.append(f"a{index}: %json {json.dumps(parameters)}")
    if not must_call:
        rules.append(f"json: %json {text.source}" if text else _PLAIN)
    return Grammar(GrammarKind.LARK, "\n".join(rules) + "\n")


@dataclass(frozen=True, slots=True)
class CallPiece:
    """A new part of call `index`: its name, then parts of its arguments."""

    index: int
    name: str | None = None
    arguments: str = ""


class _State(Enum):
    TEXT = auto()
    HEAD = auto()
    ARGUMENTS = auto()
    TAIL = auto()


class ToolCallReader:
    """Reads an answer's text as it comes; what is no call is text."""

    def __init__(self) -> None:
        self.calls = 0
        self._held = ""
        self._state = _State.TEXT
        self._depth = 0
        self._in_string = self._escaped = False

    def push(self, text: str) -> list[str | CallPiece]:
        """Return what is certain now: texts, and pieces of calls."""
        self._held += text
        pieces: list[str | CallPiece] = []
        while (step := self._step()) is not None:
            pieces += [each for each in step if each]
        return pieces

    def finish(self) -> list[str | CallPiece]:
        """The text that was held for a call that did not come."""
        held, self._held = self._held, ""
        return [held] if held and self._state is _State.TEXT and not self.calls else []

    def _step(self) -> list[str | CallPiece] | None:
        """One step further; None where more text is needed."""
        match self._state:
            case _State.TEXT:
                return self._text()
            case _State.HEAD:
                return self._head()
            case _State.ARGUMENTS:
                return self._arguments()
            case _State.TAIL:
                _, found, rest = self._held.partition(_END)
                if not found:
                    return None
                self._held = rest
                self._state = _State.TEXT
                return []

    def _text(self) -> list[str | CallPiece] | None:
        before, found, rest = self._held.partition(_BEGIN)
        if found:
            self._held = rest
            self._state = _State.HEAD
        else:
            longest = min(len(_BEGIN) - 1, len(before))
            keep = next((n for n in range(longest, 0, -1) if _BEGIN.startswith(before[-n:])), 0)
            before, self._held = before[: len(before) - keep], before[len(before) - keep :]
            if not before:
                return None
        return [] if self.calls and before.isspace() else [before]

    def _head(self) -> list[str | CallPiece] | None:
        head = _HEAD.match(self._held)
        if head is None or head.end() == len(self._held):  # more space may follow
            return None
        self._held, self._state, self._depth = self._held[head.end() :], _State.ARGUMENTS, 0
        self.calls += 1
        return [CallPiece(self.calls - 1, name=head[1])]

    def _arguments(self) -> list[str | CallPiece] | None:
        for place, letter in enumerate(self._held):
            if self._in_string:
                self._in_string = self._escaped or letter != '"'
                self._escaped = letter == "\\" and not self._escaped
                continue
            self._in_string = letter == '"'
            self._depth += (letter in "{[") - (letter in "}]")
            if not self._depth and letter in "}]":
                part, self._held = self._held[: place + 1], self._held[place + 1 :]
                self._state = _State.TAIL
                return [CallPiece(self.calls - 1, arguments=part)]
        part, self._held = self._held, ""
        return [CallPiece(self.calls - 1, arguments=part)] if part else None


class ToolAnswer:
    """One choice of a chat with tools, as OpenAI's message or as deltas of it. `prefix`: of the
    calls' ids."""

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix
        self._reader = ToolCallReader()

    @property
    def has_calls(self) -> bool:
        return self._reader.calls > 0

    def message(self, text: str) -> dict[str, Any]:
        """Return the message of the whole text."""
        content = ""
        calls = list[dict[str, Any]]()
        for piece in (*self._reader.push(text), *self._reader.finish()):
            if isinstance(piece, str):
                content += piece
            elif piece.name is not None:
                calls.append(self._begun(piece))
            else:
                calls[piece.index]["function"]["arguments"] += piece.arguments
        message = {"role": "assistant", "content": content or (None if calls else "")}
        return {"message": message | ({"tool_calls": calls} if calls else {})}

    def delta(self, text: str, first: bool, ended: bool) -> dict[str, Any]:
        """Return the delta of the next part of the text."""
        pieces = [*self._reader.push(text), *(self._reader.finish() if ended else ())]
        content = "".join(piece for piece in pieces if isinstance(piece, str))
        calls = [
            self._begun(piece, index=piece.index)
            if piece.name is not None
            else {"index": piece.index, "function": {"arguments": piece.arguments}}
            for piece in pieces
            if isinstance(piece, CallPiece)
        ]
        delta: dict[str, Any] = {"role": "assistant"} if first else {}
        if content or (first and not calls):
            delta["content"] = content
        return {"delta": delta | ({"tool_calls": calls} if calls else {})}

    def _begun(self, piece: CallPiece, **more: int) -> dict[str, Any]:
        function = {"name": piece.name, "arguments": ""}
        number = f"call_{self._prefix}_{piece.index}"
        return {**more, "id": number, "type": "function", "function": function}


def complete_calls(
    calls: Sequence[Mapping[str, Any]],
) -> Iterator[tuple[Mapping[str, Any], dict[str, Any]]]:
    """Yield OpenAI's calls with their arguments as objects, for APIs that have them so. A call that
    was cut off, the last of an answer that became too long, has no such object and is left out."""
    for call in calls:
        try:
            arguments = json.loads(call["function"]["arguments"])
        except ValueError:
            continue
        if isinstance(arguments, dict):
            yield call, arguments
