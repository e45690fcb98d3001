"""Who made each token, on the terminal: the colours of the web page. Invariant: what is written is
the text and nothing else, once the colours are taken out of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import groupby
from typing import TYPE_CHECKING, TextIO

from rich.color import ColorSystem
from rich.console import Console
from rich.style import Style

if TYPE_CHECKING:  # whoever shows an answer has one of them
    from tandem.commands.chat_client import Reply
    from tandem.generation.client import Generated

# Underlined is what no draft of the edge became: colours are never all that tells.
SOURCES = {
    "draft": ("green", "accepted draft"),
    "cloud_draft": ("cyan underline", "accepted draft of the cloud"),
    "target": ("yellow underline", "target's own token"),
    "edge": ("red underline", "edge alone, not verified"),
    "device": ("cyan", "device's documents"),
    "cloud": ("magenta underline", "cloud's documents"),
    "both": ("green", "both sides' documents"),
    "recovered": ("yellow underline", "drawn from both sides together"),
}
"""Style and words of each token source, in the order of the legend."""


def takes_colours(stream: TextIO) -> bool:
    """Return True if a person sees them there: a terminal that has colours, and no NO_COLOR."""
    console = Console(file=stream)
    return stream.isatty() and console.color_system is not None and not console.no_color


def styled(text: str, style: str) -> str:
    return Style.parse(style).render(text, color_system=ColorSystem.STANDARD)


class TokenColours:
    """Colours a growing text. Where nobody says what tokens spell it stays as it is."""

    def __init__(self) -> None:
        self._coloured = 0
        self._token = 0
        self._ends = 0

    def take(self, result: Generated | Reply) -> str:
        """Return what is new of the text since the last call, in its colours."""
        pieces = self._pieces(result)
        return "".join(
            "".join(piece for _, piece in run) if style is None else _coloured(style, run)
            for style, run in groupby(pieces, key=lambda piece: piece[0])
        )

    def legend(self, result: Generated | Reply) -> str:
        """Return how many tokens each source made, in its colour; empty where that is unknown."""
        counts = Counter(result.token_sources)
        return "  ".join(
            f"{styled(words, style)} {counts[source]}"
            for source, (style, words) in SOURCES.items()
            if counts[source]
        )

    def _pieces(self, result: Generated | Reply) -> Iterator[tuple[str | None, str]]:
        """Yield style and text, token by token. The text may lag behind its tokens, and never runs
        ahead of them."""
        text = result.text
        spelt = result.token_texts
        while self._coloured < len(text):
            while self._token < len(spelt) and self._ends <= self._coloured:
                self._ends += len(spelt[self._token])
                self._token += 1
            known = self._ends > self._coloured
            end = min(self._ends, len(text)) if known else len(text)
            source = result.token_sources[self._token - 1] if known else ""
            style, _ = SOURCES.get(source, (None, ""))
            yield style, text[self._coloured : end]
            self._coloured = end


def _coloured(style: str, run: Iterator[tuple[str | None, str]]) -> str:
    return styled("".join(piece for _, piece in run), style)
