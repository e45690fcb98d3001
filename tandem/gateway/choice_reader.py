"""The text of one choice as its parts: thinking, text, and tool calls. Invariant: however the text
is cut into pieces, its parts joined are the same; what is no call is text.

In the text a call stands as the model's family writes it (`tandem.text.families`); where that is
not known as Hermes does: `<tool_call>`, an object with name and arguments, `</tool_call>`."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any

from tandem.generation.client import Generated
from tandem.text.families import HERMES, PLAIN, CallFormat, family_named
from tandem.text.thinking import ThinkingSplitter, ThinkingStart, unfinished


@dataclass(frozen=True, slots=True)
class Thought:
    """A part of the thinking."""

    text: str


@dataclass(frozen=True, slots=True)
class CallPiece:
    """A new part of call `index`: its name, then parts of its arguments."""

    index: int
    name: str | None = None
    arguments: str = ""


Piece = str | Thought | CallPiece


@dataclass(frozen=True, slots=True)
class ReasoningOptions:
    """What becomes of the thinking. `separate`: it is taken out of the content. `include`: what was
    taken out is returned."""

    separate: bool = True
    include: bool = True


class ChoiceReader:
    """Reads the text of one choice as it comes."""

    def __init__(self, reasoning: ReasoningOptions, calls: CallFormat | None) -> None:
        """Prepare to read. `calls`: how the model writes tool calls; None if it is offered no
        tools."""
        self._reasoning = reasoning
        self._splitter: ThinkingSplitter | None = None
        self._calls = None if calls is None else ToolCallReader(calls)

    @property
    def has_calls(self) -> bool:
        return self._calls is not None and self._calls.calls > 0

    def push(self, answer: Generated, text: str, ended: bool) -> list[Piece]:
        """Return the parts that are certain now; all of the rest once the text has `ended`. How it
        is to be read the `answer` says, which has been started."""
        if self._splitter is None:
            family, start = family_named(answer.family), answer.thinking_start
            if not self._reasoning.separate:
                family, start = PLAIN, ThinkingStart.NONE
            self._splitter = ThinkingSplitter(family.thinking, start)
        parts = self._splitter.push(text)
        if ended:
            parts += self._splitter.finish()
        pieces: list[Piece] = []
        for part in parts:
            if not part.thinks:
                pieces += [part.text] if self._calls is None else self._calls.push(part.text)
            elif self._reasoning.include:
                pieces.append(Thought(part.text))
        if ended and self._calls is not None:
            pieces += self._calls.finish()
        return pieces


@dataclass(slots=True)
class Parts:
    """The parts of a text joined: what it says, what was thought before, and calls as pairs of
    name and arguments in JSON."""

    text: str = ""
    thinking: str = ""
    calls: list[tuple[str, str]] = field(default_factory=list)

    @classmethod
    def of(cls, pieces: Iterable[Piece]) -> Parts:
        """Join `pieces`."""
        whole = cls()
        for piece in pieces:
            whole.add(piece)
        return whole

    def add(self, piece: Piece) -> None:
        match piece:
            case str():
                self.text += piece
            case Thought():
                self.thinking += piece.text
            case CallPiece(name=str() as name):
                self.calls.append((name, ""))
            case CallPiece():
                name, arguments = self.calls[piece.index]
                self.calls[piece.index] = (name, arguments + piece.arguments)

    def whole_calls(self) -> Iterator[tuple[int, str, dict[str, Any]]]:
        """Yield index, name and arguments of each call, for APIs that have them as objects. A call
        that was cut off, the last of an answer that became too long, has no such object and is left
        out."""
        for index, (name, written) in enumerate(self.calls):
            try:
                arguments = json.loads(written)
            except (ValueError, RecursionError):
                continue
            if isinstance(arguments, dict):
                yield index, name, arguments


class _State(Enum):
    TEXT = auto()
    HEAD = auto()
    ARGUMENTS = auto()
    TAIL = auto()


class ToolCallReader:
    """Finds tool calls in a text."""

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
