"""Two columns of a PDF page whose file has the text line by line: each line of the left column is
followed by the one beside it, and what a reader finds there is the lines of both in turn. By where
the text stands on the page, the columns are read one after the other.

Invariant: a table keeps its rows. Columns are text that runs on from line to line: most of their
lines begin in the middle of a sentence, which cells of a table do not.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

LEAST_JUMPS = 5
"""Lines with text beside them, below which a page is not looked at as columns."""
JUMP_SHARE = 0.25
"""Of the page's width, what lies between the beginnings of two columns at least."""
LEAST_WORDS = 3
"""Of a line of a column, on average."""
CONTINUED_SHARE = 0.5
"""Of a column's lines, those that begin in the middle of a sentence at least."""
SAME_LINE = 2.0
"""Points between baselines of one line at most."""

_SHOWS = frozenset((b"Tj", b"TJ", b"'", b'"'))
_GAP = re.compile(r"\S+(?: {1,2}\S+)*")


@dataclass(slots=True)
class TextPlaces:
    """Counts how often the text of a page goes on beside the text before it, on the same line."""

    width: float
    jumps: int = 0
    _before: tuple[float, float] | None = field(default=None)

    def note(
        self, operator: bytes, operands: Any, cm: Sequence[float], tm: Sequence[float]
    ) -> None:
        """Note where text is shown. pypdf calls this visitor before each operation, with both
        matrices."""
        if operator not in _SHOWS:
            return
        x = tm[4] * cm[0] + tm[5] * cm[2] + cm[4]
        y = tm[4] * cm[1] + tm[5] * cm[3] + cm[5]
        if self._before is not None:
            right = x - self._before[0] >= JUMP_SHARE * self.width
            self.jumps += right and abs(y - self._before[1]) <= SAME_LINE
        self._before = x, y

    @property
    def may_be_columns(self) -> bool:
        return self.jumps >= LEAST_JUMPS


@dataclass(frozen=True, slots=True)
class _Line:
    """Texts of a line with the columns of letters that they begin at."""

    text: str
    parts: tuple[tuple[int, str], ...]


def by_columns(layout: str, plain: str) -> str:
    """Return the text of a page with its two columns one after the other; `plain` where it has
    none.

    Args:
        layout: the page's text with each word where it stands, in letters of one width.
        plain: the page's text in the order of its file."""
    if Counter(layout.split()) != Counter(plain.split()):
        return plain  # the page has more than the layout shows
    lines = [
        _Line(line, tuple((gap.start(), gap[0]) for gap in _GAP.finditer(line)))
        for line in layout.splitlines()
        if line.strip()
    ]
    starts = Counter(line.parts[1][0] for line in lines if len(line.parts) == 2)
    if not starts:
        return plain
    start = starts.most_common(1)[0][0]
    rows = [place for place, line in enumerate(lines) if _is_row(line, start)]
    if len(rows) < LEAST_JUMPS:
        return plain
    block = lines[rows[0] : rows[-1] + 1]
    left = [text for line in block for begin, text in line.parts if begin < start - 1]
    right = [text for line in block for begin, text in line.parts if begin >= start - 1]
    fits = all(_fits(line, start) for line in block)
    if not (fits and _runs_on(left) and _runs_on(right)):
        return plain
    before = [line.text.strip() for line in lines[: rows[0]]]
    after = [line.text.strip() for line in lines[rows[-1] + 1 :]]
    return "\n".join((*before, *left, *right, *after))


def _is_row(line: _Line, start: int) -> bool:
    """Return whether both columns have text in this line."""
    return len(line.parts) == 2 and abs(line.parts[1][0] - start) <= 1


def _fits(line: _Line, start: int) -> bool:
    """Return whether no text of the line reaches from one column into the other."""
    if len(line.parts) == 2:
        return _is_row(line, start)
    if len(line.parts) > 2:
        return False
    begin, text = line.parts[0]
    return begin >= start - 1 or begin + len(text) < start


def _runs_on(column: Sequence[str]) -> bool:
    """Return whether the lines are running text rather than cells of a table."""
    words = sum(len(line.split()) for line in column)
    continued = sum(line[:1].islower() for line in column[1:])
    return words >= LEAST_WORDS * len(column) and continued >= CONTINUED_SHARE * (len(column) - 1)
