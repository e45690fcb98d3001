"""An answer on the terminal: text on standard output, a live status line on standard error.
Invariant: standard output gets the text and nothing else, but for colours where it is a terminal;
the status line is drawn only where standard error is one, and is gone when the view is closed."""

from __future__ import annotations

import time
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, TextIO

from rich.cells import cell_len
from rich.console import Console

from tandem.commands.token_colours import TokenColours, takes_colours

if TYPE_CHECKING:  # whoever shows an answer has one of them
    from tandem.commands.chat_client import Reply
    from tandem.generation.client import Generated

# Where the text ends, the line below is made free without moving the column (index, cursor up),
# the place remembered, and the status written there.
_GO_BELOW = "\x1bD\x1b[A\x1b7\x1b[B\r"
_RETURN = "\x1b8"
_ERASE_BELOW = "\x1b[J"


class AnswerView(AbstractContextManager["AnswerView"]):
    """Shows each new piece of text at once. BrokenPipeError when nobody reads it any more. `lead`
    is written before the answer, on the same line."""

    def __init__(self, text: TextIO, status: TextIO, lead: str = "") -> None:
        self._text = text
        self._status = status
        self._lead = lead
        console = Console(file=status)
        self._live = status.isatty() and console.is_terminal and not console.is_dumb_terminal
        self._width = console.width
        self._colours = TokenColours() if takes_colours(text) else None
        self._result: Generated | Reply | None = None
        self._shown = 0
        self._line = ""
        self._drawn = False
        self._began_s = time.monotonic()

    @property
    def wants_token_texts(self) -> bool:
        """True if the request should ask for the text of each token."""
        return self._colours is not None

    def __enter__(self) -> AnswerView:
        self._write(self._lead)
        return self

    def __exit__(self, *reason: object) -> None:
        self._erase()
        if self._line and reason[0] is not BrokenPipeError:
            self._write("\n")
        if reason[0] is None and (legend := self._legend()):
            self._status.write(f"{legend}\n")
            self._status.flush()

    def _legend(self) -> str:
        if not self._live or self._colours is None or self._result is None:
            return ""
        return self._colours.legend(self._result)

    def update(self, result: Generated | Reply) -> None:
        self._erase()
        piece = result.text[self._shown :]
        self._write(piece, self._colours.take(result) if self._colours else piece)
        self._shown = len(result.text)
        self._result = result
        if self._live and not self._at_margin():
            words = self._words(result)[: self._width - 1]
            self._status.write(f"{_GO_BELOW}\x1b[2m{words}\x1b[0m{_RETURN}")
            self._status.flush()
            self._drawn = True

    def _write(self, piece: str, coloured: str = "") -> None:
        if piece:
            self._line = (self._line + piece).rpartition("\n")[2]
            self._text.write(coloured or piece)
            self._text.flush()

    def _at_margin(self) -> bool:
        """Return whether the line is exactly full. The cursor then waits behind its last character,
        and any control would put it back onto that."""
        columns = cell_len(self._line)
        return columns > 0 and columns % self._width == 0

    def _erase(self) -> None:
        if self._drawn:
            self._status.write(_ERASE_BELOW)
            self._status.flush()
            self._drawn = False

    def _words(self, result: Generated | Reply) -> str:
        tokens = len(result.token_ids)
        elapsed_s = time.monotonic() - self._began_s
        lead = result.preset or ("" if tokens else "waiting")
        words = [*filter(None, [lead]), f"{tokens} tokens", f"{elapsed_s:.1f} s"]
        if result.ttft_s is not None and elapsed_s > 0:
            words += [f"TTFT {result.ttft_s * 1e3:.0f} ms", f"{tokens / elapsed_s:.0f} tokens/s"]
        if drafted := result.token_sources.count("draft"):
            words.append(f"{drafted / tokens:.0%} drafted")
        if result.unverified:
            words.append(f"cloud lost, {len(result.unverified)} tokens unverified")
        return " | ".join(words)
