"""The thinking of an answer apart from the answer, as `reasoning_content`. Invariant: the parts of
a streamed choice, joined, are those of the choice sent whole."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from tandem.generation.client import Generated
from tandem.text.families import PLAIN, family_named
from tandem.text.thinking import TextPart, ThinkingSplitter, ThinkingStart


@dataclass(frozen=True, slots=True)
class ReasoningOptions:
    """What becomes of the thinking. `separate`: it is taken out of the content. `include`: what was
    taken out is returned."""

    separate: bool = True
    include: bool = True


class ReasoningReader:
    """Splits the text of one choice."""

    def __init__(self, answer: Generated, options: ReasoningOptions) -> None:
        """Prepare to read an answer that has been started: `answer` says how its text is to be
        read."""
        family, start = family_named(answer.family), answer.thinking_start
        if not options.separate:
            family = PLAIN
            start = ThinkingStart.NONE
        self._splitter = ThinkingSplitter(family.thinking, start)
        self._include = options.include

    def push(self, text: str, ended: bool) -> list[TextPart]:
        """Return the parts that are certain now; all of the rest once the text has `ended`."""
        parts = self._splitter.push(text)
        if ended:
            parts += self._splitter.finish()
        return [part for part in parts if self._include or not part.thinks]


def joined(parts: Iterable[TextPart], *, thinks: bool) -> str:
    """Return the text of those parts that are thinking, or of those that are not."""
    return "".join(part.text for part in parts if part.thinks == thinks)
