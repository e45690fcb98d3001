"""An answer's text as it comes, split into thinking and answer.

Invariant: however the text is cut into pieces, the parts joined are the same. What might still
become a mark, or a line end before one, is held back until that is known."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from tandem.text.families import ThinkingFormat


class ThinkingStart(StrEnum):
    """Where an answer begins, by the end of its prompt."""

    NONE = "none"
    """In the answer proper: the model does not think, or the prompt has closed the thinking."""
    POSSIBLE = "possible"
    """The model may open the thinking with its first tokens."""
    OPENED = "opened"
    """In the thinking: the prompt has opened it."""


def thinking_start(thinking: ThinkingFormat | None, prompt_end: str) -> ThinkingStart:
    """Return where an answer begins after a prompt that ends with this text, special tokens
    included."""
    if thinking is None:
        return ThinkingStart.NONE
    end = prompt_end.rstrip()
    if end.endswith(thinking.begin.rstrip()):
        return ThinkingStart.OPENED
    return ThinkingStart.NONE if end.endswith(thinking.end) else ThinkingStart.POSSIBLE


@dataclass(frozen=True, slots=True)
class TextPart:
    """A part of an answer's text that became certain, never empty."""

    text: str
    thinks: bool = False


class ThinkingSplitter:
    """Splits the text of one answer. Line ends around the thinking belong to neither part, as chat
    templates have it."""

    def __init__(self, thinking: ThinkingFormat | None, start: ThinkingStart) -> None:
        self._format = thinking if start is not ThinkingStart.NONE else None
        self._held = ""
        self._thinks = start is ThinkingStart.OPENED
        self._undecided = True
        """Nothing but white space came yet: the opening mark may follow, even after a prompt that
        has opened the thinking itself."""
        self._strips = self._thinks

    @property
    def thinks(self) -> bool:
        """Whether what came last belongs to the thinking, as far as is known."""
        return self._thinks

    @property
    def undecided(self) -> bool:
        """Whether the thinking may still begin with what came so far."""
        return self._undecided and self._format is not None

    def push(self, text: str) -> list[TextPart]:
        """Return what is certain now, in the order of the text."""
        if self._format is None:
            return [TextPart(text)] if text else []
        self._held += text
        parts = list[TextPart]()
        while (step := self._step(self._format)) is not None:
            thinks, part = step
            if part:
                parts.append(TextPart(part, thinks))
        return parts

    def finish(self) -> list[TextPart]:
        """Return what was held back for a mark that did not come."""
        held, self._held = self._held, ""
        if self._strips:
            held = held.lstrip("\n")
        if self._thinks:
            held = held.rstrip("\n")
        return [TextPart(held, self._thinks)] if held else []

    def _step(self, thinking: ThinkingFormat) -> tuple[bool, str] | None:
        """Go one step further: return a part of the text, and whether it is thinking; None if more
        text is needed."""
        if self._undecided:
            return self._decide(thinking.begin)
        if self._strips:
            self._held = self._held.lstrip("\n")
            if not self._held:
                return None
            self._strips = False
        if self._thinks:
            return self._in_thinking(thinking)
        return self._in_answer(thinking)

    def _decide(self, begin: str) -> tuple[bool, str] | None:
        start = self._held.lstrip()
        if len(start) < len(begin) and begin.startswith(start):
            return None
        self._undecided = False
        if start.startswith(begin):
            self._enter(thinks=True, rest=start[len(begin) :])
        return self._thinks, ""

    def _in_thinking(self, thinking: ThinkingFormat) -> tuple[bool, str] | None:
        before, mark, rest = self._held.partition(thinking.end)
        if mark:
            self._enter(thinks=False, rest=rest)
            return True, before.rstrip("\n")
        return self._certain(unfinished(self._held, (thinking.end,), line_ends=True))

    def _in_answer(self, thinking: ThinkingFormat) -> tuple[bool, str] | None:
        marks = (thinking.begin, *thinking.dropped) if thinking.repeats else thinking.dropped
        places = [(place, mark) for mark in marks if (place := self._held.find(mark)) >= 0]
        if places:
            place, mark = min(places)
            before = self._held[:place]
            rest = self._held[place + len(mark) :]
            self._held = rest
            if mark == thinking.begin:
                self._enter(thinks=True, rest=rest)
            return False, before
        return self._certain(unfinished(self._held, marks))

    def _enter(self, *, thinks: bool, rest: str) -> None:
        self._thinks = thinks
        self._held = rest
        self._strips = True

    def _certain(self, kept: int) -> tuple[bool, str] | None:
        """Hand out all that is held but the last `kept` letters."""
        end = len(self._held) - kept
        part, self._held = self._held[:end], self._held[end:]
        return (self._thinks, part) if part else None


def unfinished(text: str, marks: tuple[str, ...], line_ends: bool = False) -> int:
    """Return the length of the longest end of `text` that may be the beginning of a mark;
    `line_ends`: including the line ends before it."""
    longest = max((len(mark) for mark in marks), default=1) - 1
    kept = next(
        (
            length
            for length in range(min(longest, len(text)), 0, -1)
            if any(mark.startswith(text[-length:]) for mark in marks)
        ),
        0,
    )
    if line_ends:
        before = text[: len(text) - kept]
        kept += len(before) - len(before.rstrip("\n"))
    return kept
