"""A terminal with the few controls that the status line uses, to see what a person would see."""

from __future__ import annotations

import io
import os
import re
import signal

_STEP = re.compile(r"\x1b\[(\d*)(?:;\d+)*([A-Za-z])|\x1b([78D])|([\r\n])|([^\x1b\r\n])")


class Screen:
    """`rows` × `columns`.

    A character in the last column leaves the cursor behind it, so that the next one starts a row;
    as on real terminals, any movement puts it back onto that character.
    """

    def __init__(self, rows: int, columns: int) -> None:
        self._rows, self._columns = rows, columns
        self._cells = [[" "] * columns for _ in range(rows)]
        self._row = self._column = 0
        self._kept = (0, 0)
        self.scrolled: list[str] = []

    @property
    def lines(self) -> list[str]:
        return ["".join(row).rstrip() for row in self._cells]

    def text(self) -> str:
        """Everything shown so far, what scrolled away included."""
        return "\n".join([*self.scrolled, *self.lines]).rstrip()

    def write(self, written: str) -> None:
        for step in _STEP.finditer(written):
            count, control, escape, move, letter = step.groups()
            if control:
                self._control(control, int(count or 1), count)
            elif escape:
                self._escape(escape)
            elif move == "\r":
                self._column = 0
            elif move == "\n":
                self._column = 0
                self._down()
            else:
                self._put(letter)

    def _control(self, control: str, count: int, given: str) -> None:
        if control in "AB":
            self._column = min(self._column, self._columns - 1)
        match control:
            case "A":
                self._row = max(0, self._row - count)
            case "B":
                self._row = min(self._rows - 1, self._row + count)
            case "J":
                assert given == ""
                self._cells[self._row][self._column :] = [" "] * (self._columns - self._column)
                for row in range(self._row + 1, self._rows):
                    self._cells[row] = [" "] * self._columns
            case "K":
                assert given == ""
                self._cells[self._row][self._column :] = [" "] * (self._columns - self._column)
            case "m":
                pass  # colours
            case _:
                raise AssertionError(f"control {control!r} is not known here")

    def _escape(self, escape: str) -> None:
        match escape:
            case "7":
                self._kept = (self._row, self._column)
            case "8":
                self._row, self._column = self._kept
            case "D":
                self._column = min(self._column, self._columns - 1)
                self._down()

    def _down(self) -> None:
        if self._row < self._rows - 1:
            self._row += 1
            return
        self.scrolled.append("".join(self._cells.pop(0)).rstrip())
        self._cells.append([" "] * self._columns)

    def _put(self, letter: str) -> None:
        if self._column == self._columns:
            self._column = 0
            self._down()
        self._cells[self._row][self._column] = letter
        self._column += 1


class Terminal(io.StringIO):
    """A stream that is a terminal and writes to a screen; several may share one screen."""

    def __init__(self, screen: Screen) -> None:
        super().__init__()
        self._screen = screen

    def isatty(self) -> bool:
        return True

    def write(self, written: str) -> int:
        self._screen.write(written)
        return super().write(written)


def obey_terminal() -> None:
    """In a new process: the terminal that is its first stream controls it, and it heeds Ctrl-C,
    which what a shell runs in the background ignores."""
    os.close(os.open(os.ttyname(0), os.O_RDWR))
    signal.signal(signal.SIGINT, signal.SIG_DFL)
