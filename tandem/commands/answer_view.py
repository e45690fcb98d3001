"""An answer on the terminal: text on standard output, a live status line on standard error.

Invariant: standard output gets the text and nothing else; the status line is drawn only where
standard error is a terminal, and is gone when the view is closed. Must not import grpc or torch.
"""

from __future__ import annotations

import time
from collections.abc import Sized
from contextlib import AbstractContextManager
from typing import Protocol, TextIO

from rich.cells import cell_len
from rich.console import Console

# Where the text ends, the line below is made free without moving the column (index, cursor up),
# the place remembered, and the status written there.
_GO_BELOW = "\x1bD\x1b[A\x1b7\x1b[B\r"
_RETURN = "\x1b8"
_ERASE_BELOW = "\x1b[J"


class Growing(Protocol):
    """An answer as far as it came."""

    @property
    def text(self) -> str: ...
    @property
    def preset(self) -> str: ...
    @property
    def token_ids(self) -> Sized: ...
    @property
    def unverified(self) -> Sized: ...
    @property
    def ttft_s(self) -> float | None: ...


class AnswerView(AbstractContextManager["AnswerView"]):
    """Shows each new piece of text at once. BrokenPipeError when nobody reads it any more.

    `lead` is written before the answer, on the same line.
    """

    def __init__(self, text: TextIO, status: TextIO, lead: str = "") -> None:
        self._text = text
        self._status = status
        console = Console(file=status)
        self._live = status.isatty() and console.is_terminal and not console.is_dumb_terminal
        self._width = console.width
        self._lead = lead
        self._shown = 0
        self._line = ""
        self._drawn = False
        self._began_s = time.monotonic()

    def __enter__(self) -> AnswerView:
        self._write(self._lead)
        return self

    def __exit__(self, *reason: object) -> None:
        self._erase()
        if self._line and reason[0] is not BrokenPipeError:
            self._write("\n")

    def update(self, result: Growing) -> None:
        self._erase()
        self._write(result.text[self._shown :])
        self._shown = len(result.text)
        if self._live and not self._at_margin():
            words = self._words(result)[: self._width - 1]
            self._status.write(f"{_GO_BELOW}\x1b[2m{words}\x1b[0m{_RETURN}")
            self._status.flush()
            self._drawn = True

    def _write(self, piece: str) -> None:
        if piece:
            self._line = (self._line + piece).rpartition("\n")[2]
            self._text.write(piece)
            self._text.flush()

    def _at_margin(self) -> bool:
        """Whether the line is just full. The cursor then waits behind its last character, and any
        control would put it back onto that."""
        columns = cell_len(self._line)
        return columns > 0 and columns % self._width == 0

    def _erase(self) -> None:
        if self._drawn:
            self._status.write(_ERASE_BELOW)
            self._status.flush()
            self._drawn = False

    def _words(self, result: Growing) -> str:
        tokens, elapsed_s = len(result.token_ids), time.monotonic() - self._began_s
        words = [result.preset or "waiting", f"{tokens} tokens", f"{elapsed_s:.1f} s"]
        if result.ttft_s is not None and elapsed_s > 0:
            words += [f"TTFT {result.ttft_s * 1e3:.0f} ms", f"{tokens / elapsed_s:.0f} tokens/s"]
        if result.unverified:
            words.append(f"cloud lost, {len(result.unverified)} tokens unverified")
        return " | ".join(words)
