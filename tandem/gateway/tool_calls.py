"""Tools: how bodies and answers name them, as in OpenAI's API, the grammar that an answer with
tools follows, and the calls in its text.

Invariant: however a text is cut into pieces, its pieces joined are the same calls; arguments are
JSON once the answer ended by itself, and fit what is enforced of the tool's schema
(`tandem.gateway.tool_schemas`).

In the text a call stands as the model's family writes it (`tandem.text.families`); where that is
not known as Hermes does: `<tool_call>`, an object with name and arguments, `</tool_call>`. The
grammar holds every model to that whose calls need no special tokens."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import Annotated, Any, Literal

from pydantic import Field

from tandem.core.processors import Grammar, GrammarKind
from tandem.gateway.body_parsing import Strict
from tandem.gateway.tool_schemas import enforced_schema
from tandem.text.families import HERMES, CallFormat
from tandem.text.thinking import unfinished

MAX_TOOLS = 128
MAX_CALLS = 8
"""Of one answer: a model that does not know when to stop calling would go on for ever."""
LINE_ENDS = "\\n{0,2}"
"""Between thinking and what follows it, as a regular expression."""

STRICT = (
    "True: a schema with keywords that cannot be enforced is refused. Otherwise these are left out,"
    " and the arguments match the rest."
)

ToolName = Annotated[str, Field(pattern=r"^[a-zA-Z0-9_-]{1,64}$")]


class ToolFunction(Strict):
    name: ToolName
    description: str | None = None
    parameters: dict[str, Any] | None = Field(default=None, description="A JSON schema.")
    strict: bool | None = Field(default=None, description=STRICT)


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
    tools: Sequence[Tool],
    *,
    text: Grammar | None,
    must_call: bool,
    parallel: bool,
    calls: CallFormat = HERMES,
    after_thinking: bool = False,
) -> Grammar:
    """Return a grammar for calls of `tools`: one or, if `parallel`, several. Unless `must_call`, it
    allows a text instead: JSON of the schema `text`, if one is given. `calls`: how calls are
    written. `after_thinking`: line ends may come before them, as models write them there."""
    more = f"({_literal(calls.between)} next_call){{0,{MAX_CALLS - 1}}}" if parallel else ""
    begin, end = calls.first + calls.begin, _literal(calls.end)
    schemas = [
        enforced_schema(one.function.parameters, one.function.strict is True) for one in tools
    ]
    # One lexeme with what may stand before it: a text may begin in the same way, up to a place.
    first = f"/{LINE_ENDS}{_escaped(begin)}/" if after_thinking else _literal(begin)
    rules = [
        # First, so that a line's number in a refusal says which tool's it is.
        *(f"a{index}: %json {json.dumps(schema)}" for index, schema in enumerate(schemas)),
        "start: calls" if must_call else f"start: {'json' if text else 'TEXT'} | calls",
        " ".join(filter(None, ("calls: call", more, _literal(calls.last)))),
        f"call: BEGIN function {end}",
        f"BEGIN: {first}",
        "function: " + " | ".join(f"f{index}" for index in range(len(tools))),
    ]
    if parallel:
        rules.append(f"next_call: {_literal(calls.begin)} function {end}")
    for index, tool in enumerate(tools):
        rules.append(f"f{index}: {_literal(tool.function.name + calls.middle)} a{index}")
    if not must_call:
        rules.append(f"json: %json {text.source}" if text else _plain(calls))
    return Grammar(GrammarKind.LARK, "\n".join(rules) + "\n")


def _plain(calls: CallFormat) -> str:
    """Return the rule of text without a call in it."""
    return f"TEXT: /(?s:.*)/ & ~/(?s:.*){_escaped(calls.first or calls.mark)}(?s:.*)/"


def _literal(text: str) -> str:
    """Return `text` as a string in a grammar; nothing for an empty one."""
    return json.dumps(text, ensure_ascii=False) if text else ""


def _escaped(text: str) -> str:
    """Escape `text` for a regular expression of a grammar, where a slash would end the
    expression."""
    return re.escape(text).replace("\\\n", "\\n").replace("/", "\\/")


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

    def __init__(self, calls: CallFormat = HERMES) -> None:
        """Create the reader. `calls`: how the model writes tool calls."""
        self.calls = 0
        self._format = calls
        self._head_pattern = re.compile(calls.head)
        self._marks = tuple(mark for mark in (calls.mark, calls.first, calls.last) if mark)
        self._held = ""
        self._state = _State.TEXT
        self._depth = 0
        self._in_string = self._escaped = False
        self._said = False
        """Whether the text since the last mark is more than space: between calls space is none."""

    def push(self, text: str) -> list[str | CallPiece]:
        """Return what is certain now: texts, and pieces of calls."""
        self._held += text
        pieces: list[str | CallPiece] = []
        while (step := self._step()) is not None:
            pieces += [each for each in step if each]
        return pieces

    def finish(self) -> list[str | CallPiece]:
        """Return the text that was held back for a call that did not come."""
        held, self._held = self._held, ""
        return [held] if held and self._state is _State.TEXT and not self.calls else []

    def _step(self) -> list[str | CallPiece] | None:
        """Go one step further and return what is certain; None if more text is needed."""
        match self._state:
            case _State.TEXT:
                return self._text()
            case _State.HEAD:
                return self._head()
            case _State.ARGUMENTS:
                return self._arguments()
            case _State.TAIL:
                _, mark, rest = self._held.partition(self._format.tail)
                if not mark:
                    return None
                self._held = rest
                self._state = _State.TEXT
                return []

    def _text(self) -> list[str | CallPiece] | None:
        places = [(at, mark) for mark in self._marks if (at := self._held.find(mark)) >= 0]
        if places:
            place, mark = min(places)
            before, self._held = self._held[:place], self._held[place + len(mark) :]
            left_out = self._is_left_out(before)
            self._said = False
            if mark == self._format.mark:
                self._state = _State.HEAD
            return [] if left_out else [before]
        end = len(self._held) - unfinished(self._held, self._marks)
        before = self._held[:end]
        if not before or self._is_left_out(before):  # which more text may change
            return None
        self._held = self._held[end:]
        self._said = self._said or not before.isspace()
        return [before]

    def _is_left_out(self, text: str) -> bool:
        return self.calls > 0 and not self._said and text.isspace()

    def _head(self) -> list[str | CallPiece] | None:
        head = self._head_pattern.match(self._held)
        tail_at = self._held.find(self._format.tail)
        if tail_at >= 0 and (head is None or tail_at < head.end()):  # it only looked like a call
            before, tail, self._held = self._held.partition(self._format.tail)
            self._state = _State.TEXT
            self._said = True
            return [self._format.mark + before + tail]
        if head is None or head.end() == len(self._held):  # more space may follow
            return None
        self._held, self._state, self._depth = self._held[head.end() :], _State.ARGUMENTS, 0
        self.calls += 1
        return [CallPiece(self.calls - 1, name=head["name"])]

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
    calls' ids. `calls`: how the model writes them."""

    def __init__(self, prefix: str, calls: CallFormat = HERMES) -> None:
        self._prefix = prefix
        self._reader = ToolCallReader(calls)

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
        except (ValueError, RecursionError):
            continue
        if isinstance(arguments, dict):
            yield call, arguments
